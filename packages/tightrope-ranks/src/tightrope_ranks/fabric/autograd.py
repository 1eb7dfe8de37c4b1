"""Modules and optimizers on other nodes: autograd and updates across calls.

Idea        A call of a module is a node of autograd here. Its forward runs the module there and keeps the
            graph; its backward sends the gradients of the outputs and gets those of the inputs. Parameters,
            their gradients and their optimizer stay with the module.
Source      Distributed autograd and optimizers of torch.distributed.rpc.
Guarantee   Every value is the one that the same modules give in one process: the same kernels on the same
            bits. A graph is kept until its backward ran.
Gaps        A backward through a call runs once; gradients of gradients are refused by autograd. A call in
            training mode without a backward leaves its graph there; ``eval()`` keeps none.
"""

import itertools
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope_ranks.fabric.memory import Caller
from tightrope_ranks.fabric.registry import function_of, register

_MODULES: Final[dict[str, nn.Module]] = {}
_OPTIMIZERS: Final[dict[str, torch.optim.Optimizer]] = {}
_GRAPHS: Final[dict[tuple[str, int], tuple[list[Tensor], tuple[Tensor, ...]]]] = {}
_CALLS = itertools.count()


def _module(name: str) -> nn.Module:
    if name not in _MODULES:
        raise TightropeError(f"no module {name!r} was made here; there are {', '.join(_MODULES) or 'none'}.")
    return _MODULES[name]


@register("tightrope.module.make")
def make(name: str, maker: str, arguments: list[Any]) -> None:
    """Make a module by a registered function."""
    _MODULES[name] = function_of(maker)(*arguments)


@register("tightrope.module.forward")
def forward(name: str, call: int, wanted: list[bool], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Run a module, and keep its graph for the backward."""
    given = [one.detach().requires_grad_() if need else one for one, need in zip(inputs, wanted, strict=True)]
    with torch.enable_grad():
        found = _module(name)(*given)
    outputs = found if isinstance(found, tuple) else (found,)
    if call >= 0:
        _GRAPHS[name, call] = (given, outputs)
    return tuple(one.detach() for one in outputs)


@register("tightrope.module.backward")
def backward(name: str, call: int, *came: Tensor | None) -> tuple[Tensor | None, ...]:
    """Run the backward of a call: parameters get their gradients, the caller those of the inputs."""
    given, outputs = _GRAPHS.pop((name, call))
    pairs = [
        pair for pair in zip(outputs, came, strict=True) if pair[0].requires_grad and pair[1] is not None
    ]
    torch.autograd.backward([one for one, _ in pairs], [one for _, one in pairs])
    return tuple(one.grad for one in given)


@register("tightrope.module.parameters")
def parameters(name: str) -> tuple[Tensor, ...]:
    """Return all parameters."""
    return tuple(one.detach() for one in _module(name).parameters())


@register("tightrope.optimizer.make")
def make_optimizer(name: str, kind: str, options: dict[str, Any]) -> None:
    """Make an optimizer of `torch.optim` for the parameters of a module."""
    found = getattr(torch.optim, kind, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise TightropeError(f"{kind!r} is no optimizer of torch.optim; write SGD, Adam, AdamW ...")
    _OPTIMIZERS[name] = found(_module(name).parameters(), **options)


@register("tightrope.optimizer.step")
def step(name: str) -> None:
    """Update, and clear the gradients."""
    _OPTIMIZERS[name].step()
    _OPTIMIZERS[name].zero_grad()


class RemoteModule(nn.Module):
    """A module on another node, called like one that is here.

    Args:
        fabric: that reaches the node.
        node: number.
        name: of the module there.
        maker: registered function that makes it.
        arguments: of the maker; plain values.
    """

    def __init__(self, fabric: Caller, node: int, name: str, maker: str, *arguments: Any) -> None:
        super().__init__()
        self.fabric, self.node, self.name = fabric, node, name
        fabric.call(node, "tightrope.module.make", name, maker, list(arguments))

    def forward(self, *inputs: Tensor) -> Any:
        """Run it there; autograd goes on through the call."""
        found = _RemoteCall.apply(self, torch.empty(0, requires_grad=True), *inputs)  # type: ignore[no-untyped-call]
        return found if len(found) > 1 else found[0]

    def optimizer(self, kind: str, **options: Any) -> "RemoteOptimizer":
        """Make an optimizer of `torch.optim` beside it."""
        return RemoteOptimizer(self, kind, options)

    def fetch(self) -> tuple[Tensor, ...]:
        """Return its parameters."""
        found = self.fabric.call(self.node, "tightrope.module.parameters", self.name)
        return tuple(found) if isinstance(found, tuple | list) else (found,)


class RemoteOptimizer:
    """The optimizer of a remote module."""

    def __init__(self, module: RemoteModule, kind: str, options: Mapping[str, Any]) -> None:
        self._module = module
        module.fabric.call(module.node, "tightrope.optimizer.make", module.name, kind, dict(options))

    def step(self) -> None:
        """Update there, and clear the gradients."""
        self._module.fabric.call(self._module.node, "tightrope.optimizer.step", self._module.name)


class _RemoteCall(torch.autograd.Function):
    """A call of a remote module; the second input makes it a node where no other input needs one."""

    @staticmethod
    def forward(ctx: Any, module: RemoteModule, always: Tensor, *inputs: Tensor) -> Any:
        number = next(_CALLS) if module.training else -1
        wanted = [one.requires_grad for one in inputs]
        found = module.fabric.call(
            module.node, "tightrope.module.forward", module.name, number, wanted, *inputs
        )
        ctx.module, ctx.number = module, number
        ctx.set_materialize_grads(False)
        outputs = tuple(found) if isinstance(found, tuple | list) else (found,)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *came: Tensor | None) -> Any:
        module = ctx.module
        found = module.fabric.call(module.node, "tightrope.module.backward", module.name, ctx.number, *came)
        return None, None, *found
