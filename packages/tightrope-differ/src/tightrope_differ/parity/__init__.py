"""One pipeline under other lowerings: what differs, by how much, where, and how to pin it."""

from tightrope_differ.images.pinned import PinnedNet
from tightrope_differ.parity.compare import ParityOptions, compare
from tightrope_differ.parity.pin import pin_net, pinned_pipeline
from tightrope_differ.parity.pipeline import ImageNet

__all__ = ["ImageNet", "ParityOptions", "PinnedNet", "compare", "pin_net", "pinned_pipeline"]
