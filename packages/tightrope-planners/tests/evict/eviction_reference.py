"""A slow, plain eviction arena: lists, full scans, no shared code with the native one."""

from dataclasses import dataclass, field

SCALE = 2.0**40
HEAVIEST = 2**50


@dataclass(eq=False)
class Stored:
    number: int
    size: int
    cost: int = 0
    touched: int = 0
    at: int | None = None
    pins: int = 0
    held: bool = True
    made: bool = False
    parents: "list[Stored]" = field(default_factory=list)
    children: "list[Stored]" = field(default_factory=list)
    group: "set[Stored]" = field(default_factory=set)
    spent: "list[int]" = field(default_factory=lambda: [0])


class SlowArena:
    """Windows or single victims; storages placed first fit from one end."""

    def __init__(self, size: int, *, window: bool, score: str, from_right: bool = False) -> None:
        self.size, self.window, self.score, self.from_right = size, window, score, from_right
        self.all: list[Stored] = []
        self.now = 0
        self.classes: list[set[Stored]] = []
        self.sums: dict[int, int] = {}

    def resident(self) -> list[Stored]:
        return sorted((one for one in self.all if one.at is not None), key=lambda one: one.at or 0)

    def tiles(self) -> list[tuple[int, int, Stored | None]]:
        found: list[tuple[int, int, Stored | None]] = []
        at = 0
        for one in self.resident():
            assert one.at is not None
            assert one.at >= at, "storages overlap"
            if one.at > at:
                found.append((at, one.at - at, None))
            found.append((one.at, one.size, one))
            at = one.at + one.size
        if at < self.size:
            found.append((at, self.size - at, None))
        return found

    # --- costs

    def class_of(self, one: Stored) -> set[Stored] | None:
        return next((members for members in self.classes if one in members), None)

    def cost_around(self, one: Stored) -> int:
        beside = [self.class_of(other) for other in (*one.parents, *one.children)]
        distinct = {id(members): members for members in beside if members is not None}
        return one.cost + sum(sum(member.cost for member in members) for members in distinct.values())

    def join(self, one: Stored) -> None:
        merged = {one}
        for other in (*one.parents, *one.children):
            members = self.class_of(other)
            if members is not None and members is not merged:
                self.classes.remove(members)
                merged |= members
        self.classes.append(merged)

    def leave(self, one: Stored) -> None:
        members = self.class_of(one)
        if members is not None:
            members.discard(one)
            if not members:
                self.classes.remove(members)

    # --- placing

    def hole(self, size: int) -> int | None:
        holes = [(at, length) for at, length, owner in self.tiles() if owner is None and length >= size]
        if not holes:
            return None
        at, length = holes[-1] if self.from_right else holes[0]
        return at + length - size if self.from_right else at

    def evictable(self, one: Stored) -> bool:
        return one.at is not None and one.made and one.pins == 0

    def weight(self, one: Stored) -> int:
        value = float(self.cost_around(one)) / float(max(1, self.now - one.touched)) * SCALE
        return HEAVIEST if value >= HEAVIEST else int(value)

    def value(self, one: Stored, tiles: list[tuple[int, int, Stored | None]]) -> float:
        stale, cost, size = (
            float(max(1, self.now - one.touched)),
            float(self.cost_around(one)),
            float(one.size),
        )
        if self.score == "dte":
            at = next(i for i, tile in enumerate(tiles) if tile[2] is one)
            for beside in (at - 1, at + 1):
                if 0 <= beside < len(tiles) and tiles[beside][2] is None:
                    size += tiles[beside][1]
        return {"lru": 1.0 / stale, "size": 1.0 / size}.get(self.score, cost / (size * stale))

    def windows(self, size: int) -> list[tuple[int, int, int]]:
        """Every window that is large enough: (cost, first tile, end tile)."""
        tiles, found = self.tiles(), []
        for first in range(len(tiles)):
            covered = cost = 0
            for end in range(first, len(tiles)):
                owner = tiles[end][2]
                if owner is not None and not self.evictable(owner):
                    break
                covered += tiles[end][1]
                cost += 0 if owner is None else self.weight(owner)
                if covered >= size:
                    found.append((cost, first, end + 1))
        return found

    def evict(self, one: Stored) -> None:
        one.at = None
        self.join(one)

    def place(self, size: int) -> tuple[int | None, list[int], int]:
        """Place a storage; return its address, the numbers of the victims, and the cost of the window."""
        victims: list[int] = []
        cost = -1
        at = self.hole(size)
        if at is None and self.window:
            options, tiles = self.windows(size), self.tiles()
            if options:
                cost = min(options)[0]
        while at is None and not self.window:
            tiles = self.tiles()
            candidates = [one for one in self.resident() if self.evictable(one)]
            if not candidates:
                break
            victim = min(candidates, key=lambda one: (self.value(one, tiles), one.at))
            victims.append(victim.number)
            self.evict(victim)
            at = self.hole(size)
        return at, victims, cost

    def add(self, number: int, size: int, at: int) -> Stored:
        one = Stored(number, size, touched=self.now, at=at)
        self.all.append(one)
        return one
