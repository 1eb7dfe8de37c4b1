"""The questions: each yields rows as they are measured."""

import random
import resource
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.placement import peers, planned, steps
from benchmarks.placement.families import BAR, FAMILIES, HELD_OUT, case
from benchmarks.placement.generators import perfect, training_step
from tightrope.core import Bytes, JudgeError
from tightrope.judge import Interval as Judged
from tightrope.judge import check_offsets
from tightrope.place import Interval, Placement, place

CAPACITY: Bytes = 2**20
SEEDS = range(5)
_DEEP = ("stack24", "stack96")
_NETS = ("gpt2", "vit", "resnet18", "resnet50", "unet", "densenet121", "mobilenetv2")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for."""

    data: Path | None = None
    minimalloc: Path | None = None
    cp_sat: float = 0.0
    quick: bool = False
    nets: tuple[str, ...] = ()
    seeds: Sequence[int] = field(default_factory=lambda: list(SEEDS))

    def of(self, names: Sequence[str]) -> list[str]:
        """Choose among the nets of a question."""
        return [name for name in names if not self.nets or name in self.nets]

    @property
    def files(self) -> list[Path]:
        return sorted(self.data.rglob("*.csv")) if self.data else []


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; ``met`` is None where a row is a peer or one part of a bar."""

    bar: str
    question: str
    figure: str
    wanted: str = ""
    met: bool | None = None


def checked(buffers: Sequence[Interval], found: Placement) -> Placement:
    """Let the judge look at a placement."""
    first = min((start for _, start, _ in buffers), default=0)
    rows = [
        Judged(size, start - first, end - first, offset=offset)
        for (size, start, end), offset in zip(buffers, found.offsets, strict=True)
    ]
    check_offsets(rows, arena=found.peak, alignment=1)
    return found


def fits(asked: Asked) -> Iterator[Row]:
    """F1: fit into the capacity that the files were made for."""
    from tightrope_planners.place import read_csv

    totals = dict.fromkeys(asked.seeds, 0.0)
    worst, solved, count = 0.0, 0, 0
    for file in asked.files:
        buffers = read_csv(file).buffers
        times = []
        for seed in asked.seeds:
            found = checked(buffers, place(buffers, capacity=CAPACITY, seconds=30, seed=seed))
            times.append(found.cpu_seconds)
            totals[seed] += found.cpu_seconds
            solved += found.peak <= CAPACITY
            count += 1
        worst = max(worst, *times)
        yield Row("F1", file.name, f"median {median(times):.3f} s, worst {max(times):.3f} s")
    other = yield from _minimalloc(asked)
    total = median(totals.values()) if count else 0.0
    text = (
        f"{solved}/{count} solved and judged, total {total:.2f} s (worst seed {max(totals.values()):.2f} s)"
    )
    wanted = "all; <= 1/10 of MiniMalloc; none above 3 s"
    if other is not None:
        text += f", 1/{other / total:.0f} of MiniMalloc's {other:.1f} s"
    if count:
        met = solved == count and worst <= 3 and (other is None or total <= other / 10)
        yield Row("F1", "all files", text, wanted, met if other is not None else met and None)


def _minimalloc(asked: Asked) -> Generator[Row, None, float | None]:
    """Time MiniMalloc on every file; return the total."""
    if asked.minimalloc is None:
        return None
    program = peers.build_minimalloc(asked.minimalloc)
    total = 0.0
    for file in asked.files:
        seconds, solved = peers.minimalloc(program, file, CAPACITY, seconds=300)
        total += seconds
        yield Row(
            "F1", f"MiniMalloc, {file.name}", f"{seconds:.2f} s, {'solved' if solved else 'no solution'}"
        )
    return total


def minimised(asked: Asked) -> Iterator[Row]:
    """F2: the smallest peak, proved where it can be."""
    from tightrope_planners.place import read_csv

    for file in asked.files:
        buffers = read_csv(file).buffers
        found = [checked(buffers, place(buffers, seconds=10, seed=seed)) for seed in asked.seeds]
        peaks = sorted(p.peak for p in found)
        proved = sum(p.status == "optimal" for p in found)
        text = f"{peaks[0]} .. {peaks[-1]}, median {median(peaks):.0f}, proved {proved}/{len(found)}, "
        times = [p.cpu_seconds for p in found]
        text += f"load {found[0].lower_bound}, median {median(times):.1f} s, worst {max(times):.1f} s"
        hard = file.name.startswith("D.")
        wanted = "<= 1,019,904 in 10 s" if hard else "proved"
        met = median(peaks) <= 1_019_904 and median(times) <= 10 if hard else proved == len(found)
        yield Row("F2", file.name, text, wanted, met)
        yield from _heuristics("F2", file.name, buffers, asked)


