"""U6: a Llama-like net with 128,256 words: what its loss in chunks of rows saves, and what it costs.

The numbers are those that refusals of `tightrope.step` name, with chunks and without. Timed are steps in
chunks, 40 % below the number without chunks and at the smallest one; each is paired with the step without
chunks at its own smallest number, both planned, both in this process.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tightrope
from benchmarks._measure import paired_ratio
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, share
from benchmarks.spine.nets import clean, native
from benchmarks.zoo.language import LanguageLoss
from tightrope.core import Bytes, InfeasibleError, TightropeError, format_bytes
from tightrope.run.ledger.accounts import accounts

_FALL, _SLOWER = 0.4, 1.05
_NAME = "llama_128k"
_NUM_PAIRS = 6
_TOO_LITTLE: Bytes = 2**20


@dataclass(frozen=True, slots=True)
class _Timed:
    """A planned whole step, to be timed beside another."""

    train: tightrope.TrainingStep
    ids: torch.Tensor

    def clear(self) -> None:
        """Do nothing: a whole step leaves no gradients behind."""

    def seconds(self) -> float:
        """Return the thread-CPU seconds of one step."""
        start = time.thread_time()
        self.train(self.ids, self.ids)
        return time.thread_time() - start


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Find both smallest numbers, then time steps in chunks at two of them."""
    native()
    whole, least = _named(settings, chunk=False), _named(settings, chunk="auto")
    head: Row = {"net": name, "whole": whole}
    points = (("40 % below", round((1 - _FALL) * whole)), ("smallest", least))
    for who, budget in points:
        yield (
            head | {"who": who, "budget": budget, "fall": 1 - budget / whole} | _time(settings, whole, budget)
        )


def _time(settings: Settings, whole: Bytes, budget: Bytes) -> Row:
    clean()
    base = _step(settings, 2 * whole, chunk=False)
    beside = accounts().charged()  # each step is there while the other one runs
    base = _step(settings, whole + beside, chunk=False)
    step = _step(settings, budget + beside)
    first, second = (float(one.train(one.ids, one.ids)) for one in (base, step))
    seen = step.train.report()
    row: Row = {
        "chunks": seen.num_chunks,
        "tdi": seen.overhead,
        "observed": seen.observed_total - beside,
        "gap": seen.forecast_peak - seen.observed_peak,
        "same": first == second,
    }
    ratio = paired_ratio(step, base, num_pairs=_NUM_PAIRS // 2 if settings.quick else _NUM_PAIRS)
    for one in (step, base):
        accounts().release(one.train)
    return row | {"ratio": ratio.median, "interval": [ratio.low, ratio.high], "time": str(ratio)}


def _named(settings: Settings, **options: Any) -> Bytes:
    """The smallest budget that a refusal names."""
    clean()
    step = _step(settings, _TOO_LITTLE, **options)
    try:
        step.train(step.ids, step.ids)
    except InfeasibleError as error:
        if error.smallest_found is not None:
            return error.smallest_found
    finally:
        accounts().release(step.train)
    raise TightropeError("a step in a megabyte was not refused with a number.")


def _step(settings: Settings, budget: Bytes, **options: Any) -> _Timed:
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary, width, layers, length = (
        (128_256, 256, 4, 512) if settings.scale == "bench" else (4_096, 32, 2, 128)
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    net = LanguageLoss(LlamaForCausalLM(config)).train()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    train = tightrope.step(net, budget=budget, model=net, optimizer=sgd, progress=False, **options)
    return _Timed(train, torch.randint(vocabulary, (2, length)))


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge what chunks save at all, and the time where they save what the bar asks for."""
    del settings
    by_who = {row["who"]: row for row in found}
    there, least = by_who.get("40 % below"), by_who.get("smallest")
    if there is None or least is None:
        return [Verdict("U6", False, "not measured")]
    exact = not there["gap"] and not least["gap"] and there["same"] and least["same"]
    fast = max(there["ratio"], least["ratio"]) <= _SLOWER
    met = least["fall"] >= _FALL and fast and exact
    return [
        Verdict(
            "U6",
            met,
            f"smallest {format_bytes(least['whole'])} without chunks, {format_bytes(least['budget'])} with "
            f"({100 * least['fall']:.0f} % less, {least['time']}x the time); at 40 % less {there['time']}x; "
            f"first losses {'equal' if there['same'] and least['same'] else 'DIFFER'}",
        )
    ]


BAR = Bar(
    ids=("U6",),
    title="A loss over 128,256 classes in chunks of rows",
    columns=(
        Column("net", "net", 11),
        Column("who", "point", 11),
        Column("whole", "without", 11, format_bytes),
        Column("budget", "with", 11, format_bytes),
        Column("fall", "saved", 6, share),
        Column("chunks", "chunks", 7),
        Column("tdi", "TDI %", 6, lambda value: f"{value:.1f}"),
        Column("time", "time/without [95 %]", 24),
        Column("gap", "gap", 5),
        Column("same", "same first loss", 15),
    ),
    cases=lambda settings: (_NAME,),
    rows=rows,
    verdicts=verdicts,
)
