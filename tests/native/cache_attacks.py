"""Attacks of one user on the cache of another one, run by root; see `test_cache_attacks`."""

import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from tightrope.core import Graph, Op, Plan, Storage, cache
from tightrope.plan import KeptPlans, kept, solve
from tightrope.plan.cache import graph_key
from tightrope.price import Measured, PriceStore

VICTIM, ATTACKER, GROUP = 45_001, 45_002, 45_003
GRAPH: Final = Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))
ENVIRONMENT: Final = (("attack", "of a test"),)
PLANTED: Final = b"planted"
PER_ATTACK, SWAPS = 6, 90


def plant(folder: Path, plan: Plan) -> None:
    """Put files of every kind where the library would look for them, whoever runs this."""
    key = folder / "plans/1-0" / graph_key(GRAPH)
    key.mkdir(parents=True)
    from tightrope.core.codec import dump_plan

    (key / f"planted-{plan.budget}.json").write_bytes(dump_plan(plan))
    (folder / PriceStore(ENVIRONMENT, folder).name).write_bytes(msgspec.json.encode({"planted": Measured(1)}))
    (folder / "library.so").write_bytes(PLANTED)
    for number in range(5):  # more than are kept: the oldest are removed
        (folder / "plans/1-0" / f"{number:032x}").mkdir()
        (folder / "plans/1-0" / f"{number:032x}" / "thesis.json").write_text("a chapter")
        budget = plan.budget + number
        (key / f"mine-{budget}.json").write_bytes(dump_plan(msgspec.structs.replace(plan, budget=budget)))


class Scene:
    """Folders of a trial.

    Attributes:
        top: of root.
        home: of the victim, with files that have the names of kept ones.
        shared: where the attacker may make what he likes.
        cache: what the victim takes for his cache.
    """

    def __init__(self, top: Path, plan: Plan) -> None:
        self.top, self.plan = top, plan
        self.home, self.shared = top / "home", top / "shared"
        self.cache = self.shared / "cache"
        self.home.mkdir(parents=True)
        plant(self.home / "thesis", plan)
        give(self.home, VICTIM)
        self.home.chmod(0o755)
        self.shared.mkdir()
        self.shared.chmod(0o1777)

    def state(self) -> str:
        """Hash what the victim has."""
        found = []
        for path in sorted((self.home / "thesis").rglob("*")):
            data = path.read_bytes() if path.is_file() else b""
            found.append((str(path), path.lstat().st_mode, path.lstat().st_mtime_ns, data))
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def made(self, user: int, mode: int = 0o755) -> None:
        """Make a cache of a user in which everything is planted."""
        plant(self.cache, self.plan)
        give(self.cache, ATTACKER)
        os.chown(self.cache, user, GROUP)
        self.cache.chmod(mode)

    def linked(self, *, names: Sequence[str], mode: int) -> None:
        """Make a cache of the victim in which one name is a link to the same of his files."""
        self.cache.mkdir()
        below = self.cache
        for name in names[:-1]:
            (below := below / name).mkdir()
        (below / names[-1]).symlink_to(self.home / "thesis" / Path(*names))
        give(self.cache, VICTIM)
        os.chown(below / names[-1], ATTACKER, GROUP, follow_symlinks=False)
        self.cache.chmod(mode)