def _heuristics(bar: str, name: str, buffers: Sequence[Interval], asked: Asked) -> Iterator[Row]:
    bound = place(buffers, seconds=0.001).lower_bound
    found = {
        "size-descending first fit": peers.first_fit_decreasing(buffers) / bound,
        "SOMAS-style portfolio": peers.somas(buffers) / bound,
    }
    text = ", ".join(f"{who} {ratio:.4f}" for who, ratio in found.items())
    if asked.cp_sat:
        begun = _children()
        peak, proved = peers.cp_sat(buffers, seconds=asked.cp_sat)
        shown = "no answer" if peak is None else f"{peak / bound:.4f}{' proved' if proved else ''}"
        text += f", CP-SAT {shown} in {_children() - begun:.0f} s"
    yield Row(bar, f"peers, {name}", text + " (peak / load)")


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def captured(asked: Asked) -> Iterator[Row]:
    """F3: recorded training steps, plain and rematerialised, with and without Adam."""
    slow, above = 0, 0
    count = 0
    for scale, names in (("test", _DEEP), ("bench", _NETS[: 2 if asked.quick else None])):
        for name, buffers in steps.steps(asked.of(names), "test" if scale == "test" else "bench"):
            found = checked(buffers, place(buffers, seconds=5))
            n = len(buffers)
            limit = 0.1 if n <= 1000 else 1.0 if n <= 6500 else 5.0
            count += 1
            slow += found.cpu_seconds > limit
            above += found.peak != found.lower_bound
            text = f"n = {n}, peak / load {found.peak / found.lower_bound:.5f}, {found.cpu_seconds:.4f} s"
            caching = peers.caching_allocator(buffers) / found.lower_bound
            text += f"; first fit {peers.first_fit_decreasing(buffers) / found.lower_bound:.4f}"
            text += f", caching allocator {caching:.3f}"
            yield Row("F3", name, text)
    text = f"{count - above}/{count} at the load bound, {slow} above the time limit"
    yield Row("F3", "all steps", text, "all; 0.1 / 1 / 5 s by size", count > 0 and not slow and not above)


_LARGE = """
import resource, sys
from benchmarks.placement.generators import training_step
from tightrope.place import place
count, recompute = int(sys.argv[1]), sys.argv[2] == "1"
buffers = training_step(count, recompute=recompute)
found = place(buffers, seconds=float(sys.argv[3]))
mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(len(buffers), found.peak / found.lower_bound, found.cpu_seconds, mb)
"""


