"""X5: calls without a gradient are planned and placed.

Each net runs in evaluation mode under ``no_grad``: as it is, with all the memory it wants, and in the
smallest budget that a refusal names. Peaks count live bytes above what is held when the call begins.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tightrope
from benchmarks._measure import digest
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, count
from benchmarks.spine.nets import UNLIMITED, clean, fresh, held, native
from benchmarks.zoo import Case
from tightrope.core import Bytes, InfeasibleError, TightropeError, format_bytes
from tightrope.run.accounts import accounts
from tightrope.run.compile import compiled_of
from tightrope.run.report import Report
from tightrope.run.room import RESERVE

_NUM_CALLS = 3
_NETS = ("gpt2", "bert", "vit", "resnet18", "unet", "densenet121", "mobilenetv2", "vgg16")


@dataclass(frozen=True)
class _Ran:
    """What some calls under a budget gave."""

    bits: tuple[str, ...]
    report: Report


def _called(case: Case) -> tuple[str, ...]:
    model: Any = case.model
    with torch.no_grad():
        return tuple(digest([_tensor(model(*case.inputs))]) for _ in range(_NUM_CALLS))


def _tensor(value: Any) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def _eager(name: str, settings: Settings) -> tuple[Bytes, tuple[str, ...]]:
    case = fresh(name, settings)
    case.model.eval()
    bits = _called(case)
    gc.collect()
    before = native().stats().live
    native().reset_peaks()
    _called(case)
    return native().stats().live_peak - before, bits


def _planned(name: str, settings: Settings, above: Bytes) -> _Ran:
    case = fresh(name, settings)
    case.model.eval()
    try:
        tightrope.compile(case.model, budget=held(case) + above, progress=False)
        return _Ran(_called(case), tightrope.report(case.model))
    finally:
        with suppress(TightropeError):
            accounts().release(compiled_of(case.model))
        native().limit = None
        del case
        clean()


def _smallest(name: str, settings: Settings) -> Bytes:
    case = fresh(name, settings)
    before = held(case)
    del case
    try:
        _planned(name, settings, RESERVE)
    except InfeasibleError as error:
        return (error.smallest_found or 0) - before
    raise TightropeError(f"{name} runs without a byte above what it holds: that cannot be.")


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Measure one net."""
    peak, wanted = _eager(name, settings)
    ample = _planned(name, settings, UNLIMITED)
    least = _planned(name, settings, _smallest(name, settings))
    both = (ample, least)
    yield {
        "net": name,
        "eager": peak,
        "ample": ample.report.observed_peak,
        "arena": ample.report.arena + ample.report.outside,
        "least": least.report.observed_peak,
        "bits": all(one.bits == wanted for one in both),
        "exact": all(
            one.report.forecast_peak == one.report.observed_peak and not one.report.divergences
            for one in both
        ),
        "checked": all(proof.judged and proof.checked for one in both for proof in one.report.proofs),
    }


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Never above eager, below it on five nets, the same bits, as forecast."""
    del settings
    most = [row["least"] <= row["eager"] and row["ample"] <= row["eager"] for row in found]
    below = [row["least"] < row["eager"] for row in found]
    right = [row["bits"] and row["exact"] and row["checked"] for row in found]
    text = f"at most eager's {count(most)}, below it {count(below)}, bit-equal as forecast {count(right)}"
    return [Verdict("X5", len(found) >= 8 and all(most) and sum(below) >= 5 and all(right), text)]


BAR = Bar(
    ids=("X5",),
    title="Calls without a gradient: eager, with all memory, and in the smallest budget",
    columns=(
        Column("net", "net", 14),
        Column("eager", "eager peak", 11, format_bytes),
        Column("ample", "planned peak", 12, format_bytes),
        Column("arena", "arena", 11, format_bytes),
        Column("least", "smallest peak", 13, format_bytes),
        Column("bits", "bit-equal", 9),
        Column("exact", "as forecast", 11),
        Column("checked", "checked", 7),
    ),
    cases=lambda settings: _NETS[:2] if settings.quick else _NETS,
    rows=rows,
    verdicts=verdicts,
)
