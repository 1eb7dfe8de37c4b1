"""Where preprocessing calls an image library: the calls that a lowering replaces, with the user's line.

Idea        The user's function runs unchanged. `Image.open`, `Image.resize`, `cv2.imread`, `cv2.imdecode` and
            `cv2.resize` go through here, where another decoder, another resize or another colour format
            answers in their place.
Guarantee   Without a replacement every call is the library's own, with its own arguments. Outside of
            ``with CallPlaces()`` the libraries are as they were.
Gaps        Pixels in 8 bits, grey or RGB. Resizes of tensors and other libraries are not seen.
"""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tightrope_differ.lines import user_line

Pixels: TypeAlias = NDArray[np.uint8]
"""Height x width x 3 in RGB, or height x width in grey."""
DECODE, COLOUR, RESIZE = "decode", "colour", "resize"
_ORIENTATION: Final = 274
"""Number of the tag of EXIF."""


def decode_pillow(data: bytes, grey: bool) -> Pixels:
    """Decode as Pillow does."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert("L" if grey else "RGB"))


def upright(data: bytes, pixels: Pixels) -> Pixels:
    """Turn pixels as the orientation of EXIF says."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        turn = image.getexif().get(_ORIENTATION, 1)
    if turn in (2, 4, 5, 7):
        pixels = np.fliplr(pixels)
    if turns := {3: 2, 4: 2, 5: 1, 6: 3, 7: 3, 8: 1}.get(turn, 0):
        pixels = np.rot90(pixels, turns)
    return np.ascontiguousarray(pixels)


@dataclass(frozen=True, slots=True)
class ImageSwap:
    """What answers in place of a library; None = the library itself.

    Attributes:
        decode: bytes of a JPEG and whether it is grey -> pixels.
        colour: what becomes of pixels once they are decoded.
        resize: pixels and (width, height) -> pixels.
    """

    decode: Callable[[bytes, bool], Pixels] | None = None
    colour: Callable[[Pixels], Pixels] | None = None
    resize: Callable[[Pixels, tuple[int, int]], Pixels] | None = None


@dataclass(frozen=True, slots=True)
class PlaceCall:
    """One call of a library: which kind, whose, the user's line, what came in and what went out."""

    kind: str
    library: str
    line: str
    given: Any
    made: Any
    how: Any = None


@dataclass
class CallPlaces:
    """Replacements that are in force, and calls as they happen.

    Attributes:
        swap: what answers now.
        calls: since `watched` began; None outside of it.
    """

    swap: ImageSwap = field(default_factory=ImageSwap)
    calls: list[PlaceCall] | None = None
    _undo: list[tuple[Any, str, Any]] = field(default_factory=list)

    def __enter__(self) -> Self:
        if find_spec("PIL"):
            from PIL import Image

            self._replace(Image, "open", self._pil_open)
            self._replace(Image.Image, "resize", self._pil_resize)
        if find_spec("cv2"):
            import cv2

            self._replace(cv2, "imread", self._cv_read)
            self._replace(cv2, "imdecode", self._cv_decode)
            self._replace(cv2, "resize", self._cv_resize)
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)

    @contextmanager
    def using(self, swap: ImageSwap) -> Iterator[None]:
        """Let replacements answer for a while."""
        before, self.swap = self.swap, swap
        try:
            yield
        finally:
            self.swap = before

    @contextmanager
    def watched(self) -> Iterator[list[PlaceCall]]:
        """List the calls that happen meanwhile."""
        before, self.calls = self.calls, []
        try:
            yield self.calls
        finally:
            self.calls = before

    def _replace(self, owner: Any, name: str, maker: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._undo.append((owner, name, original))
        setattr(owner, name, maker(original))

    def _say(self, kind: str, library: str, given: Any, made: Any, how: Any = None) -> None:
        if self.calls is not None:
            self.calls.append(PlaceCall(kind, library, user_line(sys._getframe(2)), given, made, how))

    def _decodes(self) -> bool:
        """Tell whether something answers in place of decoders."""
        return self.swap.decode is not None or self.swap.colour is not None

    def _decoded(self, data: bytes, grey: bool) -> Pixels:
        swap = self.swap
        with self.using(ImageSwap()):
            pixels = (swap.decode or decode_pillow)(data, grey)
            return pixels if swap.colour is None or pixels.ndim == 2 else swap.colour(pixels)

    def _pil_open(self, original: Any) -> Any:
        def open(fp: Any, *args: Any, **kwargs: Any) -> Any:
            image = original(fp, *args, **kwargs)
            if self._decodes() and image.format == "JPEG" and image.mode in ("L", "RGB"):
                from PIL import Image

                old = image
                if hasattr(fp, "read"):
                    fp.seek(0)
                    data = fp.read()
                else:
                    old.close()
                    data = Path(fp).read_bytes()
                image = Image.fromarray(self._decoded(data, old.mode == "L"))
                image.info, image.format = old.info, old.format
            self._say(DECODE, "Pillow", None, image)
            return image

        return open

    def _pil_resize(self, original: Any) -> Any:
        def resize(image: Any, size: Any, resample: Any = None, *args: Any, **kwargs: Any) -> Any:
            swap = self.swap.resize
            box = kwargs.get("box", args[0] if args else None)
            if swap is None or image.mode not in ("L", "RGB"):
                made = original(image, size, resample, *args, **kwargs)
            else:
                from PIL import Image

                with self.using(ImageSwap()):
                    part = image if box is None else image.crop(tuple(round(edge) for edge in box))
                    made = Image.fromarray(swap(np.asarray(part), (int(size[0]), int(size[1]))))
            self._say(RESIZE, "Pillow", image, made, (resample, box))
            return made

        return resize

    def _cv_read(self, original: Any) -> Any:
        def imread(filename: Any, flags: Any = 1, *args: Any) -> Any:
            made = original(filename, flags, *args)
            if made is not None and self._decodes():
                made = self._cv_pixels(Path(filename).read_bytes(), flags, made)
            self._say(DECODE, "OpenCV", None, made)
            return made

        return imread

    def _cv_decode(self, original: Any) -> Any:
        def imdecode(buf: Any, flags: Any, *args: Any) -> Any:
            made = original(buf, flags, *args)
            if made is not None and self._decodes():
                made = self._cv_pixels(bytes(buf), flags, made)
            self._say(DECODE, "OpenCV", None, made)
            return made

        return imdecode

    def _cv_pixels(self, data: bytes, flags: int, made: Any) -> Any:
        """Decode as OpenCV would: blue first, turned upright unless the flags say no."""
        if flags & ~128 not in (0, 1) or not data.startswith(b"\xff\xd8"):
            return made
        pixels = self._decoded(data, not flags & 1)
        if not flags & 128:
            pixels = upright(data, pixels)
        return np.ascontiguousarray(pixels[..., ::-1] if pixels.ndim == 3 else pixels)

    def _cv_resize(self, original: Any) -> Any:
        def resize(src: Any, dsize: Any, *args: Any, **kwargs: Any) -> Any:
            swap = self.swap.resize
            made = original(src, dsize, *args, **kwargs)
            if swap is not None and src.dtype == np.uint8 and (src.ndim == 2 or src.shape[2] == 3):
                with self.using(ImageSwap()):
                    made = swap(src, (made.shape[1], made.shape[0]))
            self._say(RESIZE, "OpenCV", src, made, kwargs.get("interpolation", 1))
            return made

        return resize
