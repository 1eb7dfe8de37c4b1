"""Compare runs of a plan with the plain module, bit for bit.

Idea        When a plan has run that `Sampling` picks, the module runs once more, uncompiled, from the same
            inputs, buffers and random states; once the plan's backward has run, so does the module's,
            from the same gradients of its outputs.
Guarantee   A call passes if its outputs, the buffers and the random states have eager's bits; a backward,
            if the gradients of parameters and inputs have.
Complexity  Two forwards and one backward per run that is compared, with eager's bytes: the budget does not
            hold for them. Of every run, inputs and buffers are copied.
Gaps        Hooks, and objects that attributes of the module refer to, see these runs too. They begin from the
            attributes that the run of the plan left. A parameter of several graphs of a call is not compared.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch.func import functional_call

from tightrope.capture._eager import kernels_called, tensors_in, uncompiled, with_tensors
from tightrope.capture.announce import GradientGroups
from tightrope.capture.dynamo import Runner
from tightrope.capture.inner import LeavingCall, leads_to
from tightrope.capture.program import Program
from tightrope.core import Phase, VerificationError
from tightrope.run.base.state import RandomStates, attributes_kept
from tightrope.run.execute.check import digest
from tightrope.run.execute.prepared import Proof
from tightrope.run.execute.running import Running
from tightrope.run.ledger.accounts import Accounts

_PLAIN: Final = frozenset(
    ("alias", "arange", "as_strided", "clone", "contiguous", "copy", "detach", "empty", "empty_like",
     "empty_strided", "expand", "fill", "full", "full_like", "lift_fresh", "new_empty", "new_empty_strided",
     "new_full", "new_ones", "new_zeros", "ones", "ones_like", "permute", "reshape", "resize",
     "scalar_tensor", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "to", "transpose",
     "unbind", "unsafe_view", "unsqueeze", "view", "zero", "zeros", "zeros_like")
)  # fmt: skip
"""Ops that make, look into or copy tensors: they round nothing."""
_SAME: Final = {
    "native_batch_norm_legit": "native_batch_norm",
    "native_batch_norm_legit_functional": "native_batch_norm",
    "native_batch_norm_legit_no_training": "native_batch_norm",
    "dropout": "bernoulli",
    "dropout_again": "mul",
}
"""Names of one kernel."""
SENTINEL: Final = 97
"""Runs from one comparison to the next; prime, so that every call of a step with several has its turn."""
_FIRST: Final = 2
"""Runs of a plan that are compared: the first has the inline check in it, as no later one has."""
_Place: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""What tells the caller's tensors apart, whatever object stands for them."""


class Sampling:
    """Which runs are compared: the first two of every plan and then every `SENTINEL`-th run, or all."""

    def __init__(self, *, always: bool) -> None:
        self._always, self._num_runs = always, 0

    def of(self, proofs: Sequence[Proof]) -> Sequence[Proof]:
        """Count a run, and choose from the plans that ran it those that it is compared for."""
        self._num_runs += 1
        if self._always or self._num_runs % SENTINEL == 0:
            return proofs
        return [proof for proof in proofs if proof.num_compared < _FIRST]

    def equal_before(self, num: int) -> str:
        """Say which runs had eager's bits before one that does not."""
        said = f" Runs compared before, and equal: {num}" if num else ""
        return said and said + ("." if self._always else '; verify="always" compares every run.')


class Values:
    """The values of a tensor, in memory that neither torch nor the budget's accounts know."""

    def __init__(self, tensor: torch.Tensor) -> None:
        given = tensor.detach()
        self._shape, self._dtype = given.shape, given.dtype
        once = given[tuple(slice(1) if step == 0 else slice(None) for step in given.stride())]
        self._once, self._stride = once.shape, once.stride()
        last = 1 + sum((n - 1) * step for n, step in zip(once.shape, once.stride(), strict=True))
        self._memory = np.empty(last * once.element_size() if once.numel() else 0, dtype=np.uint8)
        self._seen(self._memory).copy_(once)

    def _seen(self, memory: "np.ndarray[Any, Any]") -> torch.Tensor:
        whole = torch.from_numpy(memory).view(self._dtype)
        return whole.as_strided(self._once, self._stride)

    def tensor(self) -> torch.Tensor:
        """Make a tensor of these values that is laid out alike."""
        return self._seen(self._memory.copy()).expand(self._shape)


