"""The op at which a lowering parts from the reference, on one image."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, fx

from tightrope.core import TightropeError
from tightrope_differ.images.noises import ImageNoise
from tightrope_differ.images.places import CallPlaces
from tightrope_differ.parity.graphs import Call, capture_net
from tightrope_differ.parity.lowerings import eager, lowering, quiet
from tightrope_differ.parity.pipeline import ImageNet, where_it_failed
from tightrope_differ.parity.walk import (
    WalkedValue,
    parting,
    walk_graph,
    walk_in_turn,
    walk_lines,
    walk_onnx,
)
from tightrope_differ.values.parity import LoweringDifference, PartingPoint


@dataclass
class RunLowering:
    """What is known of one lowering.

    Attributes:
        found: figures, which `locate` adds the op to.
        noise: a swap in preprocessing.
        other: another pipeline.
        call: what runs the net; None = as the reference does.
        graph: the changed graph, where a noise changed it.
    """

    found: LoweringDifference
    noise: ImageNoise | None = None
    other: ImageNet | None = None
    call: Call | None = None
    graph: fx.GraphModule | None = None


Graph = fx.GraphModule | TightropeError | None
"""Of the reference: captured, or why it is not; None = a file in ONNX."""


def locate(
    track: RunLowering, reference: ImageNet, graph: Graph, places: CallPlaces, path: str, batch: int
) -> None:
    """Find where values part on an image; where the walk fails, say so: the figures stand without it."""
    try:
        with quiet():
            track.found.parting = _parting(track, reference, graph, places, path, batch)
    except Exception as error:  # of a library
        track.found.note = f"{track.found.note} not walked: {where_it_failed(error)}".strip()[:300]


def _parting(
    track: RunLowering, reference: ImageNet, graph: Graph, places: CallPlaces, path: str, batch: int
) -> PartingPoint | None:
    sample = reference.sample(path)
    if track.noise or track.other:
        mine = walk_lines(reference.front, path, places)
        with places.using(track.noise.swap) if track.noise else nullcontext():
            net = track.other or reference
            found = parting(mine, walk_lines(net.front, path, places), "preprocessing")
            different = not torch.equal(net.sample(path), sample)
        if found is not None or different or not track.other:
            return found
    whole = sample[None].expand(batch, *sample.shape).contiguous()
    own = _walked(reference, graph, whole)
    return parting(own, _other(track, graph, whole, own), "model")


def _walked(net: ImageNet, graph: Graph, batch: Tensor) -> list[WalkedValue]:
    if isinstance(net.net, str):
        return walk_onnx(net.net, batch)
    if not isinstance(graph, fx.GraphModule):
        raise TightropeError(f"the net of {net.name!r} is not one graph: {graph}")
    return walk_graph(graph, batch, eager)


def _other(track: RunLowering, graph: Graph, batch: Tensor, own: list[WalkedValue]) -> list[WalkedValue]:
    name, other = track.found.name, track.other
    if other is not None:
        return _walked(other, None if isinstance(other.net, str) else capture_net(other.net, batch), batch)
    if name.endswith(".onnx"):
        return walk_onnx(Path(name), batch)
    if track.graph is not None:
        return walk_graph(track.graph, batch, eager)
    assert isinstance(graph, fx.GraphModule)
    try:
        return walk_graph(graph, batch, lowering(name))
    except Exception:  # it returns one value at a time
        return walk_in_turn(graph, batch, lowering(name), own)
