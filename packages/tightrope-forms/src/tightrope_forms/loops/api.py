"""Run modules whose Python loops are found again and compiled.

Idea        The first call of every kind is the module's own, and it is recorded. Its loops become kernels;
            all other calls are made again as they were. Results and gradients of both are compared before
            a kernel is used.
Source      SIRIUS (MLSys 2023) has the host's loops in the model of its kernels
Guarantee   What differs from the module, beyond the tolerance, never runs; nor does what isl does not prove.
            `LoopedModule.said` has the reason, and the module runs as it was.
Gaps        Python's own side effects happen in the first call alone. A gradient of a gradient is refused.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from tightrope.core import CaptureError, NativeError
from tightrope.core.cache import warn_once
from tightrope.fuse.tolerance import difference
from tightrope_forms.loops._torch import tree_flatten, tree_unflatten
from tightrope_forms.loops.find import Carried, Fixed, Stepped, loops, outside_of
from tightrope_forms.loops.kernel import LoopFunction, LoopKernels, LoopReport
from tightrope_forms.loops.lower import specs_of
from tightrope_forms.loops.record import Call, CallRecording, Ref, hooks, named, record, settings, tensors_of

RESULTS: Final = 1
GRADIENTS: Final = 16
"""Times the tolerance of `tightrope.fuse.tolerance`; gradients go through all steps twice."""
_MOST_KINDS: Final = 32


class _Stacked(NamedTuple):
    """A call of ``torch.stack`` on a value of every step."""

    number: int  # of the call
    kernels: LoopKernels
    ref: Ref
    axis: int
    backwards: bool

    def refs(self) -> list[Ref]:
        """List what it reads of other calls than the loop."""
        return []


_Step = int | LoopKernels | _Stacked


class LoopPlan(NamedTuple):
    """How calls of one kind run."""

    recording: CallRecording  # of the first
    steps: list[_Step]  # calls by number, loops, and values put together
    free: list[list[Ref]]  # per step, values that nothing needs behind it
    loops: list[LoopKernels]
    said: list[str]  # why other loops stay as they were


def plan_of(recording: CallRecording, given: Callable[[Ref], Tensor]) -> LoopPlan:
    """Compile the loops of a recording.

    Raises:
        CaptureError: there is no loop that can be compiled.
        NativeError: there is no compiler.
    """
    found, said, calls = list[LoopKernels](), list[str](), recording.calls
    needing = list[bool]()  # by call; what comes from a value with a gradient may need one

    def wants(ref: Ref) -> bool:
        outside = ref.call < 0 and torch.is_grad_enabled()
        return given(ref).requires_grad if outside else ref.call >= 0 and needing[ref.call]

    for call in calls:
        needing.append(any(map(wants, call.refs())))
    for loop in loops(recording):
        any_wanted = any(map(wants, loop.refs()))
        wanted = [any_wanted if name in loop.states else any(map(wants, outside_of(one)))
                  for name, one in loop.inputs.items()]  # fmt: skip
        try:
            found.append(LoopKernels(loop, specs_of(loop, recording, given), wanted))
        except CaptureError as error:
            said.append(f"a loop of {loop.steps} steps: {error}")
    if not found:
        raise CaptureError(said[0] if said else "no loop over a state was found")
    steps, at = list[_Step](), 0
    for one in found:
        steps += [*range(at, one.loop.start), *one.loop.once, one]
        at = one.loop.end
    steps += range(at, len(calls))
    steps = [_stacked(one, calls[one], found) if isinstance(one, int) else one for one in steps]
    kept = [one for one in recording.leaves if isinstance(one, Ref)]
    last = {ref: at for at, step in enumerate(steps) for ref in _refs(step, calls)}
    free = [[ref for ref in _refs(one, calls) if last[ref] == at and ref not in kept]
            for at, one in enumerate(steps)]  # fmt: skip
    return LoopPlan(recording, steps, free, found, said)


def _refs(step: _Step, calls: Sequence[Call]) -> list[Ref]:
    if isinstance(step, LoopKernels):
        return step.loop.refs()
    return (calls[step] if isinstance(step, int) else step).refs()


def _stacked(number: int, call: Call, found: Sequence[LoopKernels]) -> _Step:
    refs, axis = call.refs(), next((one for one in call.leaves if not isinstance(one, Ref)), 0)
    for one in found if refs and call.function is torch.stack and type(axis) is int else ():
        at = (refs[0].call - one.loop.start) % one.loop.period
        steps = range(one.loop.start + at, one.loop.end, one.loop.period)
        every = [refs[0]._replace(call=start) for start in steps]
        if refs in (every, every[::-1]):
            return _Stacked(number, one, refs[0]._replace(call=at), axis, refs != every)
    return number


def run(plan: LoopPlan, args: Sequence[Tensor], held: Mapping[str, Tensor]) -> Any:
    """Run a plan on the tensors of its arguments and of its module."""
    values: dict[Ref, Tensor] = {}
    arrays: dict[LoopKernels, dict[Ref, Tensor]] = {}

    def value(ref: Ref) -> Tensor:
        if ref.call < 0:
            return args[ref.item] if ref.call == -1 else held[ref.name]
        if ref in values:
            return values[ref]
        one = next(one for one in plan.loops if one.loop.start <= ref.call < one.loop.end)
        step, at = divmod(ref.call - one.loop.start, one.loop.period)
        array = arrays[one][inside := ref._replace(call=at)]
        return array[step].clone() if inside in one.loop.whole else array

    for step, free in zip(plan.steps, plan.free, strict=True):
        if isinstance(step, int):
            made = plan.recording.calls[step].run(value)
            values |= {Ref(step, item): one for item, one in enumerate(made)}
        elif isinstance(step, _Stacked):
            array = arrays[step.kernels][step.ref]
            array = (array.flip(0) if step.backwards else array).movedim(0, step.axis)
            own = array.clone(memory_format=torch.contiguous_format)  # the caller may write to it
            values[Ref(step.number, 0)] = own
        else:
            given = [_given(one, value, step.steps) for one in step.loop.inputs.values()]
            made = LoopFunction.apply(step, *given)  # type: ignore[no-untyped-call]
            refs = [ref for ref in step.loop.outputs if ref in step.loop.used]
            arrays[step] = dict(zip(refs, made, strict=True))
        for key in free:
            values.pop(key, None)
    leaves = [value(one) if isinstance(one, Ref) else one for one in plan.recording.leaves]
    return tree_unflatten(leaves, plan.recording.tree)


def _given(one: Stepped | Carried | Fixed, value: Callable[[Ref], Tensor], steps: int) -> Tensor:
    """Give what a loop reads: a value, or elements of all steps along the first axis."""
    if not isinstance(one, Stepped):
        return value(outside_of(one)[0])
    if one.source is None:
        return torch.stack([value(ref) for ref in one.items])
    source = value(one.source).movedim(one.axis, 0)
    start = one.start % len(source)
    if one.by < 0:
        source, start = source.flip(0), len(source) - 1 - start
    return source[start :: abs(one.by)][:steps]


class LoopedModule(nn.Module):
    """A module whose loops over time run as kernels; see `optimise_loops`.

    Attributes:
        module: as it was given.
        said: why the module ran as it was, by kind of call; empty where loops run as kernels.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.said: list[str] = []
        self._plans: dict[Any, LoopPlan | None] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module, its loops as kernels from the second call of a kind on."""
        if torch.compiler.is_compiling():
            return self.module(*args, **kwargs)  # a capture sees the ops as they were
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(mode=False), torch.no_grad():
                return self.forward(*args, **kwargs)
        leaves, tree = tree_flatten((args, kwargs))
        given = [one for one in leaves if isinstance(one, Tensor)]
        held = named(self.module)
        if why := self._refusal([*given, *held.values()]):
            self._say(why)
            return self.module(*args, **kwargs)
        key = (
            str(tree), tuple(map(_kind, leaves)), tuple((name, _kind(one)) for name, one in held.items()),
            torch.is_grad_enabled(), settings(self.module),
        )  # fmt: skip
        if key not in self._plans:
            real = all(type(one) in (Tensor, nn.Parameter) for one in (*given, *held.values()))
            return self._first(key, args, kwargs) if real else self.module(*args, **kwargs)
        plan = self._plans[key]
        return self.module(*args, **kwargs) if plan is None else run(plan, given, held)

    def _refusal(self, tensors: Sequence[Tensor]) -> str:
        reasons = (
            (find_spec("islpy") is None, "islpy is missing. pip install 'tightrope-forms[loops]'"),
            (torch.is_autocast_enabled("cpu"), "autocast is on"),
            (hooks(self.module), "it has hooks"),
            (any(one.device.type != "cpu" for one in tensors), "it has tensors that are not on the CPU"),
        )
        return next((why for found, why in reasons if found), "")

    def loops(self) -> list[LoopReport]:
        """Say what became of the loops of all kinds of calls."""
        return [LoopReport(one.steps, one.loop.period, *one.removed()) for one in self._kernels()]

    def programs(self) -> list[Any]:
        """List the certificates of all kernels, for `tightrope_forms.judge.loops`."""
        every = [one for kernels in self._kernels() for one in (kernels.forward, kernels.backward)]
        return [one.program for one in every if one is not None]

    def _kernels(self) -> list[LoopKernels]:
        return [one for plan in self._plans.values() if plan is not None for one in plan.loops]

    def _say(self, why: str) -> None:
        if why not in self.said:
            self.said.append(why)
            warn_once(f"{type(self.module).__name__} runs as it was: {why}.")

    def _first(self, key: Any, args: Any, kwargs: Any) -> Any:
        if len(self._plans) >= _MOST_KINDS:
            self._say(f"calls are of more than {_MOST_KINDS} kinds")
            return self.module(*args, **kwargs)
        self._plans[key] = None
        held, given = named(self.module), tensors_of((args, kwargs))
        start = time.thread_time()
        recording, why = record(self.module, args, kwargs)
        took = time.thread_time() - start
        try:
            if why:
                raise CaptureError(why)
            plan = plan_of(recording, lambda ref: given[ref.item] if ref.call == -1 else held[ref.name])
            _compare(recording, lambda: run(plan, given, held), took, [*given, *held.values()])
            self._plans[key] = plan._replace(recording=recording._replace(result=None))  # which holds a graph
            for one in plan.said:
                self._say(one)
        except (CaptureError, NativeError) as error:
            self._say(str(error).rstrip("."))
        except RuntimeError as error:  # torch's own, such as no memory for both forms at once
            self._say(f"its kernel was not tried: {str(error).splitlines()[0].rstrip('.'):.200}")
        return recording.result

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process, for copies and files."""
        return {**self.__dict__, "_plans": {}}


