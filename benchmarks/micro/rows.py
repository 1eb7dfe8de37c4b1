"""A row per bar: what is claimed, the peer's figure, ours, and whether it holds."""

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.console import Console


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        bar: such as ``P1``.
        claim: what has to hold.
        ours: what was found.
        held: whether it holds.
        peer: the figure of another program in the same run; empty where none ran.
    """

    bar: str
    claim: str
    ours: str
    held: bool
    peer: str = ""

    def say(self, console: Console) -> None:
        """Print it."""
        peer = f"; peer: {self.peer}" if self.peer else ""
        console.print(
            f"{self.bar} {'ok' if self.held else 'MISSED'}: {self.ours}; claimed: {self.claim}{peer}"
        )


def write(rows: list[Row], path: Path) -> None:
    """Write all rows as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode([asdict(row) for row in rows]), indent=1))
