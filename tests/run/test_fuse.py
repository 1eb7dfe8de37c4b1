"""Fused plans: budget, forecast and random streams of the unfused ones; values within a tolerance."""

import gc
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import tightrope
import tightrope.fuse.build
import tightrope.run.session.unit
from tightrope.core import (
    Alloc,
    Executable,
    Flag,
    Fused,
    JudgeError,
    Plan,
    PlanFileError,
    Release,
    Run,
    TightropeError,
    VerificationError,
    View,
)
from tightrope.core.codec import dump_executable, dump_plan, load_executable, load_plan
from tightrope.core.executable_check import check_executable
from tightrope.core.values import INNER
from tightrope.fuse.choose import Candidate, _without_worst
from tightrope.fuse.program import FusedProgram
from tightrope.fuse.tolerance import WHOLE_STEP, difference
from tightrope.judge import walk_executable
from tightrope.lower import lower
from tightrope.lower.writes import written as written_over
from tightrope.price.measure import Measured
from tightrope.record.forecast import forecast
from tightrope.run.compile import compiled_of
from tightrope.run.execute.check import StretchCheck
from tightrope.run.execute.contest import STEPS
from tightrope.run.execute.prepared import Prepared
from tightrope.run.ledger.accounts import accounts

ROWS, WIDTH = 512, 128


@pytest.fixture(autouse=True)
def _no_leftovers() -> None:
    """The process is held to the largest budget alive: let models of earlier tests go."""
    gc.collect()


class Block(nn.Module):
    """A mixer with what fuses: GELU by its formula, layer norm, residuals, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(self.norm(x))
        y = 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.04 * y.pow(3))))
        return x + self.drop(self.down(y)) * 0.9


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block())


def train(model: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    """Losses and gradients of some steps from a fixed random state."""
    torch.manual_seed(1)
    found: list[torch.Tensor] = []
    for _ in range(steps):
        model.zero_grad()
        loss = model(torch.randn(ROWS, WIDTH)).square().mean()
        loss.backward()
        found += [loss.detach().clone(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return [*found, torch.get_rng_state()]


def prepared_of(model: nn.Module) -> Prepared:
    found: Prepared = compiled_of(model).calls.recent[0].prepared
    return found


@pytest.fixture(scope="module")
def fused() -> Iterator[nn.Module]:
    model = tightrope.compile(net(), budget="64MiB", fuse=True)
    train(model)
    yield model
    accounts().release(compiled_of(model))


@pytest.mark.few(1)
@pytest.mark.parametrize("budget", ["64MiB", "90%"])
def test_values_are_those_of_eager_within_the_tolerance(budget: str) -> None:
    wanted = train(net())
    model = tightrope.compile(net(), budget=budget, fuse=True, verify="graph")
    found = train(model)
    assert torch.equal(found.pop(), wanted.pop())  # the random state
    with accounts().unlimited():
        assert max(map(difference, found, wanted)) <= WHOLE_STEP
    seen = tightrope.report(model)
    assert seen.level == "L2"
    assert seen.forecast_peak == seen.observed_peak
    assert seen.divergences == 0
    assert seen.observed_total <= seen.budget
    assert "within a tolerance" in seen.verified


def test_results_apart_from_the_plain_graph_are_told_with_their_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tightrope.run.execute.reference.WHOLE_STEP", 0)
    model = tightrope.compile(net(), budget="64MiB", fuse=True, verify="graph")
    with pytest.raises(VerificationError, match=r'rounding may add up.*verify="first"'):
        train(model)


def test_fewer_bytes_or_less_time_than_op_by_op(fused: nn.Module) -> None:
    plan = prepared_of(fused).plan
    assert plan.stretches
    assert plan.forecast.ns < plan.forecast.base_ns
    assert {reason.decision for reason in plan.reasons} >= {"kept", "fused"}
    assert not plan.certificate.proved


def test_a_fused_plan_and_executable_outlive_a_file(fused: nn.Module) -> None:
    made = prepared_of(fused)
    assert load_plan(dump_plan(made.plan)) == made.plan
    assert load_executable(dump_executable(made.executable)) == made.executable
    assert lower(made.graph, made.plan) == made.executable


@pytest.mark.slow
def test_the_page_shows_a_fused_plan(fused: nn.Module) -> None:
    made = prepared_of(fused)
    names = [event.name for event in forecast(made.graph, made.plan).events]
    assert sum(name.startswith("fused: ") for name in names) == len(made.plan.stretches)
    assert tightrope.report(fused).html()


@pytest.fixture
def ops_as_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the layouts and the kernels of the model, so that a step that is not fused has eager's bits."""
    for module in ("session.fused", "step"):
        monkeypatch.setattr(f"tightrope.run.{module}.faster_form", lambda *_: None)


