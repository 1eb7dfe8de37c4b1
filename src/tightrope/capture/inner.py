"""Gradients of activations that leave a captured call: the whole sum reaches the tensor of the caller.

Idea        A captured call is one node of autograd. Where one output is computed from another, as a loss
            from features, the sum of gradients at the features is inside of that node. A caller who reads
            or changes it gets a part only. So each such output gets a small node of its own, with edges
            to the outputs that it is computed from. Its backward looks whether somebody wants the
            gradient there: a hook, ``retain_grad`` or ``torch.autograd.grad``.
Guarantee   A wanted gradient is never partial. In that backward the forward runs again in parts, without a
            plan; where it cannot, the backward is refused. From then on the call is planned in parts
            that end at such outputs, and autograd makes the sums. Unwanted, the plan stays whole.
Complexity  A node of autograd for each part.
Gaps        Outputs of tensor subclasses are left as they come.

    whole  inputs ── [ call ] ── features ┄┄ loss        cut  inputs ── [ a ] ── features ── [ b ] ── loss
"""

import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn, TypeAlias

import torch
import torch.fx
from torch.fx.passes.split_module import split_module

from tightrope.capture import _edges, _torch
from tightrope.core import TightropeError

Inner: TypeAlias = Mapping[int, tuple[int, ...]]
"""Number of an output -> numbers of the outputs that it is computed from."""


def inner_outputs(module: torch.fx.GraphModule) -> Inner:
    """Find the outputs of a captured graph from which other ones are computed, and those other ones."""
    results = _results(module)
    numbers: dict[torch.fx.Node, int] = {}
    for number, node in enumerate(results):
        if isinstance(node, torch.fx.Node) and node.op != "placeholder" and _floats(node):
            numbers.setdefault(node, number)
    above: dict[torch.fx.Node, frozenset[int]] = {}
    for node in module.graph.nodes:
        found = [above[one] for one in node.all_input_nodes]
        found += [frozenset([numbers[one]]) for one in node.all_input_nodes if one in numbers]
        above[node] = frozenset().union(*found)
    return {number: tuple(sorted(above[node])) for node, number in numbers.items() if above[node]}


def leads_to(end: torch.Tensor, inner: torch.Tensor) -> bool:
    """Tell whether a backward from one tensor passes through another one."""
    edge, waiting, seen = (inner.grad_fn, inner.output_nr), [(end.grad_fn, end.output_nr)], set[Any]()
    while waiting:
        node, _ = one = waiting.pop()
        if one == edge:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting += node.next_functions
    return False


def _results(module: torch.fx.GraphModule) -> list[Any]:
    (output,) = module.graph.find_nodes(op="output")
    return list(output.args[0])