def _kind(one: Any) -> Any:
    if isinstance(one, Tensor):
        return tuple(one.shape), one.dtype, one.device, one.requires_grad, type(one)
    return type(one), repr(one)


def _compare(
    recording: CallRecording, call: Callable[[], Any], before: float, tensors: Sequence[Tensor]
) -> None:
    """Refuse a plan whose results or gradients of tensors differ, or that needs more seconds than before."""
    start = time.thread_time()
    found = call()
    took = [before, time.thread_time() - start]
    pairs = list(zip(tensors_of(recording.result), tensors_of(found), strict=True))
    for one, two in pairs:
        alike = (one.shape, one.dtype) == (two.shape, two.dtype)
        if not alike or not _close(two.detach(), one.detach(), RESULTS):
            raise CaptureError("its kernel gave other values")
        if one.requires_grad != two.requires_grad:
            raise CaptureError("its kernel's results need other gradients")
    roots = [(one, two) for one, two in pairs if one.requires_grad]
    leaves = [one for one in tensors if one.requires_grad] if roots else []
    backs = [torch.linspace(-1, 2, one.numel()).view(one.shape).to(one.dtype) for one, _ in roots]
    both = []
    for side in (0, 1) if leaves else ():
        start = time.thread_time()
        made = [pair[side] for pair in roots]
        both.append(torch.autograd.grad(made, leaves, backs, allow_unused=True, retain_graph=not side))
        took[side] += time.thread_time() - start
    for one, two in zip(*both, strict=True):
        if (one is None) != (two is None) or (one is not None and not _close(two, one, GRADIENTS)):
            raise CaptureError("its kernel gave other gradients")
    if took[1] > took[0]:
        own, other = (f"{1e3 * one:.1f} ms" for one in took)
        raise CaptureError(f"its kernel is slower: {other}, and {own} without")


