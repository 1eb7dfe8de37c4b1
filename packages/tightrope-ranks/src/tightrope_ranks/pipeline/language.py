"""The language of pipeline schedules: actions as text, one row per rank, as torch's pipelining writes them.

``2F0`` is the forward of stage 2 for micro-batch 0; ``B`` a backward, ``I`` and ``W`` its halves (gradients
of the input, of the parameters); ``SEND_F``, ``RECV_F``, ``SEND_B`` and ``RECV_B`` pass values between
stages; ``UNSHARD``, ``RESHARD`` and ``REDUCE_GRAD`` gather, drop and reduce what replicas divide.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from tightrope.core import PlanFileError
from tightrope.core.units import shown

COMPUTE: Final = ("F", "B", "I", "W")
_ONE: Final = re.compile(
    r"(\d{1,6})(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B|F|I|B|W)(\d{1,6})?", re.ASCII
)
_BOTH: Final = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_MAX_BYTES: Final = 64 * 2**20


class Action(NamedTuple):
    """One action of a rank.

    Attributes:
        stage: that it concerns.
        kind: as torch abbreviates it.
        micro_batch: -1 where it concerns all of them.
    """

    stage: int
    kind: str
    micro_batch: int = -1

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch if self.micro_batch >= 0 else ''}"


Orders: TypeAlias = tuple[tuple[Action, ...], ...]
"""Actions of every rank, in order."""


def read_action(text: str) -> Action:
    """Read one action.

    Raises:
        PlanFileError: quotes what is no action.

    >>> read_action("2SEND_F11")
    Action(stage=2, kind='SEND_F', micro_batch=11)
    """
    found = _ONE.fullmatch(text.strip())
    if not found or (found[3] is None) != (found[2] in ("UNSHARD", "RESHARD", "REDUCE_GRAD")):
        raise PlanFileError(
            f"{shown(text)} is no pipeline action: write stage, kind and micro-batch, such as 2F0, 2SEND_F0, "
            "or 2UNSHARD without a micro-batch."
        )
    return Action(int(found[1]), found[2], int(found[3] or -1))


def _cell(text: str) -> Iterator[Action]:
    if both := _BOTH.fullmatch(text.strip()):  # torch runs them one after the other
        yield from (read_action(part) for part in both[1].split(";"))
    elif text.strip():
        yield read_action(text)


def read_csv(text: str) -> Orders:
    """Read a schedule, one row per rank; empty cells (idle time) are passed over.

    Raises:
        PlanFileError: quotes what is no action.

    >>> read_csv("0F0,,0B0")
    ((Action(stage=0, kind='F', micro_batch=0), Action(stage=0, kind='B', micro_batch=0)),)
    """
    if len(text) > _MAX_BYTES:
        raise PlanFileError(f"a pipeline schedule of {len(text)} characters: at most {_MAX_BYTES} are read.")
    return tuple(tuple(a for cell in row for a in _cell(cell)) for row in csv.reader(io.StringIO(text)))


def write_csv(orders: Sequence[Sequence[Action]]) -> str:
    r"""Write a schedule, one row per rank.

    >>> write_csv(read_csv("0F0,0B0"))
    '0F0,0B0\n'
    """
    return "".join(",".join(map(str, row)) + "\n" for row in orders)
