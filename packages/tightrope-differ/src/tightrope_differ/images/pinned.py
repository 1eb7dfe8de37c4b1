"""A resize of Pillow, a crop and a table of numbers as a module in front of a net, with the bits of Pillow.

Idea        Pillow adds whole numbers, which float64 adds without rounding, in any order.
Source      Pillow, Resample.c: weights in 22 bits, each pass rounded to 8 bits
Guarantee   A resize has the bits of Pillow, on every backend that adds float64.
Complexity  Two products with a matrix per channel.
Gaps        One size of images.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_BITS: Final = 22


def pillow_weights(size: int, new: int, method: int) -> NDArray[np.float64]:
    """Give the whole numbers by which Pillow adds ``size`` pixels up to ``new``, in units of 2**-22.

    Pillow says them itself: it resizes 32-bit images by the same weights, so rows of one pixel return them.

    Args:
        size: of a row or column.
        new: size after the resize.
        method: number of a filter of Pillow.

    Example:
        >>> pillow_weights(4, 2, 4)[0].tolist()
        [2097152.0, 2097152.0, 0.0, 0.0]
    """
    from PIL import Image

    ones = Image.fromarray(np.eye(size, dtype=np.int32) << _BITS)
    return np.asarray(ones.resize((new, size), Image.Resampling(method))).T.astype(np.float64)


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
            self.register_buffer("rows", torch.from_numpy(weights[0].copy()))
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