def large(asked: Asked) -> Iterator[Row]:
    """F4: many buffers, each case in a process of its own so that its memory is its own."""
    for count, seconds, limit in ((10**5, 0.6, 1.0), (10**6, 8.0, 30.0)):
        for recompute in (False, True):
            command = [sys.executable, "-c", _LARGE, str(count), str(int(recompute)), str(seconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            n, ratio, cpu, mb = (float(word) for word in done.stdout.split())
            text = f"n = {n:.0f}, ratio {ratio:.5f}, {cpu:.2f} s, {mb:.0f} MB"
            name = f"training step{' with recompute' if recompute else ''}"
            met = ratio <= 1.001 and cpu <= limit and mb <= 2000
            yield Row("F4", name, text, f"<= 1.001, {limit:.0f} s, 2000 MB", met)


def waste_free(asked: Asked) -> Iterator[Row]:
    """F5: cuts of a rectangle, whose optimum leaves no byte unused."""
    for count, seconds, wanted in ((160, 1.0, 10), (320, 10.0, 9), (640, 10.0, 0)):
        found = [place(perfect(count, seed), capacity=100_000, seconds=seconds) for seed in range(10)]
        solved = sum(p.peak <= 100_000 for p in found)
        text = f"{solved}/10, worst {max(p.cpu_seconds for p in found):.2f} s"
        yield Row("F5", f"n = {count}", text, f">= {wanted}/10" if wanted else "", solved >= wanted or None)


def mutants(asked: Asked) -> Iterator[Row]:
    """F10: move one buffer of a valid placement; the judge must say what brute force over all pairs says."""
    draw = random.Random(0)
    tight = [perfect(40, seed, height=1000) for seed in range(5)]
    loose = [training_step(150, recompute=True, seed=seed) for seed in range(5)]
    for name, cases in (("cuts without waste", tight), ("training steps", loose)):
        placed = [(buffers, checked(buffers, place(buffers, seconds=5))) for buffers in cases]
        refused = broken = agreed = 0
        for _ in range(1000):
            buffers, found = draw.choice(placed)
            moved = draw.randrange(len(buffers))
            offsets = list(found.offsets)
            offsets[moved] += draw.choice((-1, 1)) * draw.randint(1, max(1, found.peak // 10))
            says, bad = (
                not _accepted(buffers, offsets, found.peak),
                _collides(buffers, offsets, moved, found.peak),
            )
            refused, broken, agreed = refused + says, broken + bad, agreed + (says == bad)
        text = f"{refused} refused, {broken} invalid by brute force, equal verdicts {agreed}/1000"
        met = agreed == 1000 and (name == "training steps" or refused == 1000)
        yield Row("F10", f"one buffer moved, {name}", text, "each invalid one refused", met)


def _accepted(buffers: Sequence[Interval], offsets: Sequence[int], arena: Bytes) -> bool:
    rows = [
        Judged(size, start, end, offset=offset)
        for (size, start, end), offset in zip(buffers, offsets, strict=True)
    ]
    try:
        check_offsets(rows, arena=arena, alignment=1)
    except JudgeError:
        return False
    return True


def _collides(buffers: Sequence[Interval], offsets: Sequence[int], moved: int, arena: Bytes) -> bool:
    """Compare the moved buffer with every other."""
    size, start, end = buffers[moved]
    low = offsets[moved]
    return not 0 <= low <= arena - size or any(
        j != moved and low < offsets[j] + other and offsets[j] < low + size and start < last and first < end
        for j, (other, first, last) in enumerate(buffers)
    )


def spine(asked: Asked) -> Iterator[Row]:
    """F6: plans at 80 to 40 % of the live bytes."""
    worst_plan = worst = 0.0
    count = 0
    for name in asked.of(planned.NETS[: 2 if asked.quick else None]):
        for share, graph, plan in planned.plans(name, "test" if asked.quick else "bench"):
            given, again, n = planned.arena_ratio(graph, plan)
            count += 1
            worst_plan, worst = max(worst_plan, given), max(worst, again)
            yield Row("F6", f"{name} at {share:.0%}", f"n = {n}, in the plan {given:.4f}, lowest {again:.5f}")
    text = f"worst arena / live bytes of {count} plans {worst_plan:.5f}; placed again for 1 s {worst:.5f}"
    yield Row("F6", "all plans", text, "<= 1.01", count > 0 and worst_plan <= 1.01)


def replay(asked: Asked) -> Iterator[Row]:
    """F11: planned addresses on a CPU."""
    nets = ("gpt2", "resnet18") if asked.quick else ("gpt2", "vit", "resnet18", "unet")
    for row in planned.replays(tuple(asked.of(nets)), "bench", quick=asked.quick):
        text = f"{row['misses']} misses, losses equal {row['losses_equal']}, time {row['interval']}"
        met = not row["misses"] and bool(row["losses_equal"]) and float(str(row["ratio"])) <= 1.05
        yield Row("F11", str(row["net"]), text, "0, equal, <= 1.05", met)


def families(asked: Asked) -> Iterator[Row]:
    """F12: generated instances with a known placement, from seeds on which nothing was tuned."""
    for family in FAMILIES:
        made = [case(family, seed, asked.files) for seed in HELD_OUT[: 20 if asked.quick else None]]
        within: list[float] = []  # peak with the known peak as capacity, over the known peak
        smallest: list[float] = []  # peak without a capacity, over the known peak
        times: list[float] = []
        for seed, one in enumerate(made):
            fit = checked(one.buffers, place(one.buffers, capacity=one.known, seconds=3, seed=seed))
            least = checked(one.buffers, place(one.buffers, seconds=3, seed=seed))
            within.append(max(1.0, fit.peak / one.known))
            smallest.append(max(1.0, least.peak / one.known))
            times.append(fit.cpu_seconds)
        reached = sum(ratio == 1 and time <= 2 for ratio, time in zip(within, times, strict=True))
        worse = sum(a > b for a, b in zip(within, smallest, strict=True))
        text = f"{reached}/{len(made)} in 2 s, worst {max(within):.4f}; median {median(times):.3f} s, "
        text += f"most {max(times):.2f} s; without capacity {smallest.count(1.0)}/{len(made)}, "
        text += f"worst {max(smallest):.4f}, better in {worse}"
        met = reached >= 0.99 * len(made) and max(within) <= 1.005 and not worse
        bar = family in BAR
        wanted = ">= 99 % in 2 s; worst 1.005; never better without" if bar else ""
        yield Row("F12", family, text, wanted, met if bar else None)


QUESTIONS: dict[str, Callable[[Asked], Iterator[Row]]] = {
    "F1": fits,
    "F2": minimised,
    "F3": captured,
    "F4": large,
    "F5": waste_free,
    "F6": spine,
    "F10": mutants,
    "F11": replay,
    "F12": families,
}
