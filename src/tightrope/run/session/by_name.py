"""Graphs of models that were compiled by ``torch.compile(model, backend="tightrope")``."""

import weakref
from collections.abc import Iterable

import torch

from tightrope.run.session.compiled import CompiledModel

_BY_BACKEND: list[tuple["weakref.ref[CompiledModel]", list["weakref.ref[torch.Tensor]"]]] = []


def note_graph(compiled: CompiledModel, parameters: Iterable[torch.Tensor]) -> None:
    """Remember whose parameters a graph trains that came by way of ``torch.compile``'s backend."""
    _BY_BACKEND[:] = [pair for pair in _BY_BACKEND if pair[0]() is not None]
    _BY_BACKEND.append((weakref.ref(compiled), [weakref.ref(parameter) for parameter in parameters]))


def graphs_of(model: torch.nn.Module) -> list[CompiledModel]:
    """Find what belongs to each graph of a model that ``torch.compile`` handed to the backend by name."""
    mine = {id(parameter) for parameter in model.parameters()}
    pairs = [(reference(), parameters) for reference, parameters in _BY_BACKEND]
    return [
        graph
        for graph, parameters in pairs
        if graph is not None and any(id(parameter()) in mine for parameter in parameters)
    ]
