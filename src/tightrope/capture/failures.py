"""Say why a step is not one graph, and what to do about it."""

import re
from types import GeneratorType
from typing import Any

import torch

from tightrope.capture._eager import leaves_in, tensors_in
from tightrope.core import CaptureError

_FAILS_EAGERLY = "result in an error when running in eager"
_DETAIL = re.compile(r"got \w+\((['\"])(?P<got>.+?)\1\)|Developer debug context: (?P<context>\S.*)")
NESTED = "nested tensors have no sizes that a plan could be made for"
_REPLAY = "or use tightrope.replay(budget=...), which needs no capture."


def fails_anyway(error: BaseException) -> bool:
    """Tell whether Dynamo expects that the plain call would fail too."""
    return _FAILS_EAGERLY in str(error)


def reason_of(error: BaseException) -> str:
    """Say in a sentence why a step is not one graph."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (
        "The step cannot be captured as one graph: "
        + (lines[0].rstrip(".") if lines else type(error).__name__)
        + "."
    )


def untraceable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Say why torch is not to trace a call with these arguments; nothing where it may be.

    Its guards ask nested tensors of the older layout for strides, which ends the process. A jagged one has a
    size without a number, so no graph says how many bytes it takes. Of a class with functions of its own it
    takes gradients to be plain tensors, and ends the backward with an error of its own.
    """
    tensors = tensors_in((args, kwargs))
    if any(one.is_nested for one in tensors):
        return f"The step cannot be captured as one graph: {NESTED}."
    if own := next((type(one) for one in tensors if _has_own_functions(type(one))), None):
        return f"The step cannot be captured as one graph: {own.__name__} changes what torch's functions do."
    return ""


def read_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Say why a call with these arguments cannot be tried before it counts; nothing where it can be."""
    if any(isinstance(one, GeneratorType) for one in leaves_in((args, kwargs))):
        return "An argument is a generator, which can be read only once: give a list."
    return ""


def _has_own_functions(of: type[torch.Tensor]) -> bool:
    """Tell whether a class, none of torch's and no wrapper, changes what functions of torch do."""
    if of.__module__.partition(".")[0] == "torch" or hasattr(of, "__tensor_flatten__"):
        return False
    inherited = [getattr(one.__torch_function__, "__func__", one.__torch_function__) for one in _PLAIN]
    return getattr(of.__torch_function__, "__func__", of.__torch_function__) not in inherited


_PLAIN = torch.Tensor, torch.nn.Parameter


def uncaptured(error: BaseException, who: str, *, call: str) -> CaptureError:
    """Restate an error of Dynamo.

    Args:
        error: that Dynamo raised.
        who: could not be captured.
        call: how it is called rightly, for calls that fail without capture too.
    """
    text = str(error).strip()
    reason = text.splitlines()[0].strip().rstrip(".") if text else type(error).__name__
    if fails_anyway(error):
        found = _DETAIL.search(text)
        detail = f": {found['got'] or found['context']}" if found else ""
        return CaptureError(
            f"{who} fails with these arguments, capture or not ({reason}{detail}). See that the plain call "
            f"works; arguments are given as in {call}."
        )
    return CaptureError(
        f"{who} cannot be captured as one graph: {reason}. Remove what depends on values of tensors or "
        f"leaves torch, {_REPLAY}"
    )