@pytest.mark.usefixtures("ops_as_captured")
def test_a_fused_step_is_not_saved(tmp_path: Path) -> None:
    model, batch = net_with_lone_ops(), torch.randn(ROWS, WIDTH)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = tightrope.step(
        lambda x: model(x).square().mean(), budget="200%", model=model, optimizer=sgd, fuse=True, verify=None
    )
    step(batch)
    for level in ("L2", "L1"):  # while it runs op by op in turns too
        for _ in range(STEPS):
            if tightrope.report(step).level == level:
                break
            step(batch)
        assert tightrope.report(step).level == level
        with pytest.raises(TightropeError, match="Compile without fuse=True"):
            tightrope.save(step, tmp_path / "fused.step", (batch,))
    assert not list(tmp_path.iterdir())


def changed(executable: Executable, change: Callable[[Fused], Fused]) -> Executable:
    """Change the first stretch that has several runs."""
    at = next(k for k, i in enumerate(executable.instructions) if isinstance(i, Fused))
    before = executable.instructions[at]
    assert isinstance(before, Fused)
    rest = executable.instructions
    return Executable(
        executable.graph, executable.spaces, (*rest[:at], change(before), *rest[at + 1 :]), executable.machine
    )


def _shorter(fused: Fused) -> Fused:
    return Fused(fused.runs[:-1], fused.inside, fused.ns)


def _swapped(fused: Fused) -> Fused:
    return Fused((*fused.runs[1:], fused.runs[0]), fused.inside, fused.ns)


def _smaller(fused: Fused) -> Fused:
    first = next(event for event in fused.inside if isinstance(event, Alloc))
    less = Alloc(first.buffer, first.space, first.bytes - 64, first.offset, first.storage)
    return Fused(fused.runs, tuple(less if event is first else event for event in fused.inside), fused.ns)


def _without_memory(fused: Fused) -> Fused:
    return Fused(fused.runs, (), fused.ns)


def _twice(fused: Fused) -> Fused:
    return Fused((*fused.runs, fused.runs[-1]), fused.inside, fused.ns)


@pytest.mark.parametrize("change", [_shorter, _swapped, _smaller, _without_memory, _twice])
def test_the_judge_refuses_wrong_stretches(fused: nn.Module, change: Callable[[Fused], Fused]) -> None:
    made = prepared_of(fused)
    walk_executable(made.graph, made.executable)
    with pytest.raises((JudgeError, PlanFileError)):
        walk_executable(made.graph, changed(made.executable, change))


def test_a_view_beyond_a_value_inside_a_stretch_is_refused(fused: nn.Module) -> None:
    def beyond(stretch: Fused) -> Fused:
        run = next(run for run in stretch.runs if inner(run))
        wider = tuple(
            replace(v, offset=1) if isinstance(v, View) and v.base <= INNER else v for v in run.arguments
        )
        runs = tuple(replace(one, arguments=wider) if one is run else one for one in stretch.runs)
        return replace(stretch, runs=runs)

    def inner(run: Run) -> bool:
        return any(isinstance(v, View) and v.base <= INNER for v in run.arguments)

    made = prepared_of(fused)
    check_executable(made.executable)
    with pytest.raises(PlanFileError, match="inside its buffer: it ends at byte"):
        check_executable(changed(made.executable, beyond))


@pytest.mark.parametrize("flag", [Flag.RANDOM, Flag.IN_PLACE, Flag.SIDE_EFFECT, Flag.NEVER_RECOMPUTE])
def test_the_judge_refuses_ops_with_effects_inside_stretches(fused: nn.Module, flag: Flag) -> None:
    made = prepared_of(fused)
    first = next(i for i in made.executable.instructions if isinstance(i, Fused)).runs[0].op
    ops = tuple(replace(op, flags=flag) if op.id == first else op for op in made.graph.ops)
    graph = replace(made.graph, ops=ops)
    executable = replace(made.executable, graph=graph.fingerprint)
    if flag is Flag.NEVER_RECOMPUTE:
        walk_executable(graph, executable)
    else:
        with pytest.raises(JudgeError, match="it runs alone"):
            walk_executable(graph, executable)


def test_random_ops_stay_alone(fused: nn.Module) -> None:
    made = prepared_of(fused)
    inside = [run for i in made.executable.instructions if isinstance(i, Fused) for run in i.runs]
    assert inside
    assert not any("dropout" in run.target or "bernoulli" in run.target for run in inside)


