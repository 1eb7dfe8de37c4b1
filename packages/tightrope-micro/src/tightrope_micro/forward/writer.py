"""The graph of inference while it is written: weights are constants."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Argument, StorageId, View
from tightrope_micro.constants import Constants
from tightrope_micro.translator import Translator


@dataclass
class NetTranslator(Translator):
    """The new graph while it is written.

    Attributes:
        frozen: captured storage of a weight -> its numbers.
        flash: constants that the new graph reads.
    """

    frozen: MutableMapping[StorageId, NDArray[Any]] = field(default_factory=dict)
    flash: Constants = field(default_factory=Constants)

    def look(self, value: Argument) -> View:
        """Look at a tensor: a constant, or one that is computed or given."""
        if not isinstance(value, View):
            self.refuse(f"takes {value!r:.60} where a tensor is expected")
        if value.base in self.frozen:
            flat = self.frozen[value.base][value.offset :]
            if flat.dtype != np.float32 or not prod(value.shape):
                self.refuse(f"reads {flat.dtype} constants of {list(value.shape)}; the kernels have float32")
            strides = tuple(stride * flat.itemsize for stride in value.strides)
            return self.flash.put(np.lib.stride_tricks.as_strided(flat, value.shape, strides))
        return super().look(value)