def _floats(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


class Activations:
    """The outputs of one captured call whose gradient a caller may want.

    Attributes:
        inner: see `inner_outputs`.
        wanted: whether somebody wanted one of these gradients.
        repeats: whether the forward gives the same when it runs again, but for the generator's state.
        draws: whether the forward draws random numbers.
    """

    def __init__(self, module: torch.fx.GraphModule, casting: Callable[[], ExitStack]) -> None:
        self.module, self.inner, self._casting = module, inner_outputs(module), casting
        self.wanted = self.draws = False
        self.repeats = True
        self._before = {one for some in self.inner.values() for one in some}
        self._parts: list[list[int]] = [[]]
        results = _results(module)
        for node in module.graph.nodes if self.inner else ():
            for number in [k for k, one in enumerate(results) if one is node and _floats(node)][:1]:
                self._parts[-1].append(number)
                if number in self._before:
                    self._parts.append([])

    def begin(self) -> "LeavingCall | None":
        """Begin a call; None where no gradient can be wanted."""
        if not self.inner or not torch.is_grad_enabled():
            return None
        return LeavingCall(self, torch.get_rng_state() if self.draws else None)

    def hand_out(self, call: "LeavingCall", outputs: Sequence[Any], args: Sequence[Any]) -> Sequence[Any]:
        """Give the outputs nodes of autograd that notice who wants their gradients."""
        given = list(outputs)
        above: list[torch.Tensor] = []
        for part, numbers in enumerate(self._parts):
            mine = [number for number in numbers if _has_node(given[number])]
            self.repeats &= bool(mine) or part == len(self._parts) - 1
            if not mine:
                continue
            ones = [given[number] for number in mine]
            saved = args if not above else ()
            new = _Leaving.apply(call, part, mine, saved, *ones, call.probe.leaf, *above)  # type: ignore[no-untyped-call]
            for number, one in zip(mine, new, strict=True):
                given[number], hooks = one, _Hooks.of(one)
                if number in self._before:
                    above.append(one)
                    call.watches[number] = _GradientWatch(one, hooks)
        return given

    def refuse(self, why: str) -> NoReturn:
        """Say that the call is cut from now on.

        Raises:
            TightropeError: always.
        """
        raise TightropeError(
            "the gradient of a model output is wanted (by register_hook, retain_grad or "
            f"torch.autograd.grad), and another output is computed from it. {why}, so none was given. "
            "From now on the model is planned in parts that end at such outputs: run this step again."
        )

    def again(self, args: list[Any], state: torch.Tensor | None) -> "_Replay":
        """Run the forward again, part by part, without a plan."""
        if not self.repeats or (state is not None and any(_on_gpu(one) for one in args)):
            self.refuse("The plan of this step does not make it, and its forward cannot run again")
        replay = _Replay(split(self.module, self.inner))
        with (
            torch.enable_grad(),
            self._casting(),
            torch.random.fork_rng(devices=[], enabled=state is not None),
        ):
            if state is not None:
                torch.set_rng_state(state)
            try:
                replay.results = list(replay.run(*args, enable_io_processing=False))
            except RuntimeError as error:  # an output is changed in place, or memory is short
                self.refuse(f"Its forward cannot run again ({error})")
        return replay


def _has_node(value: Any) -> bool:
    return type(value) is torch.Tensor and value.requires_grad and not value.is_leaf


def _on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


class _Replay(torch.fx.Interpreter):
    """A forward that ran again in parts, each with a graph of its own."""

    def __init__(self, parts: torch.fx.GraphModule) -> None:
        super().__init__(parts)
        self.runs: list[tuple[Sequence[Any], list[Any], Sequence[Any]]] = []
        self.results: list[Any] = []
        self.came: dict[int, torch.Tensor] = {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves = [
            one.detach().requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one
            for one in args
        ]
        made = self.fetch_attr(target)(*leaves, **kwargs)
        self.runs.append((args, leaves, made if isinstance(made, tuple) else (made,)))
        return made

    def back(self, part: int, came: Mapping[int, torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """Run the backward of a part; return what goes to outputs of parts before."""
        args, leaves, made = self.runs[part]
        mine = {id(self.results[number]): one for number, one in came.items()}
        seeds = {
            k: mine[id(one)] if id(one) in mine else self.came.pop(id(one), None)
            for k, one in enumerate(made)
        }
        some = {k: seed for k, seed in seeds.items() if seed is not None}
        wanted = [k for k, one in enumerate(leaves) if isinstance(one, torch.Tensor) and one.requires_grad]
        if not some or not wanted:
            return {}
        found = torch.autograd.grad(
            [made[k] for k in some], [leaves[k] for k in wanted], list(some.values()), allow_unused=True
        )
        numbers = {
            id(one): number for number, one in enumerate(self.results) if isinstance(one, torch.Tensor)
        }
        above: dict[int, torch.Tensor] = {}
        for k, one in zip(wanted, found, strict=True):
            if one is None:
                continue
            if (number := numbers.get(id(args[k]))) is not None:
                above[number] = one
            else:
                before = self.came.get(id(args[k]))
                self.came[id(args[k])] = one if before is None else before + one
        return above


class LeavingCall:
    """One call, whose outputs somebody may want the gradients of.

    Attributes:
        watches: number of an output from which others are computed -> who wants its gradient.
        probe: see there.
    """

    def __init__(self, activations: Activations, state: torch.Tensor | None) -> None:
        self.activations, self._state = activations, state
        self.probe = _edges.Probe()
        self.watches: dict[int, _GradientWatch] = {}
        self.others: list[Any] = []
        self._again: tuple[int, _Replay, list[Any]] | None = None

    def gradients(self) -> list[Any] | None:
        """Return the gradients of the inputs where the backward goes without the plan, else None."""
        if self.is_planned:
            return None
        assert self._again is not None
        _, replay, args = self._again
        self._again = None
        return [replay.came.get(id(one)) for one in args]

    @property
    def is_planned(self) -> bool:
        """Whether the backward under way goes with the plan: outputs get what the caller computed alone."""
        return self._again is None or self._again[0] != _edges.backward_number()

    def replay(self, part: int, node: Any) -> _Replay | None:
        """Tell how the backward under way goes without the plan; None where the plan holds."""
        task = _edges.backward_number()
        if self._again is not None and self._again[0] == task:
            return self._again[1]
        if not any(watch.wanted(self.probe) for watch in self.watches.values() if watch.part < part):
            return None
        self.activations.wanted = True
        first = next(one for one, _ in node.next_functions if getattr(one, "part", None) == 0)
        given = iter(first.saved_tensors)
        args = [next(given) if one is None else one for one in self.others]
        self._again = task, self.activations.again(args, self._state), args
        return self._again[1]


class _Hooks(OrderedDict[int, Any]):
    """Hooks of one output of a node that has several: called as eager does, where a gradient came."""

    @staticmethod
    def of(tensor: torch.Tensor) -> "_Hooks":
        """Let hooks that are registered on a tensor go here."""
        tensor._backward_hooks = hooks = _Hooks()
        assert tensor.grad_fn is not None
        tensor.grad_fn._register_hook_dict(tensor)  # `register_hook` does so where there is no dict yet
        return hooks

    def __setitem__(self, number: int, hook: Any) -> None:
        super().__setitem__(number, _Hook(hook))

    @property
    def read(self) -> bool:
        """Whether one of them reads the gradient."""
        return any(hook.reads for hook in self.values())


class _Hook:
    def __init__(self, hook: Any) -> None:
        self._hook = hook
        # FSDP hooks the outputs of a module to be told that its backward begins.
        self.reads = not str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp.")

    def __call__(self, gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else self._hook(gradient)


class _GradientWatch:
    """Whether somebody wants the gradient of a tensor; the tensor may be gone."""

    def __init__(self, tensor: torch.Tensor, hooks: _Hooks) -> None:
        self.hooks = hooks
        node: Any = tensor.grad_fn
        self._tensor, self._node = weakref.ref(tensor), weakref.ref(node)  # the node holds the call
        self._at, self.part = tensor.output_nr, int(node.part)

    def wanted(self, probe: _edges.Probe) -> bool:
        tensor = self._tensor()
        retained = tensor is not None and tensor.retains_grad
        return self.hooks.read or retained or _edges.is_wanted(self._node(), self._at, probe)


class _Leaving(torch.autograd.Function):
    """The outputs of a part as they are."""

    @staticmethod
    def forward(
        ctx: Any, call: LeavingCall, part: int, numbers: list[int], args: Sequence[Any], *ones: torch.Tensor
    ) -> Any:
        ctx.call, ctx.part, ctx.numbers, ctx.num = call, part, numbers, len(ones)
        ctx.set_materialize_grads(False)
        if args:
            ctx.save_for_backward(*[one for one in args if isinstance(one, torch.Tensor)])
            call.others = [None if isinstance(one, torch.Tensor) else one for one in args]
        return tuple(
            one.detach() for one in ones[: len(numbers)]
        )  # what is returned as it came is made a view

    @staticmethod
    def backward(ctx: Any, *came: torch.Tensor | None) -> Any:
        call, num = ctx.call, len(came)
        above: list[Any] = [None] * (ctx.num - num)
        replay = call.replay(ctx.part, ctx)
        if replay is None:
            return None, None, None, None, *came, *above
        found = replay.back(ctx.part, dict(zip(ctx.numbers, came, strict=True)))
        for at, number in enumerate(call.watches):
            if 1 + at < len(above):  # the first is the probe
                above[1 + at] = found.get(number)
        return None, None, None, None, *[None] * num, *above


def split(module: torch.fx.GraphModule, inner: Inner) -> torch.fx.GraphModule:
    """Split a captured graph behind each output from which another is computed."""
    results = _results(module)
    behind = {results[one] for some in inner.values() for one in some}
    part_of: dict[torch.fx.Node, int] = {}
    part = 0
    for node in module.graph.nodes:
        part_of[node] = part
        part += node in behind
    return split_module(module, module, part_of.__getitem__, keep_original_order=True)


def cut(
    module: torch.fx.GraphModule, inner: Inner, compiled: Callable[[torch.fx.GraphModule, list[Any]], Any]
) -> torch.fx.GraphModule:
    """Split a captured graph in parts that are captured each by itself.

    Args:
        module: see `split`.
        inner: see `split`.
        compiled: makes what runs a part, given it and what its first call is given.
    """
    parts = split(module, inner)
    for name, child in list(parts.named_children()):
        if isinstance(child, torch.fx.GraphModule):
            setattr(parts, name, _CutPart(child, compiled))
    return parts


class _CutPart(torch.nn.Module):
    """A part of a captured graph, captured when it is first called."""

    def __init__(
        self, module: torch.fx.GraphModule, compiled: Callable[[torch.fx.GraphModule, list[Any]], Any]
    ) -> None:
        super().__init__()
        (output,) = module.graph.find_nodes(op="output")
        self._single = isinstance(output.args[0], torch.fx.Node)
        if self._single:
            output.args = ((output.args[0],),)
            module.recompile()
        self._module, self._compiled = module, compiled
        self._run: Any = None

    def forward(self, *args: Any) -> Any:
        if self._run is None:
            with _torch.without_leaf_warnings():
                self._run = self._compiled(self._module, list(args))
        results = self._run(*args)
        return operator.getitem(results, 0) if self._single else tuple(results)