def give(top: Path, user: int) -> None:
    for path in (top, *top.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


def link_to_thesis(scene: Scene) -> None:
    scene.cache.symlink_to(scene.home / "thesis")
    os.chown(scene.cache, ATTACKER, GROUP, follow_symlinks=False)


def below_a_folder_of_the_attacker(scene: Scene) -> None:
    os.chown(scene.shared, ATTACKER, GROUP)
    scene.shared.chmod(0o755)
    scene.cache.symlink_to(scene.home / "thesis")
    os.chown(scene.cache, VICTIM, GROUP, follow_symlinks=False)  # as the victim once made it


def temporary(scene: Scene) -> None:
    scene.made(ATTACKER)
    (scene.top / "tmp" / f"tightrope-{VICTIM}").symlink_to(scene.home / "thesis")
    os.chown(scene.top / "tmp" / f"tightrope-{VICTIM}", ATTACKER, GROUP, follow_symlinks=False)


_KEY: Final = ("plans", "1-0", graph_key(GRAPH))


def _attacks(plan: Plan) -> dict[str, Callable[[Scene], None]]:
    links = {
        "plans": ("plans",), "the seed": _KEY[:2], "the graph": _KEY,
        "a plan": (*_KEY, f"planted-{plan.budget}.json"),
        "prices": (PriceStore(ENVIRONMENT, Path("/nothing")).name,), "a library": ("library.so",),
    }  # fmt: skip
    found: dict[str, Callable[[Scene], None]] = {
        "a cache of the attacker": lambda scene: scene.made(ATTACKER),
        "a cache that a group may write": lambda scene: scene.made(VICTIM, 0o770),
        "a cache that everybody may write": lambda scene: scene.made(VICTIM, 0o777),
        "files of the attacker in a cache that was open": lambda scene: scene.made(VICTIM, 0o700),
        "a link to the victim's files": link_to_thesis,
        "below a folder of the attacker": below_a_folder_of_the_attacker,
        "a link among temporary files": temporary,
    }
    for what, names in links.items():
        for mode in (0o700, 0o770):
            open_ = "" if mode == 0o700 else ", open"
            found[f"{what} as a link{open_}"] = partial(Scene.linked, names=names, mode=mode)
    return found


def use(scene: Scene, times: int = 1) -> list[str]:
    """Do as the victim what the library does with a cache; say what of the attacker's was believed."""
    wrong = [one for _ in range(times - 1) for one in use(scene)]
    os.environ["TIGHTROPE_CACHE"], os.environ["TMPDIR"] = str(scene.cache), str(scene.top / "tmp")
    cache.tempfile.tempdir = None
    plans = KeptPlans(0)
    if plans.exact(GRAPH, budget=scene.plan.budget, planner="planted") is not None:
        wrong.append("a plan")
    for number in range(3):
        plans.store(GRAPH, msgspec.structs.replace(scene.plan, budget=2**20 + number), planner="own")
    prices = PriceStore(ENVIRONMENT)
    if prices.get("planted") is not None:
        wrong.append("prices")
    prices.put("own", Measured(2))
    prices.save()
    for folder in cache.folders():
        found = folder.find("library.so", run=True)
        if found is not None and found.read_bytes() == PLANTED:
            wrong.append("a library")
        with suppress(OSError), folder.building("library.so") as path:
            path.write_bytes(b"own")
    return wrong


def as_user(user: int, what: Callable[[], Any]) -> Callable[[], Any]:
    """Begin something as a user; the result waits for it and gives what it found."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([GROUP])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            answer = msgspec.json.encode(what())
        except BaseException as error:
            answer = msgspec.json.encode([f"{type(error).__name__}: {error}"])
        os.write(write, answer)
        os._exit(0)
    os.close(write)

    def wait() -> Any:
        with os.fdopen(read, "rb") as stream:
            found = stream.read()
        os.waitpid(child, 0)
        return msgspec.json.decode(found)

    wait.child = child  # type: ignore[attr-defined]
    return wait


def swap_for_ever(scene: Scene) -> None:
    """Put a folder of the attacker, and a link to the victim's files, in the place of the cache in turns."""
    (own := scene.shared / "own").mkdir()
    plant(own / "cache", scene.plan)
    (own / "link").symlink_to(scene.home / "thesis")
    while True:
        for one in ("cache", "link"):
            with suppress(OSError):
                os.rename(own / one, scene.cache)
                os.rename(scene.cache, own / one)


def swapped(scene: Scene) -> list[str]:
    """Use the cache again and again, as the victim, who removes it in between where it is his."""
    wrong = []
    for _ in range(SWAPS):
        wrong += use(scene)
        with suppress(OSError):
            shutil.rmtree(scene.cache)
    return wrong


def run(top: str, *, sabotage: bool) -> dict[str, Any]:
    """Attack; return the number of trials, and what went wrong in which.

    Args:
        top: a new folder that everybody can reach.
        sabotage: whether nothing is checked and every link is followed, as a judge of this test.
    """
    kept._MOST_PLANS = kept._MOST_GRAPHS = 1  # type: ignore[misc]
    if sabotage:
        cache._Way._judge = lambda self: None  # type: ignore[method-assign]
        cache._Way.judge_end = lambda self, own: None  # type: ignore[method-assign, misc, assignment]
        cache._FLAGS = os.O_CLOEXEC  # type: ignore[misc]
        cache._FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # type: ignore[misc]
    plan = solve(GRAPH, budget=2**20)
    num_trials, wrong = 0, []
    for name, attack in _attacks(plan).items():
        scene = begun(Path(top) / name, plan)
        attack(scene)
        before = scene.state()
        believed = as_user(VICTIM, partial(use, scene, PER_ATTACK))()
        num_trials += PER_ATTACK
        wrong += [f"{name}: {one}" for one in sorted(set(believed))]
        wrong += [f"{name}: files changed"] if scene.state() != before else []
    scene = begun(Path(top) / "swap", plan)
    before = scene.state()
    attacker = as_user(ATTACKER, lambda: swap_for_ever(scene))
    wrong += [f"swap: {one}" for one in sorted(set(as_user(VICTIM, lambda: swapped(scene))()))]
    os.kill(attacker.child, signal.SIGKILL)  # type: ignore[attr-defined]
    os.waitpid(attacker.child, 0)  # type: ignore[attr-defined]
    wrong += ["swap: files changed"] if scene.state() != before else []
    return {"num_trials": num_trials + SWAPS, "wrong": wrong}


def begun(top: Path, plan: Plan) -> Scene:
    top.mkdir()
    (top / "tmp").mkdir()
    (top / "tmp").chmod(0o1777)
    return Scene(top, plan)
