"""Preprocessing and net as one graph, so that every backend runs the same arithmetic on the same pixels.

Idea        The user's function is a black box: it gets pixels of our choice in place of what the resize
            returned, and every number that it returns turns out to depend on one pixel. So preprocessing is
            a resize, a crop, an order of channels and a table of 256 numbers per channel. Resizes of Pillow
            are sums of whole numbers, which float64 adds without rounding, in any order.
Source      Pillow, Resample.c: weights in 22 bits, each pass rounded to 8 bits
Guarantee   The graph returns the bits of the user's function on every image that was given: all are checked.
Gaps        One size of images; one resize by Pillow, of the whole image; the decoder stays outside.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope_differ.images.noises import FILTERS
from tightrope_differ.images.places import DECODE, RESIZE, CallPlaces, ImageSwap, PlaceCall
from tightrope_differ.parity.lowerings import OnnxCall, onnx_file, run
from tightrope_differ.parity.pipeline import ImageNet

_BITS: Final = 22
_ROUNDS: Final = 40


def _sinc(x: float) -> float:
    return math.sin(x * math.pi) / (x * math.pi) if x else 1.0


def _bicubic(x: float) -> float:
    x = abs(x)
    if x < 1:
        return ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2 else 0.0


_A, _B = float(np.float32(0.54)), float(np.float32(0.46))
_KERNELS: Final[dict[str, tuple[float, Callable[[float], float]]]] = {
    "box": (0.5, lambda x: float(-0.5 < x <= 0.5)),
    "bilinear": (1.0, lambda x: max(0.0, 1.0 - abs(x))),
    "hamming": (1.0, lambda x: _sinc(x) * (_A + _B * math.cos(x * math.pi)) if abs(x) < 1 else 0.0),
    "bicubic": (2.0, _bicubic),
    "lanczos": (3.0, lambda x: _sinc(x) * _sinc(x / 3) if -3 <= x < 3 else 0.0),
}
"""Support and weight of each filter."""


def pillow_weights(size: int, new: int, method: str) -> NDArray[np.float64]:
    """Give the whole numbers by which Pillow adds ``size`` pixels up to ``new``, in units of 2**-22.

    Example:
        >>> pillow_weights(4, 2, "box")[0].tolist()
        [2097152.0, 2097152.0, 0.0, 0.0]
    """
    found = np.zeros((new, size))
    scale = size / new
    if method == "nearest":
        from PIL import Image

        places = Image.fromarray(np.arange(size, dtype=np.int32)[None]).resize(
            (new, 1), Image.Resampling.NEAREST
        )
        found[np.arange(new), np.asarray(places)[0]] = 2**_BITS
        return found
    reach, kernel = _KERNELS[method]
    wide = max(scale, 1.0)
    for at in range(new):
        center = (at + 0.5) * scale
        low = max(int(center - reach * wide + 0.5), 0)
        high = min(int(center + reach * wide + 0.5), size)
        taps = [kernel((k + low - center + 0.5) * (1.0 / wide)) for k in range(high - low)]
        total = 0.0
        for tap in taps:
            total += tap
        shares = [tap / total * 2**_BITS if total else 0.0 for tap in taps]
        found[at, low:high] = [int(share - 0.5) if share < 0 else int(share + 0.5) for share in shares]
    return found


class PinnedNet(nn.Module):
    """Decoded pixels -> what the net returns: ``uint8`` of batch x height x width x 3, in RGB.

    Args:
        net: the user's.
        table: channels x 256: the number that stands for each pixel.
        channels: of the pixel, one for each channel of the table.
        corner: top and left of the crop after the resize.
        size: height and width of the crop.
        weights: of rows and of columns; None = no resize.
    """

    rows_first: bool
    """Which pass is the first; Pillow decides by sizes, in other ways in other versions."""
    table: Tensor
    channels: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(
        self,
        net: nn.Module,
        table: NDArray[Any],
        channels: Sequence[int],
        corner: tuple[int, int],
        size: tuple[int, int],
        weights: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
    ) -> None:
        super().__init__()
        self.rows_first = False
        self.net, self.corner, self.size, self.resizes = net, corner, size, weights is not None
        self.register_buffer("table", torch.from_numpy(table.copy()).flatten())
        self.register_buffer("channels", torch.tensor(channels))
        if weights is not None:
            self.register_buffer("rows", torch.from_numpy(weights[0]))
            self.register_buffer("columns", torch.from_numpy(weights[1].T.copy()))

    def sample(self, pixels: Tensor) -> Tensor:
        """Preprocess decoded pixels."""
        whole = pixels.permute(0, 3, 1, 2)
        if self.resizes and self.rows_first:
            whole = _rounded(_rounded(self.rows @ whole.double()) @ self.columns)
        elif self.resizes:
            whole = _rounded(self.rows @ _rounded(whole.double() @ self.columns))
        (top, left), (high, wide) = self.corner, self.size
        part = whole[:, :, top : top + high, left : left + wide].index_select(1, self.channels).long()
        first = 256 * torch.arange(len(self.channels), device=part.device)[:, None, None]
        return self.table[part + first]

    def forward(self, pixels: Tensor) -> Any:
        """Preprocess and run the net."""
        return self.net(self.sample(pixels))


def _rounded(sums: Tensor) -> Tensor:
    """Round to 8 bits as Pillow does; all before is exact, and so is a division by a power of two."""
    return torch.floor((sums + 2 ** (_BITS - 1)) / 2**_BITS).clamp(0, 255)


def pixels_of(path: str) -> NDArray[np.uint8]:
    """Decode an image as a pinned graph takes it: RGB, by Pillow."""
    from PIL import Image

    with Image.open(path) as image:
        return np.array(image.convert("RGB"))


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
    weights, shape = None, pixels.shape[:2]
    if resizes:
        method = _method(resizes, pixels, net.name)
        wide, high = resizes[0].made.size
        weights = (pillow_weights(shape[0], high, method), pillow_weights(shape[1], wide, method))
        shape = (high, wide)
    elif not any(call.kind == DECODE for call in calls):
        raise TightropeError(f"{net.name!r} decodes by neither Pillow nor OpenCV.")
    found = _identified(net, first, shape, places, resized=bool(resizes))
    pinned = PinnedNet(net.net, *found, weights).eval()
    if not _equal(pinned, net, first, pixels):
        pinned.rows_first = True
    for path in paths:
        _check(pinned, net, str(path), pixels.shape)
    return pinned


def _method(resizes: Sequence[PlaceCall], pixels: NDArray[np.uint8], name: str) -> str:
    call = resizes[0]
    if len(resizes) > 1 or call.library != "Pillow":
        raise TightropeError(
            f"{name!r} resizes {len(resizes)} times, by {call.library} at {call.line}: pin one of Pillow."
        )
    resample, box = call.how
    if box is not None or not np.array_equal(np.asarray(call.given), pixels):
        raise TightropeError(f"{name!r} crops before it resizes at {call.line}: resize first to pin it.")
    number = FILTERS["bicubic"] if resample is None else int(resample)
    return next(method for method, known in FILTERS.items() if known == number)


def _identified(
    net: ImageNet, path: str, shape: tuple[int, ...], places: CallPlaces, *, resized: bool
) -> tuple[NDArray[Any], list[int], tuple[int, int], tuple[int, int]]:
    """Find the table, the channels and the crop by pixels of our choice."""
    rng = np.random.default_rng(0)
    table: NDArray[Any] | None = None
    channels: list[int] = []
    corner = size = (0, 0)
    for drawing in range(_ROUNDS):
        drawn = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        given = partial(_given, drawn)
        swap = ImageSwap(resize=given) if resized else ImageSwap(decode=given)
        with places.using(swap):
            made = net.sample(path).numpy()
        if table is None:
            size = made.shape[1:]
            corner, channels = _source(drawn, made, net.name)
            table = np.full((len(made), 256), np.nan, made.dtype)
        for at, channel in enumerate(channels):
            part = _part(drawn, corner, size, channel)
            known = table[at, part]
            table[at, part] = made[at]
            changed = ~np.isnan(known) & (known != made[at])
            if changed.any() or not np.array_equal(table[at, part], made[at]):
                raise _refusal(net.name)
        if drawing and not np.isnan(table).any():  # one picture may hide what depends on all of it
            return table, channels, corner, size
    raise _refusal(net.name)


def _given(drawn: NDArray[np.uint8], *_: object) -> NDArray[np.uint8]:
    return drawn


def _part(
    drawn: NDArray[np.uint8], corner: tuple[int, int], size: Sequence[int], channel: int
) -> NDArray[Any]:
    return drawn[corner[0] : corner[0] + size[0], corner[1] : corner[1] + size[1], channel]


def _source(drawn: NDArray[np.uint8], made: NDArray[Any], name: str) -> tuple[tuple[int, int], list[int]]:
    """Find of which pixel every number is a function."""
    high, wide = made.shape[1:]
    corners = [(y, x) for y in range(drawn.shape[0] - high + 1) for x in range(drawn.shape[1] - wide + 1)]
    middle = ((drawn.shape[0] - high) // 2, (drawn.shape[1] - wide) // 2)
    for corner in sorted(corners, key=lambda one: abs(one[0] - middle[0]) + abs(one[1] - middle[1])):
        channels = [_channel(drawn, corner, one) for one in made]
        if None not in channels:
            return corner, [one for one in channels if one is not None]
    raise _refusal(name)


def _channel(drawn: NDArray[np.uint8], corner: tuple[int, int], made: NDArray[Any]) -> int | None:
    for channel in range(3):
        part = _part(drawn, corner, made.shape, channel)
        for rows in (slice(0, 8), slice(None)):  # most are refused after a few rows
            table = np.zeros(256, made.dtype)
            table[part[rows]] = made[rows]
            if not np.array_equal(table[part[rows]], made[rows]):
                break
        else:
            return channel
    return None


def _refusal(name: str) -> TightropeError:
    return TightropeError(
        f"preprocess of {name!r} is more than a resize, a crop and numbers of pixels: move the rest."
    )


def _equal(pinned: PinnedNet, net: ImageNet, path: str, pixels: NDArray[np.uint8]) -> bool:
    return torch.equal(pinned.sample(torch.from_numpy(pixels)[None])[0], net.sample(path))


def _check(pinned: PinnedNet, net: ImageNet, path: str, shape: tuple[int, ...]) -> None:
    pixels = pixels_of(path)
    if pixels.shape != shape:
        raise TightropeError(f"{path!r} has {pixels.shape[1]} x {pixels.shape[0]} pixels, the first image "
                             f"{shape[1]} x {shape[0]}: pin images of one size.")  # fmt: skip
    if not _equal(pinned, net, path, pixels):
        raise TightropeError(f"{path!r} comes out of the pinned graph with other bits: nothing was written.")


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
    for one, other in zip(run(OnnxCall(path), batch), run(pinned, batch), strict=True):
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-4):
            raise TightropeError(f"{str(path)!r} answers otherwise than the net: export failed.")
