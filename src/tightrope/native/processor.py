"""Which processor this is, as the system says: home folders, and so what is kept in them, are shared."""

import functools
import hashlib
import platform
from pathlib import Path
from typing import Final

_CPUINFO: Final = Path("/proc/cpuinfo")
_KIND: Final = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
    "isa", "uarch", "cpu", "revision",
)  # fmt: skip
"""Fields of Linux that say which processor it is: those of x86 and Arm, of RISC-V and of POWER."""


@functools.cache
def described() -> tuple[str, str]:
    """Name the processor, and hash what the system says of it.

    >>> len(described()[1])
    8
    """
    fields = _fields(_CPUINFO.read_text(errors="replace")) if _CPUINFO.is_file() else {}
    fields["system"] = f"{platform.machine()} {'' if fields else platform.processor()}".strip()
    name = fields.get("model name") or fields.get("uarch") or fields.get("cpu") or fields["system"]
    return name, hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:8]


def _fields(cpuinfo: str) -> dict[str, str]:
    """Read what the first processor's block says of its kind."""
    block = cpuinfo.strip().partition("\n\n")[0]
    pairs = (line.partition(":")[::2] for line in block.splitlines())
    return {key.strip(): value.strip() for key, value in pairs if key.strip() in _KIND}
