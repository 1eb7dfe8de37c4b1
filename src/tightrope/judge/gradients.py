"""Compare tensors bit for bit, or by digest.

Idea        View the elements as integers of the same width; equal integers are equal bits, so that
            NaN payloads and the sign of zero count, and strides do not.
Guarantee   Tensors on the CPU are read in place: torch allocates nothing, so that a comparison
            never moves the memory figures that it stands beside.
Complexity  Linear in the elements.
Gaps        Sparse, quantized and meta tensors are refused. A tensor on another device is copied to
            the host first, and a conjugated or negated view is resolved first.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from tightrope.core import JudgeError

_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Aspect: TypeAlias = Literal["missing", "extra", "dtype", "shape", "bits"]
Bits: TypeAlias = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which a tensor differs from its reference.

    Attributes:
        name: of the tensor.
        aspect: what differs.
        text: one sentence with both values.
        num_elements: elements whose bits differ, 0 where elements were not compared.
    """

    name: str
    aspect: Aspect
    text: str
    num_elements: int = 0


def compare(reference: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[Difference]:
    """List the tensors of ``other`` that differ from ``reference``: names, dtypes, shapes and bits.

    Raises:
        JudgeError: a tensor cannot be read as plain elements.

    >>> compare({"w": torch.tensor([0.0])}, {"w": torch.tensor([-0.0])})[0].aspect
    'bits'
    """
    found = _names(reference, other)
    for name in (name for name in reference if name in other):
        found += _compare_one(name, reference[name], other[name])
    return found


def digest(tensor: torch.Tensor) -> str:
    """Hash dtype, shape and elements (BLAKE2b, 32 hexadecimal digits); strides do not count.

    Raises:
        JudgeError: the tensor cannot be read as plain elements.
    """
    state = hashlib.blake2b(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), digest_size=16)
    state.update(np.ascontiguousarray(_bits(tensor)).reshape(-1).data)
    return state.hexdigest()


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Hash every tensor of a mapping."""
    return {name: digest(tensor) for name, tensor in tensors.items()}


def compare_digests(reference: Mapping[str, str], other: Mapping[str, str]) -> list[Difference]:
    """List the names whose digests differ, or stand on one side only."""
    found = _names(reference, other)
    for name in (name for name in reference if name in other):
        if reference[name] != other[name]:
            found.append(
                Difference(name, "bits", f"{name}: digest {other[name]}, reference {reference[name]}")
            )
    return found


def _names(reference: Mapping[str, object], other: Mapping[str, object]) -> list[Difference]:
    missing = [Difference(name, "missing", f"{name}: missing") for name in reference if name not in other]
    return missing + [
        Difference(name, "extra", f"{name}: not in the reference") for name in other if name not in reference
    ]


def _compare_one(name: str, reference: torch.Tensor, other: torch.Tensor) -> list[Difference]:
    if reference.dtype != other.dtype:
        return [Difference(name, "dtype", f"{name}: {other.dtype}, reference {reference.dtype}")]
    if reference.shape != other.shape:
        return [
            Difference(name, "shape", f"{name}: {tuple(other.shape)}, reference {tuple(reference.shape)}")
        ]
    mine, yours = _bits(reference), _bits(other)
    unequal = mine != yours
    count = int(np.count_nonzero(unequal))
    if not count:
        return []
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(unequal)), mine.shape))
    where = f"{count} of {mine.size} elements differ, first at {list(at)}"
    text = f"{name}: {where}: bits {yours[at]:#x}, reference {mine[at]:#x}"
    return [Difference(name, "bits", text, count)]


def _bits(tensor: torch.Tensor) -> Bits:
    """View the elements as integers; complex elements get a last axis of two."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise JudgeError(
            f"a {tensor.layout} tensor of {tensor.dtype} on {tensor.device} has no plain elements to compare."
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    bits: Bits = plain.view(_WIDTH[plain.element_size()]).numpy()
    return bits
