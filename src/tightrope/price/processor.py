"""Which processor prices are measured on: home folders, and so the prices in them, are shared by machines."""

import functools
import hashlib
import platform
from pathlib import Path
from typing import Final

import torch

_CPUINFO: Final = Path("/proc/cpuinfo")
_KIND: Final = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
    "isa", "uarch", "cpu", "revision",
)  # fmt: skip
"""Fields of Linux that say which processor it is: those of x86 and Arm, of RISC-V and of POWER."""


def processor() -> str:
    """Name the processor and the instructions that torch's kernels use on it.

    Returns:
        A name for people, a digest of what the system says of the processor, and torch's capability.

    Example:
        >>> processor()  # doctest: +SKIP
        'AMD EPYC 5f0c1d22 AVX512'
    """
    name, digest = _described()
    return f"{name} {digest} {torch.backends.cpu.get_cpu_capability()}"


@functools.cache
def _described() -> tuple[str, str]:
    fields = _fields(_CPUINFO.read_text(errors="replace")) if _CPUINFO.is_file() else {}
    fields["system"] = f"{platform.machine()} {platform.processor()}".strip()
    name = fields.get("model name") or fields.get("uarch") or fields.get("cpu") or fields["system"]
    return name, hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:8]


def _fields(cpuinfo: str) -> dict[str, str]:
    """Read what the first processor's block says of its kind."""
    block = cpuinfo.strip().partition("\n\n")[0]
    pairs = (line.partition(":")[::2] for line in block.splitlines())
    return {key.strip(): value.strip() for key, value in pairs if key.strip() in _KIND}
