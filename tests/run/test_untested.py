"""A torch that was not tested, and one on which an adapter is broken: each of them in turn."""

import gc
import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dispatch.python as dispatch
from torch._C._dynamo import eval_frame, guards
from torch._dynamo import variables
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._subclasses import meta_utils
from torch.utils import _foreach_utils

import tightrope
from tightrope.capture import _checks, _compiled, _eager, _inductor, _probes, _sizes, _torch
from tightrope.cli import doctor
from tightrope.run.base.status import StatusLine
from tightrope.run.compile import plan_small
from tightrope.run.execute import untested
from tightrope.run.session.compiled import graphs_of

NAMES = [(adapter, path) for adapter, paths in _probes.PROBES.items() for path in paths]


def _nothing(*_: Any, **__: Any) -> Any:
    return nullcontext()


class _Describer:
    def describe_tensor(self) -> None:
        """Not the one that torch uses."""


class _Fixed(dict[Any, Any]):
    def __or__(self, other: Any) -> Any:
        return self


SABOTAGES: dict[str, tuple[Any, str, Any]] = {
    "storages": (torch.UntypedStorage, "_expired", lambda _: False),
    "ops that run": (torch.utils._python_dispatch, "_get_current_dispatch_mode", lambda: None),
    "running backward": (torch._C, "_will_engine_execute_node", lambda _: False),
    "shapes without values": (_torch, "without_values", list),
    "settings of calls": (_compiled, "tell", lambda _: None),
    "joint graphs": (_compiled, "tracing_joint_graphs", nullcontext),
    "code that is traced": (eval_frame, "reset_code", lambda _: None),
    "calls of loggers": (_compiled, "logs_ignored", dict),
    "refusals of torch": (_torch, "unsupported_errors", lambda: (KeyError,)),
    "order of norms": (
        _foreach_utils, "_group_tensors_by_device_and_dtype", lambda of, with_indices: {0: (of, [0, 1, 2])}
    ),
    "what a trace is told": (TorchInGraphFunctionVariable, "_get_handlers", staticmethod(dict)),
    "rows of tensors": (TensorVariable, "valid_size", lambda _: False),
    "context variables": (_eager, "_kinds_of_contexts", tuple),
    "fast attention": (variables.torch, "tracing_state_functions", _Fixed),
    "kernels of eager": (dispatch, "all_py_loaded_overloads", tuple),
    "layouts of norms": (torch._decomp, "decomposition_table", {}),
    "tensors of the meta device": (meta_utils, "MetaTensorDescriber", _Describer),
    "branches on constants": (_eager, "known_branches", tuple),
    "random objects": (_eager, "random_objects_left", _nothing),
    "derivatives of functions": (_eager, "functions_keep_their_derivatives", nullcontext),
    "overlaps": (guards, "compute_overlapping_tensors", lambda tensors, symbolic: {0, 1}),
    "forbidden calls": (_eager, "forbidden_calls_known", _nothing),
    "sizes as symbols": (_sizes.Symbolic, "of", staticmethod(lambda _: None)),
    "loops": (_inductor, "write", lambda _: "refused"),
}  # fmt: skip
"""Adapter -> what it uses or does, and something else in its place."""


@pytest.fixture
def afresh() -> Iterator[None]:
    """Let a torch be tried again in this test, and what comes after it."""
    untested._found.cache_clear()
    yield
    untested._found.cache_clear()


def _net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())


def _steps(call: Callable[..., Any], model: torch.nn.Module) -> list[torch.Tensor]:
    given, found = torch.ones(4, 8), []
    for _ in range(2):
        model.zero_grad()
        loss = call(given).square().sum()
        loss.backward()
        found += [loss.detach(), *(one.grad.clone() for one in model.parameters())]  # type: ignore[union-attr]
    return found


def _falls_back(adapter: str) -> None:
    """See that nothing ends in a traceback, and that one line names the adapter."""
    eager, model = _net(), _net()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        planned = tightrope.compile(model, budget="64MiB", progress=False)
        assert all(map(torch.equal, _steps(eager, eager), _steps(planned, model)))
        level = tightrope.report(planned).level
    lines = [str(one.message) for one in said if "tightrope" in str(one.message)]
    assert level in ("E", "L0")
    assert len(lines) == 1
    assert f"adapter {adapter!r}" in lines[0]
    assert "\n" not in lines[0]
    share = tightrope.compile(_net(), budget="90%", progress=False)
    refused = "Give bytes"
    try:
        share(torch.ones(4, 8)).sum().backward()  # measured, where level E is possible
    except tightrope.TightropeError as error:
        refused = str(error)
    assert "Give bytes" in refused
    with pytest.raises(tightrope.CaptureError, match=f"adapter '{adapter}'.*Use tightrope.compile"):
        tightrope.step(lambda x: eager(x).sum(), budget="64MiB", model=eager, progress=False)