def _close(found: Tensor, wanted: Tensor, times: float) -> bool:
    """Tell whether values are equal within some times the tolerance; where all are 0, to a rounding step."""
    if wanted.is_floating_point() and not wanted.any():
        return bool((found.abs() <= torch.finfo(wanted.dtype).eps).all())
    return difference(found, wanted) <= times


def optimise_loops(module: nn.Module) -> LoopedModule:
    """Return a module that runs loops over time, written in Python, as kernels.

    The first call of a kind, by shapes and what needs gradients, runs the module. It finds the loops, and
    compares results, gradients and times of both forms. Where there is no loop, no kernel, no compiler or no
    islpy, the module runs as it was: a warning and `LoopedModule.said` have the reason.

    Args:
        module: on the CPU, float32 or float64. Its forward makes the same calls for arguments of one kind.

    Returns:
        A module with the same parameters; the given one is its ``module``. Results differ by rounding: sums
        of products run in another order, and sigmoid and tanh are within a few units of the last place.

    Example:
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.cell = nn.GRUCell(4, 8)
        ...     def forward(self, x):
        ...         h = x.new_zeros(x.shape[1], 8)
        ...         for t in range(len(x)):
        ...             h = self.cell(x[t], h)
        ...         return h
        >>> net = optimise_loops(Net())
        >>> net(torch.ones(16, 2, 4)).shape, net.said
        (torch.Size([2, 8]), [])
    """
    return LoopedModule(module)
