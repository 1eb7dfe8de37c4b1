"""What users ask for in so many words: a budget, what to check, whether to fuse, how to clip."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Final

from tightrope.capture.clip import Clip
from tightrope.core import Bytes, Machine, TightropeError, parse_bytes
from tightrope.core.arguments import refuse_argument
from tightrope.core.machine import check_machine
from tightrope.core.units import shown

AS_EAGER: Final = ("eager", "always")
"""What ``verify`` is where runs are compared with eager, bit for bit."""
REWRITING: Final = ("exact", "backtracking", "restarts", "agent")
"""Methods of ``rewrite``; True is the first."""


def check_verify(verify: object, known: Sequence[str] = ("first", "graph")) -> None:
    """Refuse anything that ``verify`` does not stand for.

    Raises:
        TightropeError: quotes it.
    """
    if verify is not None and not (isinstance(verify, str) and verify in known):
        names = ", ".join(f'"{name}"' for name in known)
        raise TightropeError(f"verify={shown(verify)}: use {names} or None.")


def check_fallback(fallback: object) -> None:
    """Refuse anything that ``fallback`` does not stand for.

    Raises:
        TightropeError: quotes it.
    """
    if not (isinstance(fallback, str) and fallback in ("auto", "evict", "pieces", "replay")):
        raise TightropeError(f'fallback={shown(fallback)}: use "auto", "evict", "pieces" or "replay".')


@dataclass(frozen=True)
class Percentage:
    """A budget in percent of what the unplanned step needs."""

    text: str

    def __call__(self, whole: Bytes) -> Bytes:
        """Return its bytes, where ``whole`` are 100 %."""
        return parse_bytes(self.text, whole=whole)

    def __str__(self) -> str:
        return self.text.replace(" ", "")


def parse_budget(budget: str | int, machine: Machine | None) -> Bytes | Callable[[Bytes], Bytes]:
    """Read a budget: bytes, or for a share a function of what the unplanned step needs.

    Raises:
        BudgetSyntaxError: it is not an amount of memory.
        TightropeError: ``machine`` has less, or is none.
    """
    check_machine(machine)
    if isinstance(budget, str) and budget.strip().endswith("%"):
        parse_bytes(budget, whole=1)
        return Percentage(budget)
    size = parse_bytes(budget, whole=1)  # no share here, but a refusal may offer one
    if machine is not None and size > machine.tiers[0].bytes:
        raise TightropeError(
            f"budget {budget!r} is more than {machine.name} has "
            f"({machine.tiers[0].bytes} bytes of {machine.tiers[0].name})."
        )
    return size


def parse_chunk(chunk: object, verify: object) -> int | None:
    """Read how many chunks of rows a loss may be split into: 0 = none, None = as many as it takes.

    Raises:
        TightropeError: quotes what is neither "auto", nor False, nor a whole number from 2.
    """
    if chunk == "auto" and isinstance(chunk, str):
        return 0 if verify in AS_EAGER else None
    if chunk is False:
        return 0
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 2:
        refuse_argument("chunk", chunk, '"auto", False, or a number of chunks from 2')
    if verify in AS_EAGER:
        raise TightropeError(
            f'verify="{verify}" compares bit for bit, and sums over chunks are equal within a tolerance. Use '
            'verify="graph", which compares within it, or chunk=False.'
        )
    return chunk


def check_switches(fuse: object, overwrite: object, verify: object, rewrite: object = False) -> None:
    """Refuse what is neither True nor False nor a method, and bits that fused results cannot have.

    Raises:
        TightropeError: quotes it.
    """
    for name, value in (("fuse", fuse), ("overwrite", overwrite)):
        if not isinstance(value, bool):
            refuse_argument(name, value, "True or False")
    if not isinstance(rewrite, bool) and not (isinstance(rewrite, str) and rewrite in REWRITING):
        refuse_argument("rewrite", rewrite, f"True, False, or one of {', '.join(REWRITING)}")
    if (fuse or rewrite) and verify in AS_EAGER:
        name = "fuse=True" if fuse else "rewrite=True"
        raise TightropeError(
            f'verify="{verify}" compares bit for bit, and {name} gives results that are equal within a '
            f'tolerance. Use verify="graph", which compares within it, or compile without {name}.'
        )


def check_clip(clip_norm: object, norm_type: object, clip_value: object, optimizer: object) -> Clip:
    """Read how gradients are to be clipped.

    Raises:
        TightropeError: quotes what is no number above 0, what does not go together, or the lack of an
            optimizer.
    """
    for name, value, such in (("clip_norm", clip_norm, 1.0), ("clip_value", clip_value, 0.5)):
        if value is not None and not _above_zero(value):
            refuse_argument(
                name, value, f"a number above 0, such as {such}, or None to leave gradients as they are"
            )
    if norm_type != "inf" and not _above_zero(norm_type):
        refuse_argument("norm_type", norm_type, 'a number above 0, such as 2.0, or "inf"')
    if clip_norm is None and float(norm_type) != 2.0:  # type: ignore[arg-type]
        refuse_argument("norm_type", norm_type, "clip_norm too, whose kind of norm it is")
    if clip_norm is not None and clip_value is not None:
        raise TightropeError(
            f"clip_norm={shown(clip_norm)}, clip_value={shown(clip_value)}: give one of the two."
        )
    name, value = ("clip_norm", clip_norm) if clip_norm is not None else ("clip_value", clip_value)
    if optimizer is None and value is not None:
        raise TightropeError(
            f"{name}={shown(value)} without an optimizer: give the optimizer too, or leave {name} out and "
            "clip the gradients in .grad before optimizer.step()."
        )
    return Clip(_number(clip_value), _number(clip_norm), float(norm_type))  # type: ignore[arg-type]


def _number(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]


def _above_zero(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0