@pytest.mark.few(28)
@pytest.mark.parametrize(("adapter", "path"), NAMES, ids=[path for _, path in NAMES])
def test_without_a_name_doctor_says_which_adapter_and_compile_runs_without_a_capture(
    adapter: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = path.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._inductor.compile_fx")  # it uses such names while it is imported
    with monkeypatch.context() as patch:
        patch.delattr(importlib.import_module(module), name)
        broken = {row for row, state in doctor.adapters().items() if state.startswith("broken")}
        assert f"torch: {adapter}" in broken
        if adapter in _probes.CAPTURE:
            _falls_back(next(iter(_probes.gone())))
            with pytest.raises(tightrope.CaptureError, match="adapter"):
                tightrope.capture(_net(), torch.ones(4, 8))


@pytest.mark.few(9)
@pytest.mark.parametrize("adapter", _probes.PROBES)
def test_an_adapter_that_does_something_else_is_named_and_compile_runs_without_a_capture(
    adapter: str, monkeypatch: pytest.MonkeyPatch, afresh: None
) -> None:
    names = ("ignore_logging_functions", "ignore_logger_methods")
    known = {name: set() for name in names if hasattr(torch._dynamo.config, name)}
    with monkeypatch.context() as patch, torch._dynamo.config.patch(known):
        patch.setattr(_probes, "TESTED_MINORS", ())
        patch.setattr(*SABOTAGES[adapter])
        assert list(_checks.broken((adapter,))) == [adapter]
        if adapter in _probes.CAPTURE:
            others = {name: lambda: True for name in _checks.CHECKS if name != adapter}
            patch.setattr(_checks, "CHECKS", {**_checks.CHECKS, **others})
            _falls_back(adapter)


def test_a_torch_that_was_not_tested_is_tried_once_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, afresh: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_probes, "TESTED_MINORS", ())
    state, budget = torch.get_rng_state(), tightrope.run.ledger.accounts.accounts().budget
    reasons = [untested.cannot_capture(StatusLine(), plan_small) for _ in range(2)]
    assert reasons == ["", ""]
    assert capsys.readouterr().err.count("was not tested") == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert tightrope.run.ledger.accounts.accounts().budget == budget


def test_a_torch_that_was_not_tested_is_tried_before_the_backend_plans(
    monkeypatch: pytest.MonkeyPatch, afresh: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_probes, "TESTED_MINORS", ())
    eager, model = _net(), _net()
    planned = torch.compile(model, backend="tightrope", options={"budget": "64MiB"})
    assert all(map(torch.equal, _steps(eager, eager), _steps(planned, model)))  # a warning would be an error
    assert capsys.readouterr().err.count("was not tested") == 1
    assert {graph.level for graph in graphs_of(model)} == {"L1"}


def test_a_small_model_with_other_bits_or_an_error_does_not_work() -> None:
    def other(model: torch.nn.Module, budget: int) -> tuple[Any, Any]:
        return lambda given: untested.loss_of(model(given)) * 2, lambda: "L1"

    def fails(model: torch.nn.Module, budget: int) -> tuple[Any, Any]:
        raise IndexError("no such\nframe.")

    assert untested.small_step(other) == ("L1, with other bits than eager", False)
    assert untested.small_step(fails) == ("IndexError: no such frame", False)


def test_an_adapter_that_meets_another_signature_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_compiled, "traced_as_eager", lambda: nullcontext())  # `whole` is not known any more
    model = tightrope.compile(_net(), budget="64MiB", progress=False)
    with pytest.warns(UserWarning, match=r"level (E|L0).*adapter '_compiled' \(TypeError") as said:
        model(torch.ones(4, 8)).sum().backward()
    assert len(said) == 1
    with pytest.raises(tightrope.CaptureError, match="adapter '_compiled'"):
        tightrope.capture(_net(), torch.ones(4, 8))


def test_the_backend_runs_a_graph_within_the_limit_where_nothing_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(_probes.PROBES, "order of norms", ("torch.no_such_name",))
    eager, model = _net(), _net()
    planned = torch.compile(model, backend="tightrope", options={"budget": "64MiB", "progress": False})
    with pytest.warns(UserWarning, match="without a plan, within the limit: torch .* 'order of norms'"):
        found = _steps(planned, model)
    assert all(map(torch.equal, _steps(eager, eager), found))
    gc.collect()