def test_a_plan_whose_stretch_reaches_past_the_end_is_refused(fused: nn.Module) -> None:
    made = prepared_of(fused)
    last = made.plan.stretches[-1]
    far = type(last)(last.first, 10_000, last.allocations, last.ns)
    wrong: Plan = load_plan(dump_plan(made.plan))
    with pytest.raises(PlanFileError, match="fuses runs up to 10000"):
        lower(made.graph, _with(wrong, far))


def _with(plan: Plan, stretch: object) -> Plan:
    return replace(plan, stretches=(*plan.stretches[:-1], stretch))


def net_with_lone_ops() -> nn.Module:
    """ReLU between two matrix products is no stretch; forward and backward write over their inputs."""
    return nn.Sequential(net(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


@pytest.fixture(scope="module")
def written() -> Iterator[nn.Module]:
    model = tightrope.compile(net_with_lone_ops(), budget="64MiB", fuse=True)
    found, wanted = train(model), train(net_with_lone_ops())
    with accounts().unlimited():
        assert max(map(difference, found[:-1], wanted[:-1])) <= WHOLE_STEP
    yield model
    accounts().release(compiled_of(model))


def writing(made: Prepared) -> list[Run]:
    """Runs that write their result over an input."""
    runs = [i for i in made.executable.instructions if isinstance(i, Run)]
    return [run for run in runs if run.target != made.graph.op(run.op).target]


def test_a_fused_plan_writes_over_inputs_outside_its_stretches(written: nn.Module) -> None:
    made, seen = prepared_of(written), tightrope.report(written)
    assert made.plan.stretches
    assert {run.target for run in writing(made)} == {
        "aten.relu_.default",
        "aten.threshold_backward.grad_input",
    }
    assert seen.level == "L2"
    assert seen.forecast_peak == seen.observed_peak
    assert seen.divergences == 0
    by_itself = lower(made.graph, replace(made.plan, stretches=(), offsets=(), placed=False))
    assert sum(run.target != made.graph.op(run.op).target for run in by_itself.runs()) > len(writing(made))


def _elsewhere(made: Prepared, run: Run) -> Run:
    """Write over a parameter."""
    name, view = run.keywords[-1]
    return replace(run, keywords=(*run.keywords[:-1], (name, replace(view, base=0))))


def _other_form(made: Prepared, run: Run) -> Run:
    return replace(run, target="aten.exp.out")


def _plain(made: Prepared, run: Run) -> Run:
    return replace(run, target=made.graph.op(run.op).target, keywords=run.keywords[:-1])


@pytest.mark.parametrize("change", [_elsewhere, _other_form, _plain])
def test_the_judge_refuses_wrong_writes_beside_stretches(
    written: nn.Module, change: Callable[[Prepared, Run], Run]
) -> None:
    made = prepared_of(written)
    walk_executable(made.graph, made.executable)
    for run in (run for run in writing(made) if run.keywords):
        rows = tuple(change(made, run) if i is run else i for i in made.executable.instructions)
        with pytest.raises(JudgeError, match=made.graph.op(run.op).target):
            walk_executable(made.graph, replace(made.executable, instructions=rows))


def test_the_judge_refuses_a_write_inside_a_stretch(written: nn.Module) -> None:
    """Every op of a stretch that could write over an input, made to: the function would not do so."""
    made = prepared_of(written)
    num_tried = 0
    for stretch in (i for i in made.executable.instructions if isinstance(i, Fused)):
        for run in stretch.runs:
            op = made.graph.op(run.op)
            over = next(
                (v for v, w in zip(run.arguments, op.arguments, strict=True) if _is(w, op.over)), None
            )
            if over is None:
                continue
            assert isinstance(over, View)
            runs = tuple(written_over(one, over) if one is run else one for one in stretch.runs)
            rows = tuple(replace(i, runs=runs) if i is stretch else i for i in made.executable.instructions)
            with pytest.raises(JudgeError):
                walk_executable(made.graph, replace(made.executable, instructions=rows))
            num_tried += 1
    assert num_tried > 5


def _is(argument: object, storage: int) -> bool:
    return isinstance(argument, View) and argument.base == storage >= 0


def test_a_stretch_that_gives_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tightrope.fuse.build.compiled

    def wrong(program: tightrope.fuse.build.FusedProgram) -> tightrope.fuse.build.Compiled:
        run = real(program)
        return lambda given: [tensor + 1 for tensor in run(given)]

    monkeypatch.setattr("tightrope.run.execute.emit.compiled", wrong)
    monkeypatch.setattr(StretchCheck, "_has_room", lambda self, program, allocator: True)
    model = tightrope.compile(net(), budget="64MiB", fuse=True)
    with pytest.raises(VerificationError, match=r"runs fused with .* is allowed"):
        train(model, 1)


@pytest.mark.parametrize("error", [ValueError, torch.OutOfMemoryError])
def test_only_want_of_memory_leaves_a_stretch_uncompared(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails(program: FusedProgram) -> object:
        def run(given: object) -> object:
            raise error("broken")

        return run

    monkeypatch.setattr("tightrope.run.execute.check.function_of", fails)
    monkeypatch.setattr(StretchCheck, "_has_room", lambda self, program, allocator: True)
    model = tightrope.compile(net(), budget="64MiB", fuse=True)
    if error is ValueError:
        with pytest.raises(ValueError, match="broken"):
            train(model, 1)
    else:
        train(model, 1)
        assert (
            "0 of them on the values of a step, for the others there was no room"
            in tightrope.report(model).verified
        )


def test_without_a_compiler_the_step_runs_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session.fused", "session.unit"):
        missing = f"tightrope.run.{module}.compiler_missing"
        monkeypatch.setattr(missing, lambda: "torch finds no C++ compiler (none)")
    model = tightrope.compile(net(), budget="64MiB", fuse=True)
    assert all(map(torch.equal, train(model), train(net())))
    assert str(tightrope.report(model)).startswith("level L1 (not fused: torch finds no C++ compiler")


@pytest.mark.usefixtures("ops_as_captured")
def test_what_is_too_short_a_part_of_a_step_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.fuse.build._COMPILED", {})
    monkeypatch.setattr("tightrope.fuse.build.compile_loops", lambda *_, **__: pytest.fail("compiled"))
    monkeypatch.setattr("tightrope.fuse.choose._LEAST_PART", 1.0)
    model = tightrope.compile(net(), budget="64MiB", fuse=True)
    assert all(map(torch.equal, train(model), train(net())))
    assert re.search(
        r"^level L1 \(not fused: of (\d+) distinct stretches, \1 too short a part of the step",
        str(tightrope.report(model)),
    )


def _fails(every: list[object], **_: object) -> list[str]:
    return ["torch's compiler refuses it." for _ in every]


@pytest.mark.slow
@pytest.mark.usefixtures("ops_as_captured")
def test_a_compiler_that_fails_leaves_the_step_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path))
    monkeypatch.setattr("tightrope.fuse.build._COMPILED", {})
    monkeypatch.setattr("tightrope.fuse.build._REFUSED", {})
    with monkeypatch.context() as broken:
        broken.setattr("tightrope.fuse.build.compile_loops", _fails)
        model = tightrope.compile(net(), budget="64MiB", fuse=True)
        assert all(map(torch.equal, train(model), train(net())))
        assert re.search(
            r"^level L1 \(not fused: of (\d+) distinct stretches, \1 torch's compiler refuses it\)",
            str(tightrope.report(model)),
        )
    monkeypatch.setattr("tightrope.fuse.build._REFUSED", {})  # as in another process, with another compiler
    assert level_of_another() == "L2"
    monkeypatch.setattr("tightrope.fuse.build._COMPILED", {})
    monkeypatch.setattr("tightrope.fuse.build.compile_loops", _fails)
    assert level_of_another() == "L1"  # its prices are known, and it cannot be compiled any more


def level_of_another() -> str:
    model = tightrope.compile(net(), budget="64MiB", fuse=True)
    train(model, 1)
    return tightrope.report(model).level


@pytest.mark.slow
def test_a_stretch_with_other_values_is_left_out_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path))
    monkeypatch.setattr("tightrope.fuse.build._REFUSED", {})
    monkeypatch.setattr("tightrope.fuse.build.difference", lambda found, wanted: 2.0)
    model = tightrope.compile(net(), budget="64MiB", fuse=True)
    train(model, 1)
    assert "gives other values than its ops, beyond the tolerance" in tightrope.report(model).why


