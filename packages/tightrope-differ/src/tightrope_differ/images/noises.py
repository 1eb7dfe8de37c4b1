"""System noises of images: decoders and their knobs, resizes, colour formats.

Source      SysNoise (Wang et al., 2021) lists the kinds; the arithmetic is that of Pillow, OpenCV and
            libjpeg-turbo as installed, and ITU-R BT.601 for YUV.
Gaps        Decoders of GPUs and of FFmpeg, and DCT in floats, are not here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from tightrope_differ.images.places import COLOUR, DECODE, RESIZE, ImageSwap, Pixels, decode_pillow, upright

FILTERS: Final = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Of Pillow, by its numbers."""
_OPENCV: Final = {"nearest": 0, "bilinear": 1, "cubic": 2, "area": 3, "lanczos": 4}


@dataclass(frozen=True, slots=True)
class ImageNoise:
    """A replacement in preprocessing.

    Attributes:
        kind: `DECODE`, `COLOUR` or `RESIZE`.
        swap: what answers.
        needs: modules that have to be installed.
    """

    kind: str
    swap: ImageSwap
    needs: tuple[str, ...] = ("PIL",)


def decode_opencv(data: bytes, grey: bool) -> Pixels:
    """Decode as OpenCV does, without a turn by EXIF.

    Raises:
        ValueError: it does not decode.
    """
    import cv2

    made: Any = cv2.imdecode(
        np.frombuffer(data, np.uint8), (0 if grey else 1) | cv2.IMREAD_IGNORE_ORIENTATION
    )
    if made is None:
        raise ValueError("OpenCV decodes no image")
    pixels: Pixels = np.ascontiguousarray(made if grey else made[..., ::-1])
    return pixels


def decode_turbo(data: bytes, grey: bool, *, fast_dct: bool = False, smooth: bool = True) -> Pixels:
    """Decode by libjpeg-turbo, by its fast DCT or without interpolation of colours."""
    import simplejpeg

    made: Pixels = simplejpeg.decode_jpeg(
        data, "GRAY" if grey else "RGB", fastdct=fast_dct, fastupsample=not smooth
    )
    return made[..., 0] if grey else made


def through_yuv(pixels: Pixels, *, mean: bool) -> Pixels:
    """Go to YUV with a quarter of the colours, and back (BT.601, 16 to 235).

    Args:
        pixels: RGB.
        mean: colours of four pixels are their mean (NV12 of cameras), else the first (I420 of OpenCV).

    Example:
        >>> through_yuv(np.full((2, 2, 3), 128, np.uint8), mean=True).ravel()[:3].tolist()
        [128, 128, 128]
    """
    high, wide = pixels.shape[:2]
    whole = np.pad(pixels, ((0, high % 2), (0, wide % 2), (0, 0)), mode="edge").astype(np.float64)
    y = np.rint(16 + whole @ [0.256788, 0.504129, 0.097906])
    few = whole.reshape(whole.shape[0] // 2, 2, -1, 2, 3).mean((1, 3)) if mean else whole[::2, ::2]
    u = np.rint(128 + few @ [-0.148223, -0.290993, 0.439216]).repeat(2, 0).repeat(2, 1) - 128
    v = np.rint(128 + few @ [0.439216, -0.367788, -0.071427]).repeat(2, 0).repeat(2, 1) - 128
    lit = 1.164383 * (y - 16)
    back = np.stack((lit + 1.596027 * v, lit - 0.391762 * u - 0.812968 * v, lit + 2.017232 * u), -1)
    made: Pixels = np.clip(np.rint(back), 0, 255).astype(np.uint8)[:high, :wide]
    return np.ascontiguousarray(made)


def resize_pillow(pixels: Pixels, size: tuple[int, int], *, method: str) -> Pixels:
    """Resize as Pillow does."""
    from PIL import Image

    return np.array(Image.fromarray(pixels).resize(size, Image.Resampling(FILTERS[method])))


def resize_opencv(pixels: Pixels, size: tuple[int, int], *, method: str) -> Pixels:
    """Resize as OpenCV does."""
    import cv2

    made: Any = cv2.resize(np.ascontiguousarray(pixels), size, interpolation=_OPENCV[method])
    pixels = made
    return pixels


def _swapped(pixels: Pixels) -> Pixels:
    return np.ascontiguousarray(pixels[..., ::-1])


def _exif(data: bytes, grey: bool) -> Pixels:
    return upright(data, decode_pillow(data, grey))


def _decoder(call: Callable[[bytes, bool], Pixels], *needs: str) -> ImageNoise:
    return ImageNoise(DECODE, ImageSwap(decode=call), ("PIL", *needs))


_FAST, _PLAIN = partial(decode_turbo, fast_dct=True), partial(decode_turbo, smooth=False)
IMAGE_NOISES: Final[Mapping[str, ImageNoise]] = {
    "decode-pillow": _decoder(decode_pillow),
    "decode-opencv": _decoder(decode_opencv, "cv2"),
    "decode-turbo": _decoder(decode_turbo, "simplejpeg"),
    "decode-fast-dct": _decoder(_FAST, "simplejpeg"),
    "decode-no-smooth": _decoder(_PLAIN, "simplejpeg"),
    "decode-fast-dct-no-smooth": _decoder(partial(_FAST, smooth=False), "simplejpeg"),
    "decode-exif": _decoder(_exif),
    "colour-i420": ImageNoise(COLOUR, ImageSwap(colour=partial(through_yuv, mean=False))),
    "colour-nv12": ImageNoise(COLOUR, ImageSwap(colour=partial(through_yuv, mean=True))),
    "colour-bgr": ImageNoise(COLOUR, ImageSwap(colour=_swapped)),
    **{
        f"resize-pillow-{name}": ImageNoise(RESIZE, ImageSwap(resize=partial(resize_pillow, method=name)))
        for name in FILTERS
    },
    **{
        f"resize-opencv-{name}": ImageNoise(
            RESIZE, ImageSwap(resize=partial(resize_opencv, method=name)), ("PIL", "cv2")
        )
        for name in _OPENCV
    },
}
"""By name."""
