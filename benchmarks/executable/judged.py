"""X1: what is wrong is refused, and judging costs little.

Right executables of nets and random graphs are damaged in eight ways. An interpreter that shares no
code with the judge says which of the results are wrong; the judge, without the plan, must refuse them all.
"""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random

from msgspec.structs import replace

from benchmarks.executable.interpreter import Meaning, interpret
from benchmarks.executable.mutants import FAMILIES, mutate
from benchmarks.executable.sources import Source, of_net, of_seed
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict
from benchmarks.zoo import Scale
from tightrope.core import Copy, TightropeError
from tightrope.judge import judge

NETS = (
    "gpt2 compile", "resnet18 compile", "llama_lora compile", "unet compile", "moe compile",
    "gpt2 step", "mobilenetv2 step", "inplace_tied step", "vit inference", "densenet121 inference",
    "mobilenetv2 pieces", "custom_function pieces",
)  # fmt: skip
"""Nets and how they run."""
NUM_MUTANTS = 5_000
_NUM_SEEDS = 80
_MOST_TRIES = 40
"""Draws per wrong mutant: families that have nothing to change in a source give up after these."""


@cache
def sources(nets: tuple[str, ...], num_seeds: int) -> tuple[Source, ...]:
    """Make the right executables, and check that the interpreter and the judge find nothing wrong with them.

    Raises:
        TightropeError: one of them finds something.
    """
    made = [source for name in nets for source in net_sources(name, "test")]
    made += [s for seed in range(num_seeds) for s in of_seed(seed)]
    for source in made:
        wrong = interpret(
            Meaning(source.graph), source.executable, budget=source.budget, machine=source.machine
        )
        problems = judge(source.graph, source.executable, source.plan, source.machine).problems
        if wrong or problems:
            raise TightropeError(f"{source.name}: interpreter: {wrong}; judge: {problems}.")
    return tuple(made)


@cache
def net_sources(name: str, scale: Scale) -> tuple[Source, ...]:
    """Make the executables of one net, run in one way."""
    net, way = name.split()
    return tuple(of_net(net, way, scale))


def damage(found: Sequence[Source], family: str, number: int, *, seed: int = 0) -> Row:
    """Draw mutants of one family until so many are wrong, and let the judge see them all."""
    rng, counts = Random(f"{family} {seed}"), Counter[str]()
    meanings: dict[str, Meaning] = {}
    missed: list[str] = []
    groups = _groups(found, family)
    for _ in range(number * _MOST_TRIES):
        source = rng.choice(rng.choice(groups))
        mutant = mutate(rng, family, source.graph, source.executable)
        if mutant is None:
            continue
        meaning = meanings.setdefault(source.name, Meaning(source.graph))
        wrong = interpret(meaning, mutant, budget=source.budget, machine=source.machine)
        refused = not judge(source.graph, mutant, None, source.machine).ok
        counts[("equal" if wrong is None else "wrong") + (" refused" if refused else " accepted")] += 1
        if wrong is not None and not refused:
            missed.append(f"{source.name}: {wrong}")
        if counts["wrong refused"] + counts["wrong accepted"] == number:
            break
    return {
        "net": family,
        "made": counts.total(),
        "equal": counts["equal accepted"] + counts["equal refused"],
        "strict": counts["equal refused"],
        "wrong": counts["wrong refused"] + counts["wrong accepted"],
        "refused": counts["wrong refused"],
        "accepted": counts["wrong accepted"],
        "note": "; ".join(missed[:5]),
    }


def _groups(found: Sequence[Source], family: str) -> list[list[Source]]:
    """Nets and random graphs, each as likely; where copies are damaged, those that copy."""
    copying = [s for s in found if any(isinstance(i, Copy) for i in s.executable.instructions)]
    chosen = copying if family == "missing wait" else list(found)
    parts = [[s for s in chosen if s.name.startswith("random") is random] for random in (True, False)]
    parts.append([] if family == "missing wait" else copying)
    return [part for part in parts if part]


