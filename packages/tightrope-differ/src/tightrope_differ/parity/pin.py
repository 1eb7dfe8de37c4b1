"""Preprocessing and net as one graph, so that every backend runs the same arithmetic on the same pixels.

Idea        The user's function is a black box: it gets pixels of our choice in place of what the resize
            returned, and every number that it returns turns out to depend on one pixel. So preprocessing is
            a resize, a crop, an order of channels and a table of 256 numbers per channel.
Guarantee   The graph returns the bits of the user's function on every image that was given: all are checked.
Gaps        One size of images; one resize by Pillow, of the whole image; the decoder stays outside.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tightrope.core import TightropeError
from tightrope_differ.images.noises import FILTERS
from tightrope_differ.images.pinned import PinnedNet, pillow_weights, pixels_of
from tightrope_differ.images.places import DECODE, RESIZE, CallPlaces, ImageSwap, PlaceCall
from tightrope_differ.nets.lowerings import OnnxCall, onnx_file, run
from tightrope_differ.parity.pipeline import ImageNet


def pin_net(net: ImageNet, paths: Sequence[Path], places: CallPlaces) -> PinnedNet:
    """Write preprocessing and net as one module, and check it on all images.

    Args:
        net: its preprocessing calls Pillow.
        paths: of images of one size.
        places: in force.

    Raises:
        TightropeError: preprocessing is more than a resize of Pillow, a crop and a table; or images differ in
            size; or an image comes out with other bits.
    """
    if not isinstance(net.net, nn.Module):
        raise TightropeError(f"{net.name!r} has a net in ONNX: return its torch.nn.Module to pin it.")
    first = str(paths[0])
    with places.watched() as calls:
        net.sample(first)
    pixels = pixels_of(first)
    resizes = [call for call in calls if call.kind == RESIZE]
    weights, (high, wide) = None, pixels.shape[:2]
    if resizes:
        method = _method(resizes, pixels, net.name)
        new_wide, new_high = resizes[0].made.size
        weights = (pillow_weights(high, new_high, method), pillow_weights(wide, new_wide, method))
        high, wide = new_high, new_wide
    elif not any(call.kind == DECODE for call in calls):
        raise TightropeError(f"{net.name!r} decodes by neither Pillow nor OpenCV.")

    def sample(drawn: NDArray[np.uint8]) -> NDArray[Any]:
        swap = ImageSwap(resize=lambda *_: drawn) if resizes else ImageSwap(decode=lambda *_: drawn)
        with places.using(swap):
            return net.sample(first).numpy()

    found = _identified(sample, (high, wide), net.name)
    pinned = PinnedNet(net.net, *found, weights).eval()
    pinned.rows_first = not _equal(pinned, net, first, pixels)
    for path in map(str, paths):
        given = pixels_of(path)
        if given.shape != pixels.shape:
            high, wide = given.shape[:2]
            raise TightropeError(f"{path!r} has {wide} x {high} pixels, the first image {pixels.shape[1]} x "
                                 f"{pixels.shape[0]}: pin images of one size.")  # fmt: skip
        if not _equal(pinned, net, path, given):
            raise TightropeError(
                f"{path!r} comes out of the pinned graph with other bits: nothing was written."
            )
    return pinned


def _method(resizes: Sequence[PlaceCall], pixels: NDArray[np.uint8], name: str) -> int:
    call = resizes[0]
    if len(resizes) > 1 or call.library != "Pillow":
        raise TightropeError(
            f"{name!r} resizes {len(resizes)} times, by {call.library} at {call.line}: pin one of Pillow."
        )
    resample, box = call.how
    if box is not None or not np.array_equal(np.asarray(call.given), pixels):
        raise TightropeError(f"{name!r} crops before it resizes at {call.line}: resize first to pin it.")
    return FILTERS["bicubic"] if resample is None else int(resample)


def _identified(
    sample: Callable[[NDArray[np.uint8]], NDArray[Any]], shape: tuple[int, int], name: str
) -> tuple[NDArray[Any], list[int], tuple[int, int], tuple[int, int]]:
    """Find the table by pictures of one value, then channels and crop by a picture of random pixels."""
    plain = (sample(np.full((*shape, 3), value, np.uint8)) for value in range(256))
    table = np.stack([one[..., 0, 0] for one in plain], -1)
    drawn = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    made = sample(drawn)
    if made.ndim == 3 and made.shape[1] <= shape[0] and made.shape[2] <= shape[1]:
        high, wide = made.shape[1:]
        corners = np.ones((shape[0] - high + 1, shape[1] - wide + 1), bool)
        for row, one in zip(table, made, strict=True):  # most corners are refused by their first pixel
            corners &= (row[drawn] == one[0, 0]).any(-1)[: len(corners), : corners.shape[1]]
        for top, left in np.argwhere(corners).tolist():
            part = drawn[top : top + high, left : left + wide]
            fits = [
                [np.array_equal(row[part[..., k]], one) for k in range(3)]
                for row, one in zip(table, made, strict=True)
            ]
            if all(map(any, fits)):
                return table, [one.index(True) for one in fits], (top, left), (high, wide)
    raise TightropeError(
        f"preprocess of {name!r} is more than a resize, a crop and numbers of pixels: move the rest."
    )


def _equal(pinned: PinnedNet, net: ImageNet, path: str, pixels: NDArray[np.uint8]) -> bool:
    return torch.equal(pinned.sample(torch.from_numpy(pixels)[None])[0], net.sample(path))


def pinned_pipeline(net: ImageNet, pinned: PinnedNet) -> ImageNet:
    """Give the pipeline whose preprocessing is to decode."""
    return ImageNet(f"pinned {net.name}", pixels_of, pinned, net.answer)


def write_pinned(pinned: PinnedNet, path: Path, image: Path) -> None:
    """Write a pinned graph as ONNX, for one image, and run the file once.

    Raises:
        TightropeError: ONNX Runtime answers otherwise than torch by more than rounding.
    """
    batch = torch.from_numpy(pixels_of(str(image)))[None]
    onnx_file(pinned, batch, path)
    for one, other in zip(run(OnnxCall(str(path)), batch), run(pinned, batch), strict=True):
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-4):
            raise TightropeError(f"{str(path)!r} answers otherwise than the net: export failed.")
