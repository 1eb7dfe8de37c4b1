"""Weights in tiles: less RAM, the same bits."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from test_micro_host import NUM_STEPS, check_bytes, needs_cc

from benchmarks.micro.nets import NETS
from benchmarks.micro.trained import samples, train, worst
from tightrope.core import (
    Flag,
    Graph,
    InfeasibleError,
    Input,
    Kind,
    Machine,
    Op,
    Result,
    Run,
    Storage,
    View,
)
from tightrope.core.values import Part
from tightrope.judge.writes import wrong_write
from tightrope.lower import with_writes
from tightrope.lower.writes import written
from tightrope_micro import MicroStep, compile_step, run_on_host
from tightrope_micro.paging.economy import Economy
from tightrope_micro.tiles import rows_of, tile


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("name", ["residual", "normed", "dense"])
def test_tiles_take_less_and_leave_the_same_bits(
    name: str, steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    _, state, batches = train(NETS[name], NUM_STEPS)
    with pytest.raises(InfeasibleError) as caught:
        compile_step(steps[name], board, ram=2048, tiles=False)
    short = Economy(walks=20)
    whole = compile_step(steps[name], board, ram=caught.value.smallest_found or 0, economy=short)
    assert not whole.planned.tiled.counts
    with pytest.raises(InfeasibleError) as caught:
        compile_step(steps[name], board, ram=2048, maps=False)
    cut = compile_step(steps[name], board, ram=caught.value.smallest_found or 0, maps=False, economy=short)
    assert cut.planned.tiled.counts
    assert cut.manifest.arena < whole.manifest.arena
    runs = [
        run_on_host(one.write(tmp_path / str(k)), samples(one, batches)) for k, one in enumerate((whole, cut))
    ]
    check_bytes(cut, runs[1], board)
    assert runs[0].values == runs[1].values
    assert runs[0].losses == runs[1].losses
    assert worst(runs[1], cut, state) <= 1e-6


def test_the_residual_net_fits_160_kib_of_all_ram(steps: dict[str, MicroStep], board: Machine) -> None:
    limit = 160 * 1024
    with pytest.raises(InfeasibleError, match=r"second.*alone needs 180480 B"):
        compile_step(steps["residual"], board, ram=limit, tiles=False)
    found = compile_step(steps["residual"], board, ram=limit, maps=False, economy=Economy(walks=20))
    assert found.manifest.total <= limit


def test_every_row_of_a_weight_is_in_one_tile(steps: dict[str, MicroStep]) -> None:
    graph = steps["normed"].graph
    rows = rows_of(graph)
    weight = max(rows, key=lambda s: graph.storages[s].bytes)
    assert rows[weight] == 8
    tiled = tile(graph, {weight: 3})
    parts = sorted(first for whole, first in tiled.origin.values() if whole == weight)
    sizes = [s.bytes for s in tiled.graph.storages if tiled.origin.get(s.id, (-1, 0))[0] == weight]
    assert len(parts) == 3
    assert sum(sizes) == graph.storages[weight].bytes
    assert parts == [0, sizes[0], sizes[0] + sizes[1]]


def test_a_convolution_in_groups_stays_whole(steps: dict[str, MicroStep]) -> None:
    graph = steps["pooled"].graph
    grouped = next(s.id for s in graph.storages if s.module == "second.weight")
    assert grouped not in rows_of(graph)
    assert next(s.id for s in graph.storages if s.module == "first.weight") in rows_of(graph)


def test_an_output_that_tiles_filled_is_written_over_only_by_its_last_reader() -> None:
    views = [View(k, "float32", (4,), (1,), input=0 if k == 0 else -1) for k in range(3)]
    storages = (
        Storage(0, 16, Kind.PARAMETER, 4, external=True, home=1),
        *(Storage(k, 16, alignment=4) for k in (1, 2)),
    )

    def graph(*, late: bool) -> Graph:
        fill = {"reads": (0, 1), "mutates": (1,), "flags": Flag.IN_PLACE | Flag.NEVER_RECOMPUTE}
        made = [
            Op(0, "make", "micro.linear", (0,), (1,), arguments=(views[0],), results=(Result(-1, views[1]),))
        ]
        made.append(Op(1, "fill", "micro.linear.into", arguments=(views[0], views[1]), **fill))
        made.append(
            Op(2, "relu", "micro.relu", (1,), (2,), arguments=(views[1],), results=(Result(-1, views[2]),))
        )
        made += [Op(3, "again", "micro.linear.into", arguments=(views[0], views[1]), **fill)] if late else []
        part = Part(len(made), (Input("w", views[0]),), ())
        return with_writes(Graph(tuple(made), storages, parts=(part,), alignment=4))

    found = graph(late=False)
    assert [op.over for op in found.ops] == [-1, -1, 1]
    assert graph(late=True).ops[2].over == -1
    run = written(Run(2, "micro.relu", (views[1],)), views[1])
    assert wrong_write(found, run, found.ops[2], 1) == ""
    forced = replace(graph(late=True).ops[2], over=1)
    assert "changed in place as well" in wrong_write(graph(late=True), run, forced, 1)
