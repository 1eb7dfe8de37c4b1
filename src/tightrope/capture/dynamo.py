"""Capture of ``model(...)`` through Dynamo and AOTAutograd.

torch.compile's own machinery finds the graph, guards it, handles mutated inputs, aliased outputs and
autograd; what runs inside is ours. AOTAutograd looks once at two modules to see what is saved between
forward and backward. A plan may change later, so they are stubs that pass one *token*: an empty tensor on
which the run hangs whatever its plan keeps. When autograd drops the graph, the token dies, and all of that.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any, Final, Protocol, TypeAlias

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture._compiled import tracing_joint_graphs
from tightrope.capture._eager import eager_kernels, told_compiled
from tightrope.capture._guards import forget_other_dtypes
from tightrope.capture._sizes import Symbolic, input_names, placeholders_of, sizes_in
from tightrope.capture.announce import GradientGroups, groups_of, handed_on
from tightrope.capture.assumptions import (
    Key,
    inputs_of,
    say_dtypes,
    serving_all,
    shares_memory,
    written_of,
)
from tightrope.capture.build import build_program
from tightrope.capture.casts import remembers_casts, share_casts
from tightrope.capture.checkpoints import changed_in_checkpoints
from tightrope.capture.ends import Choose, Ends, everything, foreseen
from tightrope.capture.frugal import hold_less
from tightrope.capture.inner import Activations, LeavingCall, cut
from tightrope.capture.layouts import channels_last, gradients_as_inputs
from tightrope.capture.program import Arrived, Program, Resizable
from tightrope.capture.recurrent import layers_as_eager
from tightrope.capture.second import prepare_backward, refuse_transformed
from tightrope.capture.stubs import flat, never, stubs
from tightrope.capture.typed import label, tensor_of
from tightrope.capture.uses import Rest, Uses
from tightrope.capture.variants import dropouts_as_eager, norms_without_waste
from tightrope.core import CaptureError, Kind, TightropeError
from tightrope.lower.remainder import loses_results
from tightrope.price.device import accelerator, device_of, processor

Later: TypeAlias = tuple[Rest, GradientGroups | None, LeavingCall | None]
"""What a backward has to know of its call."""

NOTHING: Final[Later] = ([], None, None)


class UnderWay(threading.local):
    """What a call tells the node of autograd that it runs, and is told by it.

    Attributes:
        told: see `Later`.
        token: what the forward returned last; what the backward keeps goes with it.
    """

    told: Later = NOTHING
    token: torch.Tensor | None = None


class Runner(Protocol):
    """What runs a captured program; arguments come as lists that the runner empties."""

    def forward(self, args: list[Any]) -> list[Any]:
        """Run the ops before the boundary; return the outputs and then the token."""

    def backward(self, args: list[Any], by_group: GradientGroups | None = None) -> list[Any]:
        """Run the rest; ``args`` is the token followed by the tangents.

        Where they are wanted ``by_group``, it may be given what goes on, and only the first group returned.
        """

    def inference(self, args: list[Any]) -> list[Any]:
        """Run a program that has no backward."""


Host = Callable[[Program, Sequence[Any]], Runner]


def make_backend(
    host: Host, *, name: str = "", foresee: bool = False, alone: bool = False
) -> Callable[[torch.fx.GraphModule, list[Any]], Any]:
    """Make a Dynamo backend that hands every captured program to ``host`` and runs what it returns.

    Args:
        host: called once per captured graph with the program and the real inputs (parameters,
            buffers, inputs, in placeholder order).
        name: of the graph, for people.
        foresee: take it that no gradient comes for outputs from which a scalar one is computed.
        alone: whether no other graph uses the same parameters.
    """

    def backend(module: torch.fx.GraphModule, example: list[Any]) -> Any:
        told: list[str] = []

        def capture(given: list[Any]) -> tuple[CapturedCall, Any]:
            call = CapturedCall(module, name, told, shared=not (foresee or alone))
            try:
                return call, call.compiled(host, list(given), foreseen if foresee else everything)
            except _LosesResults:
                return call, call.compiled(host, list(given), everything)

        first, run = capture(example)
        told += first.told
        key = Key(module, example, first.written)
        return serving_all(module, key, key.of(example), run, lambda given: capture(list(given))[1])

    return backend


_REPLACED: Final = (
    "a forward inside of torch.autograd.graph.saved_tensors_hooks that gave the backward other tensors than "
    "autograd kept: call the model outside of them. What a plan keeps between forward and backward is within "
    "the budget, and no hook sees it."
)


class _LosesResults(TightropeError):
    """What is gone after the forward could not be made again if other outputs are read after all."""


class CapturedCall:
    """What Dynamo captured of a call, to be traced: from all outputs, and later from some alone."""

    form = ""  # how it differs from the call of the user, or why it does not, where that was asked for

    def __init__(
        self, module: torch.fx.GraphModule, name: str, told: Sequence[str] = (), *, shared: bool = False
    ) -> None:
        self.module, self.name, self.shared = module, name, shared
        self.remembered = remembers_casts(module)
        self.casting = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
        ]
        self.cached = torch.is_autocast_cache_enabled()
        self.kinds: dict[str, Kind] = {}
        self.environment: tuple[tuple[str, str], ...] = ()
        self.inputs: list[Any] = []
        self.uses = Uses(())
        self.told = [*told, *changed_in_checkpoints(module)]
        self.written: frozenset[int] = frozenset()
        self.shares = False

    def compiled(self, host: Host, example: list[Any], choose: Choose) -> Any:
        """Trace it and hand it to a host; return what runs it.

        Raises:
            _LosesResults: not all outputs are chosen, and that is not safe.
        """
        runners: list[Runner] = []
        real, in_grad_mode, ends = list(example), torch.is_grad_enabled(), Ends(choose)
        self.environment, self.uses = environment(real), Uses(real, shared=self.shared)

        def partition(
            joint: torch.fx.GraphModule, _inputs: Any, *, num_fwd_outputs: int, **options: Any
        ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
            self.told += told_compiled()
            traced = self._traced(joint, num_fwd_outputs, real)
            self.kinds = _kinds(joint, traced, frozenset(options.get("static_lifetime_input_indices") or ()))
            program = self._resizable(joint, traced, lambda one: self._program(one, num_fwd_outputs, ends))
            if program.resizable is not None and program.terms:
                raise CaptureError("an input that the caller computed is used more than once.")
            if not program.covers and loses_results(program.graph):
                raise _LosesResults("not all outputs are read")
            groups[:] = groups_of(program, real) if traced is real else ()
            same = traced is real and not program.changed
            activations.repeats &= same and len(joint.graph.find_nodes(op="placeholder")) >= len(real)
            activations.draws = any(_torch.is_random(node.target) for node in joint.graph.nodes)
            runners.append(host(program, traced))
            return stubs(joint, num_fwd_outputs, some=len(program.start.read) < len(program.ends))

        def inference(part: torch.fx.GraphModule, _inputs: Any) -> Any:
            traced = self._traced(part, len(flat(part)), real)
            read = partial(self._inferred, kinds=_kinds(part, traced, frozenset()), in_grad_mode=in_grad_mode)
            return boxed(host(self._resizable(part, traced, read), traced).inference)

        groups: list[tuple[int, ...]] = []
        under_way = UnderWay()
        activations = Activations(self.module, self._casts)

        def forward(args: list[Any]) -> list[Any]:
            assert under_way.told is not NOTHING  # it is run by `call`
            _, by_group, _ = told = under_way.told
            if by_group is not None:
                by_group.take_back(args)
            results = runners[-1].forward(args)
            results[-1].later = told
            under_way.token = results[-1]
            return results

        def backward(args: list[Any]) -> list[Any]:
            if not hasattr(args[0], "later"):
                raise TightropeError(_REPLACED)
            refuse_transformed(args)
            told: Later = args[0].later
            rest, by_group, leaving = told
            if leaving is not None and (made := leaving.gradients()) is not None:
                return made
            gradients = runners[-1].backward(args, by_group if by_group and by_group.all_run else None)
            first = len(gradients) - len(rest)
            rest[:] = gradients[first:]
            return gradients[:first]

        compiled = _torch.aot_backend(
            partition,
            lambda _part, _inputs: boxed(forward),
            lambda _part, _inputs: boxed(backward),
            inference,
        )
        run = self._trace(compiled, example, ends)
        given, real = real, []  # torch 2.11 and 2.12 keep the functions above, and what they refer to
        if not runners:
            return run
        self.inputs = [] if sizes_in(given) else _torch.without_values(given)

        part = partial(self._compiled_part, host, choose)
        return self._caller(run, activations, part, groups, under_way)

    def _compiled_part(
        self, host: Host, choose: Choose, module: torch.fx.GraphModule, example: list[Any]
    ) -> Any:
        one = CapturedCall(module, self.name, self.told, shared=self.shared)
        return one.compiled(host, example, choose)

    def _caller(
        self,
        run: Callable[..., Any],
        activations: Activations,
        part: Callable[[torch.fx.GraphModule, list[Any]], Any],
        groups: list[tuple[int, ...]],
        under_way: UnderWay,
    ) -> Callable[..., Any]:
        """Make what Dynamo calls; once the gradient of an activation is wanted, it calls parts cut there."""
        parts: list[torch.fx.GraphModule] = []
        node: type[Any] | None = None

        def call(*args: Any) -> Any:
            nonlocal node
            if activations.wanted:
                parts[:] = parts or [cut(self.module, activations.inner, part)]
                return parts[0](*args)
            uses = self.uses
            given, rest = uses.handed_on(args) if uses.split or uses.viewed else (list(args), [])
            leaving = activations.begin() if activations.inner else None
            under_way.told = (rest, handed_on(tuple(groups), given) if groups else None, leaving)
            outputs = run(*given)
            token, under_way.token, under_way.told = under_way.token, None, NOTHING
            if token is not None and self.shares:
                token.pending.wrote([args[number] for number in self.written])  # type: ignore[attr-defined]
            del token  # with it goes what the backward keeps
            last: Any = None
            for output in outputs:
                made = getattr(output, "grad_fn", None)
                if made is None or made is last:
                    continue
                if node is None or not isinstance(made, node):  # a view, or what comes from elsewhere
                    node = prepare_backward(outputs) or node
                    break
                made.set_materialize_grads(False)
                last = made
            return outputs if leaving is None else activations.hand_out(leaving, outputs, args)

        return call

    def _trace(self, compiled: Callable[..., Any], example: list[Any], ends: Ends) -> Any:
        """Trace the call with a backend.

        Raises:
            CaptureError: torch's tracing refuses it.
        """
        try:
            forget_other_dtypes()
            with tracing_joint_graphs(), eager_kernels(), _torch.gradients_from(ends, self.uses.count):
                return compiled(self.module, example)
        except (AssertionError, RuntimeError) as error:
            ours = isinstance(error, TightropeError | torch.OutOfMemoryError)
            if ours or not _torch.refused_by_tracing(error):
                raise
            said = str(error).strip().partition("\n")[0]
            raise CaptureError(said or "torch's tracing refuses it.") from error

    def _traced(self, joint: torch.fx.GraphModule, num_forward: int, real: Sequence[Any]) -> Sequence[Any]:
        """Find the inputs of a traced graph, and which of the call's it writes."""
        traced = inputs_of(joint, real)
        self.written = written_of([traced[given] for _, given in _changed(joint, num_forward)], real)
        self.shares = shares_memory(self.written, real)
        if traced is not real:
            self.uses = Uses(())
        return traced

    def _resizable(
        self,
        module: torch.fx.GraphModule,
        real: Sequence[Any],
        read: Callable[[torch.fx.GraphModule], Program],
    ) -> Program:
        """Read a graph; where sizes of it are symbols, so that it may be read for other ones too."""
        symbolic = Symbolic.of(module)
        if symbolic is None:
            return read(module)
        trained = [isinstance(given, torch.Tensor) and given.requires_grad for given in real]

        def at(sizes: tuple[int, ...]) -> Program:
            with _torch.real_tensors(), eager_kernels():
                one = symbolic.at(sizes)
                traced_from = partial(self.traced_from, inputs=placeholders_of(one, trained))
                return replace(read(one), sizes=sizes, resizable=resizable, traced_from=traced_from)

        resizable = Resizable(at, symbolic.refused, symbolic.inputs(input_names(self.module)))
        return at(sizes_in(real))

    def _inferred(self, part: torch.fx.GraphModule, kinds: Mapping[str, Kind], in_grad_mode: bool) -> Program:
        say_dtypes(part.graph)
        dropouts_as_eager(part.graph)
        norms_without_waste(part.graph)
        hold_less(part.graph)
        if in_grad_mode:
            layers_as_eager(part.graph)
        outputs, name = range(len(flat(part))), f"{self.name} (inference)"
        program = build_program(part, kinds, user_outputs=outputs, name=name, environment=self.environment)
        return replace(program, changed=_changed(part, len(flat(part))))

    def channels_last(self, real: Sequence[Any], start: Arrived) -> Program | None:
        """Trace the call with convolutions that work channels-last; None where no input may lie so."""
        module = channels_last(self.module)
        return None if module is None else self.traced_from(start, _torch.without_values(real), module)

    def traced_from(
        self, start: Arrived, inputs: Sequence[Any] = (), module: torch.fx.GraphModule | None = None
    ) -> Program:
        """Trace the call once more, with a backward that starts from these gradients alone.

        Args:
            start: see there.
            inputs: for other sizes than those of the first trace.
            module: to trace in place of what Dynamo captured.
        """
        found: list[Program] = []

        def partition(
            joint: torch.fx.GraphModule, _inputs: Any, *, num_fwd_outputs: int, **_: Any
        ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
            if module is not None:
                gradients_as_inputs(joint, num_fwd_outputs)
            again = partial(self.traced_from, inputs=inputs, module=module)
            found.append(replace(self._program(joint, num_fwd_outputs, ends), traced_from=again))
            return stubs(joint, num_fwd_outputs)

        def unused(*_: Any) -> Any:
            return boxed(never)

        ends = Ends(lambda _: start.read, start.layouts)
        compiled = _torch.aot_backend(partition, unused, unused, unused)
        with self._casts() as states:
            for state in (torch.enable_grad(), tracing_joint_graphs(), eager_kernels()):
                states.enter_context(state)
            states.enter_context(_torch.gradients_from(ends, self.uses.count, ends.layouts))
            compiled(module or self.module, list(inputs or self.inputs))
        (program,) = found
        return program

    def _casts(self) -> ExitStack:
        states = ExitStack()
        for device, enabled, dtype in self.casting:
            casting = torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=self.cached)
            states.enter_context(casting)
        return states

    def _program(self, joint: torch.fx.GraphModule, num_forward_outputs: int, ends: Ends) -> Program:
        say_dtypes(joint.graph)
        dropouts_as_eager(joint.graph)
        norms_without_waste(joint.graph)
        hold_less(joint.graph)
        layers_as_eager(joint.graph)
        unlike = share_casts(joint, num_forward_outputs, remembered=self.remembered)
        changed = _changed(joint, num_forward_outputs)
        unlike += self.uses.return_terms(joint, num_forward_outputs, {given for _, given in changed})
        unlike += self.told
        program = build_program(
            joint,
            self.kinds,
            num_forward_outputs=num_forward_outputs,
            user_outputs=_user_outputs(joint, num_forward_outputs),
            written=_written(joint, num_forward_outputs),
            name=self.name,
            environment=self.environment,
        )
        return replace(
            program,
            changed=changed,
            unlike=tuple(unlike),
            summed=self.uses.summed,
            ends={number: label(tensor) for number, tensor in _tangents(joint, ends.every).items()},
            strides=_strides(joint, ends.every),
            start=Arrived(ends.read, ends.layouts),
            covers=ends.covers,
            terms=self.uses.split or (),
            call=self,
            traced_from=self.traced_from,
            channels_last=self.channels_last,
        )


