"""``tightrope report`` and ``Report.html``: pages from files, from steps, and clear errors."""

import base64
import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import tightrope
from tests.cli.command import run
from tests.view.test_payload import unpack
from tightrope.core import Graph, Op, Storage, TightropeError
from tightrope.core.codec import dump_graph
from tightrope.plan import solve
from tightrope.record import forecast

TRACES = find_spec("tightrope_trace") is not None
needs_traces = pytest.mark.skipif(not TRACES, reason="tightrope-trace has the file")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A plan beside its graph, a plan for a larger budget, and the trace of the first."""
    storages = (Storage(0, 6400), Storage(1, 6400), Storage(2, 64))
    ops = (
        Op(0, "a", "aten.gelu.default", creates=(0,), ns=700, module="net.act", source="net.py:7"),
        Op(1, "b", "aten.mm.default", reads=(0,), creates=(1,), ns=900, module="net.up"),
        Op(2, "c", "aten.sum.default", reads=(0, 1), creates=(2,), ns=80, module="net"),
    )
    graph = Graph(ops, storages, name="net")
    (tmp_path / "net.graph.json").write_bytes(dump_graph(graph))
    plan = solve(graph, budget=20_000)
    plan.save(tmp_path / "net.plan.json")
    solve(graph, budget=30_000).save(tmp_path / "more.plan.json")
    if TRACES:
        import_module("tightrope_trace").save(forecast(graph, plan), tmp_path / "net.trace")
    return tmp_path


def test_a_page_from_a_plan_and_one_from_a_trace(files: Path) -> None:
    for given in ("net.plan.json", *["net.trace"] * TRACES):
        page = files / "run.html"
        done = run("report", files / given, "-o", page)
        assert done.code == 0
        assert not done.err, "what takes less than two seconds is not announced"
        assert "3 ops, 3 buffers" in done.out
        assert page.read_text().startswith("<!doctype html>")
        page.unlink()


@needs_traces
def test_json_has_the_same_figures(files: Path) -> None:
    page = files / "run.html"
    found = json.loads(run("report", files / "net.trace", "-o", page, "--json").out)
    assert found == {"page": str(page), "ops": 3, "buffers": 3, "bytes": page.stat().st_size}


@needs_traces
def test_plans_for_other_budgets_and_earlier_traces_are_taken(files: Path) -> None:
    more = ("--also", files / "more.plan.json", "--against", files / "net.trace")
    alone = run("report", files / "net.plan.json", "--no-curve", "-o", files / "a.html")
    both = run("report", files / "net.plan.json", *more, "-o", files / "b.html")
    assert (alone.code, both.code) == (0, 0)
    assert (files / "b.html").stat().st_size > (files / "a.html").stat().st_size


@needs_traces
def test_a_curve_is_written_where_the_graph_is_at_hand(files: Path) -> None:
    page = files / "run.html"
    plan, trace = files / "net.plan.json", files / "net.trace"
    for given, points in (
        ((plan,), True),
        ((plan, "--no-curve"), False),
        ((trace,), False),
        ((trace, "--forecast", plan), True),
    ):
        assert run("report", *given, "-o", page).code == 0
        data = page.read_text().split('id="data">')[1].split("</script>")[0]
        curve = unpack(base64.b64decode(data)).header["curve"]
        assert bool(curve) == points
        assert not curve or curve[0][0] <= 20_000


@needs_traces
@pytest.mark.parametrize("cut", [0, 4, 20, 60])
def test_truncated_files_end_in_one_line(files: Path, cut: int) -> None:
    broken = files / "broken.trace"
    broken.write_bytes((files / "net.trace").read_bytes()[:cut])
    done = run("report", broken, "-o", files / "run.html")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert not (files / "run.html").exists()


def test_a_plan_without_its_graph_and_a_missing_file_are_told(files: Path) -> None:
    (files / "net.graph.json").unlink()
    assert "--graph FILE" in run("report", files / "net.plan.json").err
    assert run("report", files / "nothing.trace").code == 2
    (files / "net.trace").write_bytes(b"TRTRACE1")
    assert "--also" in run("report", files / "net.trace", "--also", files / "net.plan.json").err


def test_a_step_draws_its_own_plan() -> None:
    model = tightrope.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), budget="64MiB")
    with pytest.raises(TightropeError, match="run a training step"):
        tightrope.report(model).html()
    model(torch.ones(2, 8)).sum().backward()
    report = tightrope.report(model)
    html = report.html()
    assert html.startswith("<!doctype html>")
    data = html.split('id="data">')[1].split("</script>")[0]
    assert unpack(base64.b64decode(data)).header["curve"], "fewer bytes have a price"
    assert "planned" not in report.to_dict()
