"""Second derivatives of a captured graph: what a backward says that would need them."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any, Final

import torch

from tightrope.capture._guards import is_transformed
from tightrope.core import TightropeError

_THREAD = threading.local()


def differentiating() -> bool:
    """Tell whether the running backward makes a graph of its gradients (``create_graph=True``)."""
    return getattr(_THREAD, "differentiating", False)


def prepare_backward(outputs: Sequence[Any]) -> type | None:
    """Make no zeros for outputs of a graph for which no gradient comes; explain second derivatives.

    Returns:
        The class of the graph's node, whose next ones only want no zeros made; None where none was found.
    """
    found: type | None = None
    for output in outputs:
        node = output.grad_fn if isinstance(output, torch.Tensor) else None
        for _ in range(_MOST_VIEWS):
            if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
                break
            node = next((before for before, _ in node.next_functions), None)
        if isinstance(node, torch.autograd.function.BackwardCFunction) and _is_ours(node):
            node.set_materialize_grads(False)
            found = type(node)
            made: Any = getattr(node, "_forward_cls", None)
            differentiate = getattr(made, "_double_backward", None)
            if isinstance(differentiate, FunctionType):
                made._double_backward = staticmethod(partial(_twice, differentiate))
    return found


def _is_ours(node: Any) -> bool:
    return any(hasattr(saved, "pending") for saved in node.saved_tensors)


_MOST_VIEWS: Final = 4
"""Between an output that is a view and the graph that made its base."""


def _twice(differentiate: Callable[..., Any], *args: Any) -> Any:
    """Run a backward whose gradients have a graph; let a backward of that say what to do."""
    _THREAD.differentiating = True
    try:
        gradients = differentiate(*args)
    finally:
        _THREAD.differentiating = False
    node = next((one.grad_fn for one in gradients if isinstance(one, torch.Tensor) and one.grad_fn), None)
    made = getattr(node, "_forward_cls", None)
    if made is not None:
        made.backward = staticmethod(partial(_second, made.backward))
    return gradients


def refuse_transformed(given: Sequence[Any]) -> None:
    """Refuse a backward of many gradients at once: a plan has room for one.

    Raises:
        TightropeError: a gradient is one of a transform of `torch.func`.
    """
    if any(is_transformed(one) for one in given):
        raise TightropeError(
            "a backward inside of torch.vmap, as with is_grads_batched=True: a plan computes one gradient at "
            "a time. Call torch.autograd.grad once for each of them."
        )


def _second(backward: Callable[..., Any], *args: Any) -> Any:
    try:
        return backward(*args)
    except RuntimeError as error:
        raise TightropeError(
            f"a backward through gradients that were made with create_graph=True: {error}. For second "
            "derivatives use tightrope.replay(budget) around the step of a model that is not compiled; it "
            "captures nothing."
        ) from error
