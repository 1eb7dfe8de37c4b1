"""How a call of a model may run, each way compiled by Dynamo when it is first taken."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from tightrope.capture import _torch
from tightrope.capture._compiled import compile_with
from tightrope.capture.dynamo import Host, make_backend

_Call: TypeAlias = Callable[..., Any]


class Entries(NamedTuple):
    """The ways of one model.

    Attributes:
        whole: as one graph.
        many: as one graph for many sizes.
        pieces: as a sequence of graphs.
        plain: as it is.
        inside: a forward that is given first, inside of hooks that run as they are, as a sequence of graphs.
        forget: makes Dynamo drop what it compiled.
    """

    whole: _Call
    many: _Call
    pieces: _Call
    plain: _Call
    inside: _Call
    forget: Callable[[], None]


def only_plain(model: torch.nn.Module) -> Entries:
    """Make the ways of a model that is not captured: as it is, whichever is taken."""

    def one_call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    return Entries(one_call, one_call, one_call, one_call, one_call, lambda: None)


def entries_of(model: torch.nn.Module, host: Host, begin: Callable[[], None]) -> Entries:
    """Make the ways of a model.

    Args:
        model: called in these ways.
        host: given captured graphs.
        begin: called before the whole model is traced.
    """
    backend = partial(make_backend, host, name=type(model).__name__)

    def one_call(*args: Any, **kwargs: Any) -> Any:
        # a frame of ours: Dynamo refuses to start in a frame of torch.nn, such as Linear's
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    def one_forward(forward: _Call, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    forgets = _torch.own_code(one_call), _torch.own_code(one_forward)

    def forget() -> None:
        for each in forgets:
            each()

    foreseeing = backend(foresee=True)
    return Entries(
        whole=compile_with(one_call, foreseeing, begin=begin),
        many=compile_with(one_call, foreseeing, dynamic=True, begin=begin),
        pieces=compile_with(one_call, backend(), whole=False),
        plain=one_call,
        inside=compile_with(one_forward, backend(), whole=False),
        forget=forget,
    )