def environment(tensors: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """What measured prices and planned addresses depend on besides the graph."""
    devices = sorted({str(tensor.device) for tensor in tensors if isinstance(tensor, torch.Tensor)})
    return (
        ("device", ",".join(devices)),
        ("deterministic", str(torch.are_deterministic_algorithms_enabled())),
        ("num_threads", str(torch.get_num_threads())),
        ("processor", processor()),
        ("torch", str(torch.__version__)),
        *accelerator(device_of(tensors)),
    )


def boxed(function: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Mark a function as taking one list that it empties, so that arguments can die early."""
    call = function if isinstance(function, FunctionType) else partial(function)
    call._boxed_call = True  # type: ignore[union-attr]
    return call


def _kinds(module: torch.fx.GraphModule, real: Sequence[Any], static: frozenset[int]) -> dict[str, Kind]:
    placeholders = module.graph.find_nodes(op="placeholder")
    kinds = {}
    for position, node in enumerate(placeholders):
        given = real[position] if position < len(real) else None
        if str(node.target).startswith("tangents"):
            kinds[node.name] = Kind.INPUT
        elif isinstance(given, torch.nn.Parameter):
            kinds[node.name] = Kind.PARAMETER
        else:
            kinds[node.name] = Kind.BUFFER if position in static else Kind.INPUT
    return kinds


def _user_outputs(joint: torch.fx.GraphModule, num_forward_outputs: int) -> list[int]:
    """Forward outputs that the user receives; new values of mutated inputs are copied and dropped."""
    (output,) = joint.graph.find_nodes(op="output")
    described = list(output.meta.get("desc") or [])[:num_forward_outputs]
    if len(described) < num_forward_outputs:
        return list(range(num_forward_outputs))
    return [position for position, what in enumerate(described) if "InputMutation" not in type(what).__name__]


def _written(joint: torch.fx.GraphModule, num_forward_outputs: int) -> list[str]:
    """Inputs that get new values when the forward returns (batch norm's running statistics)."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    return [placeholders[given].name for _, given in _changed(joint, num_forward_outputs)]


def _strides(joint: torch.fx.GraphModule, ends: Collection[int]) -> dict[int, tuple[int, ...]]:
    """How the gradient of each output has to be laid out."""
    return {number: tensor.stride() for number, tensor in _tangents(joint, ends).items()}


def _tangents(joint: torch.fx.GraphModule, ends: Collection[int]) -> dict[int, torch.Tensor]:
    placeholders = joint.graph.find_nodes(op="placeholder")
    tangents = [node for node in placeholders if str(node.target).startswith("tangents")]
    return {number: tensor_of(tangents[number]) for number in ends}


def _changed(joint: torch.fx.GraphModule, num_forward_outputs: int) -> tuple[tuple[int, int], ...]:
    """Pairs (output, input): the output is the new value of the input when the forward returns."""
    (output,) = joint.graph.find_nodes(op="output")
    placeholders = joint.graph.find_nodes(op="placeholder")
    described = {repr(node.meta.get("desc")): position for position, node in enumerate(placeholders)}
    found = []
    for number, what in enumerate(list(output.meta.get("desc") or [])[:num_forward_outputs]):
        if "InputMutation" in type(what).__name__:
            position = described.get(repr(getattr(what, "mutated_input", None)))
            if position is None:
                raise CaptureError(
                    f"cannot tell which input {what} changes: this torch describes its graphs differently."
                )
            found.append((number, position))
    return tuple(found)