def test_stretches_that_do_not_fit_are_not_called_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.fuse.choose._ROUNDS", 0)
    model = tightrope.compile(net(), budget="64MiB", fuse=True)
    train(model, 1)
    assert re.search(r"\d+ stretches would be faster, and no choice .* fits", tightrope.report(model).why)


def test_the_backend_by_name_runs_fused() -> None:
    wanted = train(net())
    options = {"budget": "64MiB", "fuse": True}
    model = torch.compile(net(), backend="tightrope", options=options)
    found = train(model)
    with accounts().unlimited():
        assert max(map(difference, found[:-1], wanted[:-1])) <= WHOLE_STEP
    seen = tightrope.report(model)
    assert seen.level == "L2"
    assert seen.forecast_peak == seen.observed_peak


def test_wrong_uses_say_what_to_do() -> None:
    with pytest.raises(TightropeError, match="fuse='yes'"):
        tightrope.compile(net(), budget="64MiB", fuse="yes")  # type: ignore[arg-type]
    with pytest.raises(TightropeError, match="bit for bit"):
        tightrope.compile(net(), budget="64MiB", fuse=True, verify="eager")


def test_a_whole_step_runs_fused() -> None:
    def trained(fuse: bool | None) -> list[torch.Tensor]:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        torch.manual_seed(1)
        batch = torch.randn(ROWS, WIDTH)
        if fuse is None:
            for _ in range(3):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        else:
            step = tightrope.step(
                lambda x: model(x).square().mean(),
                budget="64MiB",
                model=model,
                optimizer=optimizer,
                fuse=fuse,
            )
            for _ in range(3):
                step(batch)
            seen = step.report()
            assert seen.level == ("L2" if fuse else "L1")
            assert seen.forecast_peak == seen.observed_peak
            assert seen.verified.count("on the values of a step") == fuse
            assert "there was no room" not in seen.verified
        return [parameter.detach().clone() for parameter in model.parameters()]

    wanted, found = trained(None), trained(True)
    assert max(float((one - two).abs().max()) for one, two in zip(found, wanted, strict=True)) < 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("ops_as_captured")