def rows(case: str, settings: Settings) -> Iterator[Row]:
    """Measure one family."""
    found = sources(NETS[::3] if settings.quick else NETS, 20 if settings.quick else _NUM_SEEDS)
    yield damage(found, case, (400 if settings.quick else NUM_MUTANTS) // len(FAMILIES))


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """All that are wrong were refused, and there were enough of them."""
    wrong, accepted = sum(row["wrong"] for row in found), sum(row["accepted"] for row in found)
    text = (
        f"{wrong} wrong executables of {len(found)} families, {accepted} accepted; "
        f"{sum(row['equal'] for row in found)} more were right, "
        f"of which {sum(row['strict'] for row in found)} were refused for their form"
    )
    return [Verdict("X1", accepted == 0 and wrong >= (400 if settings.quick else NUM_MUTANTS), text)]


MUTANTS = Bar(
    ids=("X1",),
    title="Damaged executables, judged without their plan",
    columns=(
        Column("net", "family", 20),
        Column("made", "made", 6),
        Column("equal", "right", 6),
        Column("strict", "right, refused", 14),
        Column("wrong", "wrong", 6),
        Column("refused", "refused", 8),
        Column("accepted", "accepted", 8),
        Column("note", "note", 40),
    ),
    cases=lambda _: tuple(FAMILIES),
    rows=rows,
    verdicts=verdicts,
)


# cost


def cost(case: str, settings: Settings) -> Iterator[Row]:
    """Time the judge on executables of one net, beside the planning of each."""
    for source in net_sources(case, settings.scale):
        if not source.seconds:
            continue
        first, took = (
            _judging(source, first=first, times=3 if settings.quick else 9) for first in (True, False)
        )
        yield {
            "net": source.name,
            "ops": source.executable.num_runs,
            "instructions": len(source.executable.instructions),
            "first": 1e3 * first,
            "judged": 1e3 * took,
            "rate": 1e6 * took / source.executable.num_runs,
            "planned": 1e3 * source.seconds,
            "share": 100 * took / source.seconds,
        }


def _judging(source: Source, *, first: bool, times: int) -> float:
    """CPU seconds of judging a new executable; the first one of a graph checks the graph too.

    The least of several counts: others who share the cores only add to it.
    """
    took = []
    for _ in range(times):
        graph, executable = replace(source.graph) if first else source.graph, replace(source.executable)
        if first:
            assert graph.fingerprint  # known since the graph was planned
        began = time.thread_time()
        judge(graph, executable, source.plan, source.machine)
        took.append(time.thread_time() - began)
    return min(took)


def cost_verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Median and worst of both figures."""
    del settings
    rates, shares = [row["rate"] for row in found], [row["share"] for row in found]
    firsts = [1e3 * row["first"] / row["ops"] for row in found]
    text = (
        f"ms per 1,000 ops: median {statistics.median(rates):.1f}, worst {max(rates):.1f} "
        f"(first of a graph: {statistics.median(firsts):.1f}, {max(firsts):.1f}); "
        f"% of planning: median {statistics.median(shares):.2f}, worst {max(shares):.2f}"
    )
    return [Verdict("X1", max(rates) <= 60 and max(shares) <= 10, text)]


COST = Bar(
    ids=("X1",),
    title="What judging costs, beside planning",
    columns=(
        Column("net", "executable", 36),
        Column("ops", "runs", 6),
        Column("instructions", "instructions", 12),
        Column("first", "first ms", 9, lambda value: f"{value:.1f}"),
        Column("judged", "judge ms", 9, lambda value: f"{value:.1f}"),
        Column("rate", "ms/1,000", 9, lambda value: f"{value:.1f}"),
        Column("planned", "plan ms", 9, lambda value: f"{value:.0f}"),
        Column("share", "%", 6, lambda value: f"{value:.2f}"),
    ),
    cases=lambda settings: NETS[::3] if settings.quick else NETS,
    rows=cost,
    verdicts=cost_verdicts,
)
