"""What is compared: the user's preprocessing and net, and images with their labels."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope_differ.nets.lowerings import OnnxCall


@dataclass(frozen=True)
class ImageNet:
    """Preprocessing of one image file, and a net.

    Attributes:
        name: of the target, for messages.
        front: path of an image -> tensor or array of one sample.
        net: a module in evaluation mode, or a file in ONNX.
        answer: of what the net returned; default: the largest score along dimension 1.
    """

    name: str
    front: Callable[[str], Any]
    net: nn.Module | OnnxCall
    answer: Callable[[Any], Any] | None = None

    def sample(self, path: str) -> Tensor:
        """Preprocess one image."""
        made = self.front(path)
        found = made if isinstance(made, Tensor) else torch.from_numpy(np.ascontiguousarray(made))
        found = found.detach().cpu()
        return found[0] if found.ndim == 4 and len(found) == 1 else found

    def answers(self, results: Sequence[Tensor]) -> Tensor:
        """Give the answers of a batch, one row per image."""
        scores = results[0]
        if self.answer is not None:
            made = torch.as_tensor(self.answer(scores if len(results) == 1 else tuple(results)))
        else:
            made = scores.argmax(1) if scores.ndim > 1 else scores
        return made.reshape(len(scores), -1)


def image_net(target: str, made: object, folder: Path) -> ImageNet:
    """Take what a build function returned apart.

    Raises:
        TightropeError: it is not (model, preprocess) or (model, preprocess, answer).
    """
    net, front, *more = made if isinstance(made, tuple) and len(made) in (2, 3) else (None, None)
    if not isinstance(net, nn.Module | str | os.PathLike) or not all(map(callable, (front, *more))):
        raise TightropeError(
            f"{target!r} must return (model, preprocess). The model is a torch.nn.Module or the path of a "
            "file in ONNX. Preprocess takes the path of an image and returns a tensor."
        )
    if isinstance(net, nn.Module):
        return ImageNet(target, front, net.eval(), *more)
    file = Path(net) if Path(net).is_file() else folder / net
    if not file.is_file():
        raise TightropeError(f"{target!r} names {str(net)!r:.200}, which is no file: give a net in ONNX.")
    return ImageNet(target, front, OnnxCall(str(file)), *more)