@dataclass
class _Start:
    """What a call begins from; copies lie outside of torch's memory.

    Attributes:
        args: of the call.
        kwargs: of the call.
        copies: of the tensors among them, by id.
        buffers: copies of them, by name.
        states: of the generators.
        autocast: whether it is on for the CPU, its dtype, and whether it keeps what it cast.
        grad: whether gradients are recorded.
        stored: activations that attributes of modules held by then.
    """

    args: Any
    kwargs: Any
    copies: dict[int, Values]
    buffers: dict[str, Values]
    states: RandomStates
    autocast: tuple[bool, torch.dtype, bool]
    grad: bool
    stored: list[weakref.ref[torch.Tensor]]

    def inputs(self) -> list[torch.Tensor]:
        """List the tensors that the call was given."""
        return [tensor for tensor in tensors_in((self.args, self.kwargs)) if id(tensor) in self.copies]


@dataclass
class _TwinCall:
    """A call whose gradients are to be compared.

    Attributes:
        start: what it began from.
        proofs: of the plans that ran it.
        num_equal: runs of them that were compared before.
        said: what was compared already, in words.
        tangents: gradients that arrived, by number of the output, after the hooks of the caller.
        sums: outputs whose tangent has in it what came through other outputs.
        num_graphs: that ran.
        num_waiting: of these, with a backward that has yet to come.
        gradients: (where an input of a graph lies, digest of its gradient).
        targets: names of the ops that ran, and of those among them in the forward.
    """

    start: _Start
    proofs: Sequence[Proof]
    num_equal: int = 0
    said: str = ""
    tangents: dict[int, Values] = field(default_factory=dict)
    sums: set[int] = field(default_factory=set)
    num_graphs: int = 0
    num_waiting: int = 0
    gradients: list[tuple[_Place, str]] = field(default_factory=list)
    targets: tuple[set[str], set[str]] = (set(), set())


