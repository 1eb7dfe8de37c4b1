"""What is compared: the user's preprocessing and net, and images with their labels."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope_differ.images.places import is_foreign, short
from tightrope_differ.parity.graphs import Call
from tightrope_differ.parity.lowerings import OnnxCall

_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


@dataclass(frozen=True)
class ImageNet:
    """Preprocessing of one image file, and a net.

    Attributes:
        name: of the target, for messages.
        front: path of an image -> tensor or array of one sample.
        net: a module in evaluation mode, or the path of a file in ONNX.
        answer: of what the net returned; default: the largest score along dimension 1.
    """

    name: str
    front: Callable[[str], Any]
    net: nn.Module | str
    answer: Callable[[Any], Any] | None = None

    def call(self) -> Call:
        """Give what runs the net as it is."""
        return self.net if isinstance(self.net, nn.Module) else OnnxCall(self.net)

    def sample(self, path: str) -> Tensor:
        """Preprocess one image.

        Raises:
            ValueError: it is no tensor or array of numbers.
        """
        made = self.front(path)
        found = made if isinstance(made, Tensor) else torch.from_numpy(np.ascontiguousarray(made))
        found = found.detach().cpu()
        return found[0] if found.ndim == 4 and len(found) == 1 else found

    def answers(self, results: Sequence[Tensor]) -> Tensor:
        """Give the answers of a batch, one row per image."""
        if self.answer is not None:
            made = self.answer(results[0] if len(results) == 1 else tuple(results))
            return torch.as_tensor(made).reshape(len(results[0]), -1)
        scores = results[0]
        return (scores.argmax(1) if scores.ndim > 1 else scores).reshape(len(scores), -1)


def image_net(target: str, made: object, folder: Path) -> ImageNet:
    """Take what a build function returned apart.

    Raises:
        TightropeError: it is not (model, preprocess) or (model, preprocess, answer).
    """
    match made:
        case (nn.Module() | str() | os.PathLike() as net, front, *more) if (
            callable(front) and len(more) < 2 and all(map(callable, more))
        ):
            rest: Any = more
            if isinstance(net, nn.Module):
                return ImageNet(target, front, net.eval(), *rest)
            file = Path(net) if Path(net).is_file() else folder / net
            if not file.is_file():
                raise TightropeError(
                    f"{target!r} names {str(net)!r:.200}, which is no file: give a net in ONNX."
                )
            return ImageNet(target, front, str(file), *rest)
    raise TightropeError(
        f"{target!r} must return (model, preprocess). The model is a torch.nn.Module or the path of a file in"
        " ONNX. Preprocess takes the path of an image and returns a tensor."
    )


def images_in(folder: Path, most: int = 0) -> tuple[list[Path], list[int] | None]:
    """List the images of a folder, and their labels where each lies in a folder of its class.

    Args:
        folder: searched with all folders below it.
        most: images, spread evenly over all; 0 = all.

    Returns:
        Paths in the order of their names, and classes numbered in the order of their folders.

    Raises:
        TightropeError: there is no folder, or no image.
    """
    if not folder.is_dir():
        raise TightropeError(f"{str(folder)!r} is no folder: give a folder with images.")
    found = sorted(one for one in folder.rglob("*") if one.suffix.lower() in _SUFFIXES and one.is_file())
    if not found:
        raise TightropeError(
            f"{str(folder)!r} has no image ({', '.join(_SUFFIXES)}): give a folder with images."
        )
    classes = sorted({one.relative_to(folder).parts[0] for one in found})
    if most and most < len(found):
        found = [found[at * len(found) // most] for at in range(most)]
    if any(len(one.relative_to(folder).parts) == 1 for one in found) or len(classes) < 2:
        return found, None
    return found, [classes.index(one.relative_to(folder).parts[0]) for one in found]


def where_it_failed(error: BaseException) -> str:
    """Say what failed, and at which line of the user's code."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    line = next((line for one in reversed(frames) if (line := user_line_of(one))), "")
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" + (f" at {line}" if line else "")


def user_line_of(trace: Any) -> str:
    """Name the line of a traceback's entry if it is the user's."""
    file = trace.tb_frame.f_code.co_filename
    return "" if is_foreign(file) else f"{short(file)}:{trace.tb_lineno}"
