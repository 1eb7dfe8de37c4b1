"""Which processor prices are measured on: home folders, and so the prices in them, are shared by machines."""

import torch

from tightrope.native.processor import described


def processor() -> str:
    """Name the processor and the instructions that torch's kernels use on it.

    Returns:
        A name for people, a digest of what the system says of the processor, and torch's capability.

    Example:
        >>> processor()  # doctest: +SKIP
        'AMD EPYC 5f0c1d22 AVX512'
    """
    name, digest = described()
    return f"{name} {digest} {torch.backends.cpu.get_cpu_capability()}"
