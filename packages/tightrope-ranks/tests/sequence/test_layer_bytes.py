"""Bytes that wait for the backward: the paper's closed forms against captured graphs and against autograd."""

from functools import cache

import pytest
import torch

from tightrope.core import Graph, TightropeError
from tightrope_ranks.sequence.graph import capture_rank, is_collective
from tightrope_ranks.sequence.layers import Division, Mode, Stack
from tightrope_ranks.sequence.policies import cores_again, gather_again, layers_again, schedule_of
from tightrope_ranks.sequence.saved import layer_bytes, measure_saved, saved_bytes
from tightrope_shared.attention import TransformerShape

SIZES = {"22B": (64, 6144, 4), "175B": (96, 12288, 1), "530B": (128, 20480, 1), "1T": (160, 25600, 1)}
RATIOS = {"22B": 6.196, "175B": 5.412, "530B": 4.941, "1T": 4.941}


def paper(size: str) -> TransformerShape:
    heads, hidden, batch = SIZES[size]
    return TransformerShape(s=2048, b=batch, h=hidden, a=heads, layers=2, t=8)


@cache
def graph(size: str, mode: Mode) -> Graph:
    return capture_rank(paper(size), Division(mode=mode, ranks=1 if mode == "serial" else 8))


@pytest.mark.slow
def test_the_graph_saves_what_the_closed_forms_say() -> None:
    size, shape = "22B", paper("22B")
    whole, tensor, rows = (graph(size, mode) for mode in ("serial", "tensor", "sequence"))
    gathers, cores = gather_again(rows), cores_again(rows)
    found = {
        "none": saved_bytes(whole, schedule_of(whole)),
        "selective": saved_bytes(whole, schedule_of(whole, cores_again(whole))),
        "full": saved_bytes(whole, schedule_of(whole, layers_again(whole))),
        "tensor": saved_bytes(tensor, schedule_of(tensor)),
        "tensor+selective": saved_bytes(tensor, schedule_of(tensor, cores_again(tensor))),
        "sequence": saved_bytes(rows, schedule_of(rows, gathers)),
        "sequence+selective": saved_bytes(rows, schedule_of(rows, gathers, cores)),
    }
    for technique, bytes_ in found.items():
        wanted = layer_bytes(shape, technique) * shape.layers  # type: ignore[arg-type]
        extra = shape.s * shape.b * shape.h if technique == "full" else 0  # what is between the layers stays
        assert bytes_ == pytest.approx(wanted + extra, rel=0.25 if extra else 1e-3), technique


@pytest.mark.parametrize("size", SIZES)
def test_the_ratio_of_the_paper(size: str) -> None:
    shape = paper(size)
    ratio = layer_bytes(shape, "tensor") / layer_bytes(shape, "sequence+selective")
    assert ratio == pytest.approx(RATIOS[size], abs=1e-3)


@pytest.mark.slow
def test_autograd_saves_what_the_graph_says() -> None:
    shape = TransformerShape(s=64, b=2, h=128, a=4, layers=2)
    rows = torch.randn(64, 2, 128, dtype=torch.bfloat16, requires_grad=True)
    for attention in ("plain", "again"):
        division = Division(attention=attention)  # type: ignore[arg-type]
        model = Stack(2, 128, 4, 64, division, dropout=0.1, dtype=torch.bfloat16)
        captured = capture_rank(shape, Division())
        sets = [cores_again(captured)] if attention == "again" else []
        measured = measure_saved(model, lambda model=model: model(rows))  # type: ignore[misc]
        assert saved_bytes(captured, schedule_of(captured, *sets)) == pytest.approx(measured, rel=0.01)


def test_a_rank_of_a_thousand_is_captured_without_any_other() -> None:
    shape = TransformerShape(s=2048, b=1, h=32768, a=1024, t=1024)
    found = capture_rank(shape, Division(mode="sequence", ranks=1024))
    gathers = schedule_of(found, gather_again(found))
    assert sum(is_collective(op) for op in found.ops) == 8
    assert saved_bytes(found, gathers) == pytest.approx(layer_bytes(shape, "sequence"), rel=0.01)


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(TightropeError, match="ranks must divide heads"):
        Stack(1, 32, 4, 8, Division(mode="sequence", ranks=3))
    with pytest.raises(TightropeError, match="ranks=2 with mode='serial'"):
        Division(ranks=2)
    with pytest.raises(TightropeError, match="give one of none, tensor"):
        layer_bytes(TransformerShape(s=1, b=1, h=1, a=1), "half")  # type: ignore[arg-type]
