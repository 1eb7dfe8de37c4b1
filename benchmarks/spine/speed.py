"""S7: CPU seconds of capture, seconds to the first feasible plan, and what ten more seconds bring.

    gpt2_deep    GPT-2 of 14 layers x 256, dropout on: about 1,000 ops, and what the bar is judged on
    densenet121  about 1,460 ops, for comparison

The first plan is dated by the search's own progress reports, which come ten times a second; the
budgets are shares of the captured graph's own peak, or a little above the smallest found where that
is more. ``aot_eager`` is what torch's own stack takes for the first training step of the same net without
any planning, after an earlier warm-up of the tracing machinery on a tiny net.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, share
from benchmarks.spine.nets import clean, native
from benchmarks.zoo import Case, build
from benchmarks.zoo.language import LanguageLoss
from tightrope.capture.api import capture_program, measured
from tightrope.core import Forecast, Graph, InfeasibleError
from tightrope.plan import PlanCache, Progress, solve

_DEEP = "gpt2_deep"
_MORE_SECONDS = 10.0
_SHARES = (0.75, 0.5)


def _build(name: str, settings: Settings) -> Case:
    if name != _DEEP:
        return build(name, scale=settings.scale)
    from transformers import GPT2Config, GPT2LMHeadModel

    bench = settings.scale == "bench"
    layers, width, heads, vocab, length = (14, 256, 4, 1024, 256) if bench else (2, 32, 2, 64, 16)
    torch.manual_seed(0)
    options: dict[str, Any] = {"use_cache": False, "attn_implementation": "sdpa"}
    config = GPT2Config(
        vocab_size=vocab,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    net = GPT2LMHeadModel(config)
    net.loss_type = "ForCausalLM"
    ids = torch.randint(vocab, (2, length))
    return Case(name, LanguageLoss(net).train(), (ids, ids.clone()), frozenset())


def _train_once(case: Case) -> float:
    """Return the CPU seconds of the first training step under torch's own stack."""
    clean()
    compiled = torch.compile(case.model, backend="aot_eager")
    start = time.thread_time()
    compiled(*case.inputs).backward()
    spent = time.thread_time() - start
    clean()
    return spent


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Capture, measure and plan one net at two budgets."""
    native()
    _train_once(build("inplace_tied", scale="test"))
    aot = _train_once(_build(name, settings))
    case = _build(name, settings)
    start = time.thread_time()
    program, real = capture_program(case.model, case.inputs)
    capture = time.thread_time() - start
    start = time.thread_time()
    graph = measured(program, real, native()).graph
    head: Row = {
        "net": name,
        "ops": len(graph.ops),
        "aot_eager": aot,
        "capture": capture,
        "price": time.thread_time() - start,
    }
    for portion in _SHARES:
        yield head | _plan(graph, portion, 1.0 if settings.quick else _MORE_SECONDS)


def _plan(graph: Graph, portion: float, more: float) -> Row:
    """Plan with the default effort and note when the first plan was there; then search on."""
    whole = solve(graph, budget=2**60, planner="given").forecast
    cache = PlanCache()
    seen: list[tuple[float, int]] = []

    def watch(now: Progress) -> None:
        if now.best_ns is not None:
            seen.append((now.seconds, now.best_ns))

    def search(budget: int, **options: Any) -> Forecast:
        seen.clear()
        return solve(graph, budget=budget, cache=cache, progress=watch, **options).forecast

    budget = graph.persistent + int(portion * whole.peak)
    start = time.perf_counter()
    try:
        plain = search(budget)
    except InfeasibleError as error:
        if error.smallest_found is None:
            raise
        budget = error.smallest_found + whole.peak // 20
        cache = PlanCache()
        start = time.perf_counter()
        plain = search(budget)
    default = time.perf_counter() - start
    first, first_ns = seen[0] if seen else (default, plain.ns)
    long = search(budget, seconds=more)
    steady = all(later[1] <= earlier[1] for earlier, later in itertools.pairwise(seen))
    return {
        "share": (budget - graph.persistent) / whole.peak,
        "first": first,
        "default": default,
        "first_tdi": 100.0 * (first_ns - plain.base_ns) / plain.base_ns,
        "default_tdi": plain.tdi_percent,
        "more_tdi": long.tdi_percent,
        "never_worse": steady and long.ns <= plain.ns <= first_ns,
    }


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge the graph of about 1,000 ops."""
    judged = [row for row in found if row["net"] == _DEEP or settings.nets]
    capture = max((row["capture"] for row in judged), default=0.0)
    first = max((row["first"] for row in judged), default=0.0)
    worse = sum(not row["never_worse"] for row in judged)
    met = bool(judged) and capture <= 5.0 and first <= 1.0 and not worse
    ops = judged[0]["ops"] if judged else 0
    text = (
        f"{ops} ops: capture {capture:.1f} CPU-s, first plan {first:.2f} s, worse after more search: {worse}"
    )
    return [Verdict("S7", met, text)]


BAR = Bar(
    ids=("S7",),
    title=f"Capture, first plan, and {_MORE_SECONDS:.0f} more seconds of search",
    columns=(
        Column("net", "net", 12),
        Column("ops", "ops", 6),
        Column("aot_eager", "aot_eager s", 11, lambda value: f"{value:.1f}"),
        Column("capture", "capture s", 9, lambda value: f"{value:.1f}"),
        Column("price", "price s", 8, lambda value: f"{value:.1f}"),
        Column("share", "share", 6, share),
        Column("first", "first s", 8, lambda value: f"{value:.2f}"),
        Column("default", "default s", 9, lambda value: f"{value:.1f}"),
        Column("first_tdi", "TDI first", 9, lambda value: f"{value:.2f}"),
        Column("default_tdi", "default", 8, lambda value: f"{value:.2f}"),
        Column("more_tdi", "more", 8, lambda value: f"{value:.2f}"),
        Column("never_worse", "never worse", 11),
    ),
    cases=lambda settings: settings.choose(_DEEP, "densenet121"),
    rows=rows,
    verdicts=verdicts,
)
