"""The graph of inference while it is written: weights are constants, everything else is dense."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Argument, Items, StorageId, View
from tightrope_micro.constants import Constants
from tightrope_micro.names import DIMENSIONS
from tightrope_micro.translator import Translator, contiguous, is_dense


def merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Join neighbouring dimensions that are read as one, and leave out those of one element.

    >>> merged((1, 2, 3, 4, 5), (0, 60, 20, 5, 1))
    ((120,), (1,))
    >>> merged((2, 3, 4), (4, 8, 1))
    ((2, 3, 4), (4, 8, 1))
    """
    sizes: list[int] = []
    steps: list[int] = []
    for size, step in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if sizes and steps[-1] == size * step:
            sizes[-1], steps[-1] = sizes[-1] * size, step
        else:
            sizes.append(size)
            steps.append(step)
    return (tuple(sizes), tuple(steps)) if sizes else ((1,), (1,))


@dataclass
class NetTranslator(Translator):
    """The new graph while it is written; tensors that lie otherwise than their indices are copied.

    Attributes:
        frozen: captured storage of a weight -> its numbers.
        flash: constants that the new graph reads.
    """

    frozen: MutableMapping[StorageId, NDArray[Any]] = field(default_factory=dict)
    flash: Constants = field(default_factory=Constants)

    def look(self, value: Argument) -> View:
        """Look at a tensor: a constant, or a dense one, made so where it is not."""
        if not isinstance(value, View):
            self.refuse(f"takes {value!r:.60} where a tensor is expected")
        if value.base in self.frozen:
            flat = self.frozen[value.base][value.offset :]
            if flat.dtype != np.float32 or not prod(value.shape):
                self.refuse(f"reads {flat.dtype} constants of {list(value.shape)}; the kernels have float32")
            strides = tuple(stride * flat.itemsize for stride in value.strides)
            return self.flash.put(np.lib.stride_tricks.as_strided(flat, value.shape, strides))
        if value.base not in self.known:
            self._caller(value)
        storage = self.storages[self.known[value.base]]
        whole = not value.offset and prod(value.shape) * 4 == storage.bytes
        if storage.label.startswith("float32") and not (whole and is_dense(value)):
            return self.gather(value)
        return super().look(value)

    def bind(self, old: Argument, new: View) -> None:
        """Say that a captured tensor is a new one, which lies in the order of its indices."""
        assert isinstance(old, View)
        plain = contiguous(old.shape)
        if merged(old.shape, old.strides) != merged(old.shape, plain):  # views of it count on how it lies
            order = sorted(range(len(old.shape)), key=lambda axis: -old.strides[axis])
            sizes, lies = (tuple(of[k] for k in order) for of in (old.shape, old.strides))
            shape, steps = merged(sizes, tuple(plain[k] for k in order))
            dense = merged(sizes, lies) == merged(sizes, contiguous(sizes))
            if not dense or len(shape) > DIMENSIONS or old.offset:
                self.refuse("makes a tensor with gaps, or a permutation of many dimensions")
            flat = View(new.base, new.dtype, (prod(old.shape),), (1,), input=new.input)
            (new,) = self.emit("gather", (flat, Items(shape), Items(steps), 0), [(new.dtype, (prod(shape),))])
        super().bind(old, new)

    def bind_as_it_lies(self, old: Argument, new: View) -> None:
        """Say that a captured tensor is a new one that lies as it does."""
        super().bind(old, new)

    def gather(self, value: View) -> View:
        """Copy what a view shows, in the order of its indices."""
        shape, strides = merged(value.shape, value.strides)
        if len(shape) > DIMENSIONS:
            self.refuse(f"reads a permutation of {len(shape)} dimensions; the kernel has {DIMENSIONS}")
        source = self.storages[self.known[value.base]]
        x = self._plain(source.id, "float32", (source.bytes // 4,))
        arguments = (x, Items(shape), Items(strides), value.offset)
        return self.emit("gather", arguments, [("float32", value.shape)])[0]
