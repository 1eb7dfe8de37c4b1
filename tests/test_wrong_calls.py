"""Wrong calls of the public surface: each is refused by name, with what came and what to give."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tightrope
from tightrope import Graph, Machine, Plan, TightropeError
from tightrope.core import Forecast, Op, Schedule, Storage, Tier
from tightrope.run.ledger.accounts import accounts

GRAPH = Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))
PLAN = Plan("0" * 64, Schedule(()), (), 1024, Forecast(0, 0, 0))
BATCH = torch.ones(2, 4)


def net() -> torch.nn.Module:
    return torch.nn.Linear(4, 4)


def compiling(model: Any = None, **options: Any) -> Callable[[], Any]:
    return lambda: tightrope.compile(**{"model": model or net(), "budget": "64MiB", **options})


def stepping(fn: Any = torch.sum, **options: Any) -> Callable[[], Any]:
    return lambda: tightrope.step(fn, **{"model": net(), "budget": "64MiB", **options})


def planning(graph: Any = GRAPH, **options: Any) -> Callable[[], Any]:
    return lambda: tightrope.plan(graph, **{"budget": "1KiB", **options})


def replaying(budget: Any = "1GiB", **options: Any) -> Callable[[], Any]:
    return lambda: tightrope.replay(budget, **options)


class Broken:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


HUGE = 10**40
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    # compile
    "compile None": (lambda: tightrope.compile(None, budget="1GiB"), r"model=None: give a torch\.nn\.Module"),
    "compile a function": (compiling(lambda: 0), r"model=<function .*: give a torch\.nn\.Module"),
    "compile a class": (compiling(torch.nn.Linear), r"model=the class Linear: give .*, made already"),
    "compile text": (compiling("net"), "model='net': give"),
    "compile a broken value": (compiling(Broken()), "model=a value of the class Broken: give"),
    "compile, budget None": (compiling(budget=None), r"budget None is not an amount .*8GiB"),
    "compile, budget text": (compiling(budget="much"), r"budget 'much' .*8GiB"),
    "compile, budget fraction": (compiling(budget=0.9), r"budget 0\.9 .*share.*8GiB"),
    "compile, budget list": (compiling(budget=[1]), r"budget \[1\] .*8GiB"),
    "compile, budget 0": (compiling(budget=0), "budget 0 is 0 bytes: it must lie"),
    "compile, budget negative": (compiling(budget=-5), "budget -5"),
    "compile, budget huge": (compiling(budget=HUGE), "budget 1000.*it must lie"),
    "compile, budget 0%": (compiling(budget="0%"), "budget '0%'"),
    "compile, budget True": (compiling(budget=True), "budget True is not an amount"),
    "compile, budget unit": (compiling(budget="3 parsecs"), "unknown unit 'parsecs'"),
    "compile, budget tensor": (compiling(budget=BATCH), r"budget tensor\("),
    "compile, budget broken": (compiling(budget=Broken()), "budget a value of the class Broken"),
    "compile, machine text": (compiling(machine="x"), r"machine='x': give a tightrope\.Machine.*here\(\)"),
    "compile, machine class": (compiling(machine=Machine), "machine=the class Machine: give"),
    "compile, machine empty": (compiling(machine=Machine("m", ())), r"machine=Machine\(.*no tiers"),
    "compile, machine odd": (compiling(machine=Machine("m", "x")), r"machine=Machine\(.*no tiers"),
    "compile, machine alignment": (
        compiling(machine=Machine("m", (Tier("ram", 2**30, alignment=0),))),
        "needs 0 < alignment",
    ),
    "compile, machine half": (
        compiling(machine=Machine("m", (Tier("ram", 0.5),))),
        "tiers 'ram', bytes is a number: give a whole number",
    ),
    "compile, machine bytes": (
        compiling(machine=Machine("m", (Tier("ram", "x"),))),
        r"machine=Machine\(.*tiers 'ram', bytes is text in quotes: give a whole number",
    ),
    "compile, example ints": (compiling(example=[1]), r"example=\[1\]: the model raises TypeError for it"),
    "format_bytes infinite": (
        lambda: tightrope.core.format_bytes(math.inf),
        "size=inf: give a number of bytes",
    ),
    "compile, verify text": (compiling(verify="yes"), "verify='yes': use \"first\""),
    "compile, verify True": (compiling(verify=True), "verify=True: use"),
    "compile, verify tensor": (compiling(verify=BATCH), r"verify=tensor\(.*: use"),
    "compile, seed text": (compiling(seed="x"), "seed='x': give a whole number"),
    "compile, seed None": (compiling(seed=None), "seed=None: give a whole number"),
    "compile, seed negative": (compiling(seed=-1), "seed=-1: give a whole number, at least 0"),
    "compile, seconds text": (compiling(seconds="5"), "seconds='5': give a number of seconds"),
    "compile, seconds 0": (compiling(seconds=0), "seconds=0: give a number of seconds"),
    "compile, seconds nan": (compiling(seconds=math.nan), "seconds=nan: give a number"),
    "compile, overwrite text": (compiling(overwrite="no"), "overwrite='no': give True or False"),
    "compile, overwrite None": (compiling(overwrite=None), "overwrite=None: give True or False"),
    "compile, fuse 1": (compiling(fuse=1), "fuse=1: give True or False"),
    "compile, seconds huge": (compiling(seconds=1e40), r"seconds=1e\+40: give .*at most 1000000"),
    "compile, seconds digits": (compiling(seconds=10**400), "seconds=1000.*: give .*at most 1000000"),
    "compile, progress text": (compiling(progress="yes"), "progress='yes': give True, False"),
    "compile, example 3": (compiling(example=3), r"example=3: give a tuple .*example=\(x,\)"),
    "compile, example tensor": (compiling(example=BATCH), r"example=tensor\(.*example=\(x,\)"),
    "compile, example text": (compiling(example="xy"), "example='xy': give a tuple"),
    "compile, example keys": (compiling(example={1: BATCH}), r"example=\{1: .*give .* names"),
    # step
    "step 3": (stepping(3), r"fn=3: give a function"),
    "step None": (stepping(None), "fn=None: give a function"),
    "step, model None": (stepping(model=None), r"model=None: give a torch\.nn\.Module"),
    "step, model class": (stepping(model=torch.nn.Linear), "model=the class Linear"),
    "step, optimizer 3": (stepping(optimizer=3), r"optimizer=3: give .*SGD"),
    "step, optimizer class": (stepping(optimizer=torch.optim.SGD), "optimizer=the class SGD: give"),
    "step, budget None": (stepping(budget=None), "budget None"),
    "step, budget text": (stepping(budget="x%"), "budget 'x%'"),
    "step, verify": (stepping(verify=3), "verify=3: use"),
    "step, seed": (stepping(seed=1.5), r"seed=1\.5: give a whole number"),
    "step, seconds": (stepping(seconds=-1), "seconds=-1: give"),
    "step, overwrite": (stepping(overwrite="no"), "overwrite='no': give True or False"),
    "step, seconds huge": (stepping(seconds=1e40), "seconds=1e.40: give"),
    "step, progress": (stepping(progress=BATCH), r"progress=tensor\("),
    # replay
    "replay None": (replaying(None), "budget None"),
    "replay text": (replaying("x"), "budget 'x'"),
    "replay, percent": (
        replaying("60%"),
        'budget .60%.: replay takes no percentages.*Write bytes, such as "300MiB"',
    ),
    "replay, external text": (replaying(external="1MiB"), "external='1MiB': give a whole number"),
    "replay, external negative": (replaying(external=-1), "external=-1: give"),
    "replay, warmup text": (replaying(warmup="2"), "warmup='2': give"),
    "replay, warmup negative": (replaying(warmup=-2), "warmup=-2: give"),
    "replay, warmup None": (replaying(warmup=None), "warmup=None: give"),
    "replay, seconds text": (replaying(seconds="long"), "seconds='long': give"),
    "replay, seconds nan": (replaying(seconds=math.nan), "seconds=nan: give"),
    "replay, seconds huge": (replaying(seconds=1e40), "seconds=1e.40: give"),
    # capture
    "capture 3": (lambda: tightrope.capture(3), r"model=3: give a torch\.nn\.Module"),
    "capture None": (lambda: tightrope.capture(None), "model=None: give"),
    "capture a class": (lambda: tightrope.capture(torch.nn.Linear, BATCH), "model=the class Linear: give"),
    "capture, no inputs": (lambda: tightrope.capture(net()), "Linear cannot be called .*input"),
    "capture, other inputs": (
        lambda: tightrope.capture(net(), x=BATCH),
        "Linear cannot be called .*its forward takes them",
    ),
    # plan
    "plan 3": (planning(3), r"graph=3: give a tightrope\.Graph, .*capture"),
    "plan a model": (planning(net()), r"graph=Linear\(.*capture"),
    "plan a plan": (planning(PLAN), r"graph=Plan\("),
    "plan, budget None": (planning(budget=None), "budget None"),
    "plan, machine": (planning(machine="x"), "machine='x': give"),
    "plan, planner 3": (planning(planner=3), "no planner 3; there are: auto"),
    "plan, planner list": (planning(planner=[]), r"no planner \[\]; there are: auto"),
    "plan, planner name": (planning(planner="best"), "no planner 'best'; there are: auto"),
    "plan, seconds": (planning(seconds="x"), "seconds='x': give"),
    "plan, seconds huge": (planning(seconds=1e40), "seconds=1e.40: give"),
    "plan, seed": (planning(seed="x"), "seed='x': give"),
    # report
    "report 3": (lambda: tightrope.report(3), r"report of 3: give .*compile"),
    "report None": (lambda: tightrope.report(None), "report of None: give"),
    "report a function": (lambda: tightrope.report(net), "report of <function net.*: give"),
    "report the package": (lambda: tightrope.report(tightrope), "report of <module 'tightrope'.*: give"),
    "report a class": (lambda: tightrope.report(tightrope.TrainingStep), "report of the class TrainingStep"),
    "report a graph": (lambda: tightrope.report(GRAPH), r"report of Graph\("),
    "report a plain model": (lambda: tightrope.report(net()), "Linear was not compiled"),
    # files and figures
    "Machine.parse 3": (lambda: Machine.parse(3), "text=3: give"),
    "Machine.parse text": (lambda: Machine.parse("x"), "'x' as a machine profile is not TOML"),
    "Machine.load 3": (lambda: Machine.load(3), "path=3: give the path"),
    "Machine.load None": (lambda: Machine.load(None), "path=None: give the path"),
    "Plan.load 3": (lambda: Plan.load(3), "path=3: give the path"),
    "Plan.load None": (lambda: Plan.load(None), "path=None: give the path"),
    "Plan.save 3": (lambda: PLAN.save(3.5), r"path=3\.5: give the path"),
    "Plan.diff 3": (lambda: PLAN.diff(3), "other=3: give a plan"),
    "Plan.explain 3": (lambda: PLAN.explain(3), "graph=3: give"),
    "Plan.explain, top": (lambda: PLAN.explain(top="x"), "top='x': give a whole number"),
    "parse_bytes None": (lambda: tightrope.parse_bytes(None), "budget None is not an amount"),
    "parse_bytes, whole": (lambda: tightrope.parse_bytes("9%", whole="x"), "whole='x': give a whole number"),
    "format_bytes text": (lambda: tightrope.format_bytes("3"), "size='3': give a number of bytes"),
    "format_bytes None": (lambda: tightrope.format_bytes(None), "size=None: give a number of bytes"),
}


@pytest.fixture(autouse=True)
def _no_budget_is_left() -> Iterator[None]:
    before = accounts().budget
    yield
    assert accounts().budget == before, "a refused call holds the process to nothing"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_by_name(name: str) -> None:
    call, says = WRONG[name]
    with pytest.raises(TightropeError, match=says) as caught:
        call()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("public", ["seed", "seconds", "progress", "budget", "verify"])
@pytest.mark.parametrize("value", [b"x", [], {}, object(), BATCH, 1j, Broken(), "x" * 10_000, net])
def test_no_option_of_the_backend_by_name_raises_from_within(public: str, value: object) -> None:
    from tightrope.integrations.dynamo import backend

    graph = torch.fx.symbolic_trace(net())
    with pytest.raises(TightropeError, match=public):
        backend(graph, [BATCH], options={"budget": "64MiB", public: value})