class EagerTwin:
    """A module as it is, beside its compiled self; state of the runtime, used from one thread at a time."""

    def __init__(self, model: "weakref.ref[torch.nn.Module]", accounts: Accounts, sampling: Sampling) -> None:
        self._model, self._accounts, self._sampling = model, accounts, sampling
        self._open: _TwinCall | None = None

    def watching(self, runner: Runner, program: Program) -> Runner:
        """Look at what a captured graph is given and gives."""
        return _Watched(self, runner, program)

    def around(
        self, run: Callable[..., Any], args: Any, kwargs: Any, recent: Callable[[], Sequence[Running]]
    ) -> Any:
        """Make a call, and compare it where it is one of those to be compared.

        Raises:
            VerificationError: says what differs, and which kernels. Gradients are compared as they come.
        """
        with self._beside(args, kwargs) as call:
            result = run(*args, **kwargs)
        if call.num_graphs:
            self._compare(call, result, recent())
        return result

    @contextmanager
    def _beside(self, args: Any, kwargs: Any) -> Iterator[_TwinCall]:
        """Remember what the call inside the block begins from, and which graphs it runs."""
        model = self._module()
        copies: dict[int, Values] = {}
        for tensor in tensors_in((args, kwargs)):
            if type(tensor) is torch.Tensor and _is_plain(tensor):
                copies.setdefault(id(tensor), Values(tensor))
        autocast = (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        )
        buffers = {name: Values(buffer) for name, buffer in model.named_buffers() if _is_plain(buffer)}
        states = RandomStates.now(model, args, kwargs)
        stored = [weakref.ref(one) for one in _stored(model)]
        start = _Start(args, kwargs, copies, buffers, states, autocast, torch.is_grad_enabled(), stored)
        self._open = call = _TwinCall(start, [])
        try:
            yield call
        finally:
            self._open = None

    def _compare(self, call: _TwinCall, result: Any, recent: Sequence[Running]) -> None:
        call.proofs = self._sampling.of([running.prepared.proof for running in recent])
        if not call.proofs:
            return
        call.num_equal = min(proof.num_compared for proof in call.proofs)
        ops = [op for running in recent for op in running.prepared.graph.ops]
        call.targets = {op.target for op in ops}, {op.target for op in ops if op.phase is Phase.FORWARD}
        wanted, buffers, states, end = self._compute(call.start)
        outputs = [*tensors_in(result), *_stored(self._module(), call.start.stored)]
        found = [digest(value) for value in outputs]
        if len(found) != len(wanted):
            raise VerificationError(f"{len(found)} tensors were returned; eager returns {len(wanted)}.")
        for number, (one, two) in enumerate(zip(found, wanted, strict=True)):
            if one != two:
                self._differs(f"output {number}", call)
        for name, buffer in self._module().named_buffers():
            if name in buffers and digest(buffer) != buffers[name]:
                self._differs(f"buffer {name!r}", call)
        for name in states.differing(end):
            self._differs(f"the random state of {name}", call)
        call.said = f"{len(found)} outputs, {len(buffers)} buffers and the random states"
        for proof in call.proofs:
            proof.num_compared += 1
            proof.reference = proof.reference or f"{call.said} equal eager's, bit for bit"
        self._wait(call, outputs)

    def _wait(self, call: _TwinCall, outputs: list[torch.Tensor]) -> None:
        """Take the gradients of the outputs as they arrive."""
        seen: set[int] = set()
        for number, output in enumerate(outputs):
            if output.grad_fn is None or id(output) in seen or not call.num_waiting:
                continue
            seen.add(id(output))
            inside = any(leads_to(other, output) for other in outputs if other is not output)
            where = getattr(output.grad_fn, "call", None)

            def arrived(
                gradients: Sequence[torch.Tensor | None],
                number: int = number,
                at: int = output.output_nr,
                inside: bool = inside,
                where: Any = where,
            ) -> None:
                gradient = gradients[at]
                if gradient is not None:  # no loss reads that output
                    call.tangents[number] = Values(gradient)
                    if inside and not (isinstance(where, LeavingCall) and where.is_planned):
                        call.sums.add(number)

            output.grad_fn.register_prehook(arrived)  # a hook of the tensor would count as a use

    def gave(self, call: _TwinCall, places: Iterable[_Place | None], gradients: Iterable[Any]) -> None:
        """Take the gradients of one graph; compare when the last one has come.

        Raises:
            VerificationError: says which differs.
        """
        call.num_waiting -= 1
        if not call.said:  # it is not compared
            return
        every = (*self._module().parameters(), *call.start.inputs())
        known = {_place(tensor) for tensor in every if tensor.requires_grad}
        with self._accounts.aside():
            for place, gradient in zip(places, gradients, strict=False):
                if place in known and place is not None:
                    call.gradients.append((place, digest(gradient)))
        if call.num_waiting:
            return
        uses = Counter(place for place, _ in call.gradients)
        once = {place: bits for place, bits in call.gradients if uses[place] == 1}
        wanted = self._gradients(call, list(once))
        for (place, bits), eager in zip(once.items(), wanted, strict=True):
            if bits != eager:
                self._differs(f"the gradient of {self._name(place)}", call, backward=True)
        left = len(uses) - len(once)
        rest = f"; the gradients of {left} tensors that several graphs use were not compared" if left else ""
        for proof in call.proofs:
            proof.reference = f"{call.said}, and {len(once)} gradients, equal eager's, bit for bit{rest}"

    def note_graph(self, token: torch.Tensor | None, places: list[_Place | None]) -> None:
        """Note that a graph ran in the open call; one with a token waits for its backward."""
        if self._open is None:
            return
        self._open.num_graphs += 1
        if token is not None:
            self._open.num_waiting += 1
            token.pending.watch = (self._open, places)  # type: ignore[attr-defined]

    # the module as it is

    def _module(self) -> torch.nn.Module:
        model = self._model()
        assert model is not None
        return model

    def _run(
        self, start: _Start, used: dict[int, torch.Tensor] | None = None
    ) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """Run the module from where a call began; ``used`` takes its inputs, by those of the caller.

        Returns:
            Its outputs with the activations that it stored as attributes, and its buffers.
        """
        used = {} if used is None else used

        def given(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in start.copies:
                return tensor
            if id(tensor) not in used:
                made = start.copies[id(tensor)].tensor()
                used[id(tensor)] = made.requires_grad_(tensor.requires_grad)
            return used[id(tensor)]

        args, kwargs = with_tensors(start.args, given), with_tensors(start.kwargs, given)
        buffers = {name: copy.tensor() for name, copy in start.buffers.items()}
        enabled, dtype, cached = start.autocast
        casting = torch.autocast("cpu", dtype=dtype, enabled=enabled, cache_enabled=cached)
        start.states.restore()
        before = [weakref.ref(one) for one in _stored(self._module())]
        with uncompiled(self._module()), torch.set_grad_enabled(start.grad), casting:
            result = functional_call(self._module(), buffers, args, kwargs)
        return [*tensors_in(result), *_stored(self._module(), before)], buffers

    @contextmanager
    def _apart(self, start: _Start) -> Iterator[RandomStates]:
        """Let the module run as it is, beyond the budget, and put back what it drew and stored.

        Yields:
            The random states that are put back.
        """
        end = start.states.present()
        try:
            with self._accounts.aside(), attributes_kept(self._module()):
                yield end
        finally:
            end.restore()

    def _compute(self, start: _Start) -> tuple[list[str], dict[str, str], RandomStates, RandomStates]:
        """Digests of outputs and buffers, and the random states after eager and after the plan."""
        with self._apart(start) as end:
            return *self._forward(start), start.states.present(), end

    def _forward(self, start: _Start) -> tuple[list[str], dict[str, str]]:
        outputs, buffers = self._run(start)
        return [digest(value) for value in outputs], {name: digest(value) for name, value in buffers.items()}

    def _backward(self, call: _TwinCall, places: Iterable[_Place]) -> list[torch.Tensor | None]:
        used: dict[int, torch.Tensor] = {}
        outputs, _ = self._run(call.start, used)
        at = {_place(tensor): used[id(tensor)] for tensor in call.start.inputs()}
        at |= {_place(parameter): parameter for parameter in self._module().parameters()}
        ends = [outputs[number] for number in call.tangents]
        wanted = [at[place] for place in places]
        tangents = [copy.tensor() for copy in call.tangents.values()]
        for end, number, tangent in zip(ends, call.tangents, tangents, strict=True):
            if number in call.sums:
                end.register_hook(partial(_replaced, tangent))  # type: ignore[no-untyped-call]
        if not ends:
            return [None] * len(wanted)
        if not wanted:
            return []
        return list(torch.autograd.grad(ends, wanted, tangents, allow_unused=True))

    def _gradients(self, call: _TwinCall, places: Iterable[_Place]) -> list[str]:
        with self._apart(call.start):
            return [digest(gradient) for gradient in self._backward(call, places)]

    def _name(self, place: _Place) -> str:
        names = {_place(parameter): name for name, parameter in self._module().named_parameters()}
        return repr(names[place]) if place in names else f"an input of shape {place[1]}"

    def _differs(self, what: str, call: _TwinCall, *, backward: bool = False) -> None:
        """Refuse, naming kernels that only one side calls.

        Raises:
            VerificationError: always.
        """
        with self._apart(call.start), kernels_called() as called:
            if backward:
                self._backward(call, [place for place, _ in call.gradients])
            else:
                self._run(call.start)
        said = kernels_apart(call.targets[not backward], called)
        before = self._sampling.equal_before(call.num_equal)
        raise VerificationError(f"{what} differs from eager: {said}.{before}")


class _Watched:
    """A captured graph that is looked at; see `tightrope.capture.dynamo.Runner`."""

    def __init__(self, twin: EagerTwin, runner: Runner, program: Program) -> None:
        self._twin, self._runner, self._terms = weakref.ref(twin), runner, program.terms

    def forward(self, args: list[Any]) -> list[Any]:
        """Run the ops before the hand-over; return the outputs and then the token."""
        places = [_place(given) if isinstance(given, torch.Tensor) else None for given in args]
        results = self._runner.forward(args)
        twin = self._twin()
        if twin is not None:
            twin.note_graph(results[-1], places)
        return results

    def backward(self, args: list[Any], by_group: GradientGroups | None = None) -> list[Any]:
        """Run the rest; ``args`` is the token followed by the tangents."""
        pending = args[0].pending
        gradients = self._runner.backward(args)
        watch, pending.watch = pending.watch, None
        twin = self._twin()
        if watch is not None and twin is not None:
            call, places = watch
            twin.gave(call, places, self._summed(gradients))
        return gradients

    def _summed(self, gradients: Sequence[Any]) -> Iterator[Any]:
        """Add up gradients that come term by term, one after another."""
        later = iter(gradients[len(gradients) - sum(num for _, num in self._terms) :])
        more = {number: list(islice(later, num)) for number, num in self._terms}
        for number, first in enumerate(gradients):
            yield reduce(torch.add, (term for term in more.get(number, ()) if term is not None), first)

    def inference(self, args: list[Any]) -> list[Any]:
        """Run a program that has no backward."""
        results = self._runner.inference(args)
        twin = self._twin()
        if twin is not None:
            twin.note_graph(None, [])
        return results


def _stored(model: torch.nn.Module, before: Iterable[weakref.ref[torch.Tensor]] = ()) -> list[torch.Tensor]:
    """List the activations that are attributes of modules, and were none of those ``before``."""
    known = {id(one) for reference in before if (one := reference()) is not None}
    return [
        one
        for module in model.modules()
        for one in vars(module).values()
        if isinstance(one, torch.Tensor) and one.grad_fn is not None and id(one) not in known
    ]


def _replaced(total: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return total


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def _place(tensor: torch.Tensor) -> _Place:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def kernels_apart(targets: Iterable[str], called: Iterable[str]) -> str:
    """Name the kernels that only a plan calls, and those that only eager calls."""
    mine, eager = _bare(targets), _bare(called)
    only = {"the plan alone calls": mine - eager, "eager alone calls": eager - mine}
    said = "; ".join(f"{who} {', '.join(sorted(names))}" for who, names in only.items() if names)
    return said or "both call the same kernels, on tensors that are laid out otherwise"


def _bare(targets: Iterable[str]) -> set[str]:
    """Names of kernels without library, overload and in-place mark."""
    names = {[*target.split("."), ""][1].strip("_") for target in targets}
    return {_SAME.get(name, name) for name in names} - _PLAIN - {"return", "save_state"}