def test_a_fused_plan_that_is_slower_in_real_steps_runs_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tightrope.fuse.build.compiled

    def slow(program: FusedProgram) -> tightrope.fuse.build.Compiled:
        def run(given: list[torch.Tensor]) -> Sequence[torch.Tensor]:
            until = time.thread_time() + 0.003
            while time.thread_time() < until:
                pass
            return real(program)(given)

        return run

    monkeypatch.setattr("tightrope.run.execute.emit.compiled", slow)
    model = tightrope.compile(net(), budget="64MiB", fuse=True)
    train(model, STEPS)
    found, wanted = train(model, 1), train(net(), 1)
    assert all(map(torch.equal, found, wanted))
    seen = tightrope.report(model)
    assert seen.level == "L1"
    assert re.search(r"^not fused: slower, .* a step fused, .* op by op, in turns$", seen.why)
    assert seen.forecast_peak == seen.observed_peak
    assert seen.divergences == 0


def test_no_choice_of_stretches_helps_an_op_outside_of_them(fused: nn.Module) -> None:
    made = prepared_of(fused)
    chosen = [Candidate(stretch, 1) for stretch in made.plan.stretches]
    live = highest = 0
    size: dict[int, int] = {}
    for instruction in made.executable.instructions:
        for event in instruction.inside if isinstance(instruction, Run | Fused) else (instruction,):
            if isinstance(event, Alloc) and event.space:
                size[event.buffer] = made.executable.charged(event)
                live += size[event.buffer]
                highest = max(highest, live if isinstance(instruction, Run) else 0)
            elif isinstance(event, Release):
                live -= size.get(event.buffer, 0)
    assert _without_worst(made.executable, chosen, highest - 1) == []
    assert len(_without_worst(made.executable, chosen, highest)) in range(1, len(chosen))


def image_net() -> nn.Module:
    torch.manual_seed(0)
    blocks = [
        (nn.Conv2d(k, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()) for k in (3, 16, 16)
    ]
    return nn.Sequential(*(layer for block in blocks for layer in block))


def test_batch_norm_joins_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(before: int, measured: Measured | str) -> Measured | str:
        """Take any stretch that compiles, whatever the processor makes of it."""
        return measured if isinstance(measured, str) else replace(measured, ns=before // 2)

    monkeypatch.setattr("tightrope.fuse.choose._faster", half)
    batch = torch.rand(4, 3, 64, 64)
    plain, model = image_net(), tightrope.compile(image_net(), budget="64MiB", fuse=True, verify="graph")
    for _ in range(2):
        plain(batch).square().mean().backward()
        model(batch).square().mean().backward()
    fused = [i for i in prepared_of(model).executable.instructions if isinstance(i, Fused)]
    inside = {run.target for stretch in fused for run in stretch.runs}
    assert inside >= {"aten._native_batch_norm_legit_functional.default", "tightrope.norm_backward"}
    with accounts().unlimited():
        for one, two in zip(plain.parameters(), model.parameters(), strict=True):
            assert one.grad is not None
            assert two.grad is not None
            assert difference(two.grad, one.grad) <= WHOLE_STEP
        for one, two in zip(plain.buffers(), model.buffers(), strict=True):
            assert difference(two, one) <= WHOLE_STEP
    assert "within a tolerance" in tightrope.report(model).verified
