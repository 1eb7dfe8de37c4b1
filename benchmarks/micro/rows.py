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
        own: a question of ours, which nobody asked for: it is answered, and decides no exit code.
    """

    bar: str
    claim: str
    ours: str
    held: bool
    peer: str = ""
    own: bool = False

    @property
    def missed(self) -> bool:
        """Whether a bar does not hold."""
        return not self.held and not self.own

    def say(self, console: Console) -> None:
        """Print it."""
        peer = f"; peer: {self.peer}" if self.peer else ""
        word = ("yes" if self.held else "no") if self.own else "ok" if self.held else "MISSED"
        asked = "asked by ourselves, no bar" if self.own else "claimed"
        console.print(f"{self.bar} {word}: {self.ours}; {asked}: {self.claim}{peer}")


def write(rows: list[Row], path: Path) -> None:
    """Write all rows as JSON."""
    path.write_bytes(
        msgspec.json.format(msgspec.json.encode([asdict(row) for row in rows], enc_hook=bool), indent=1)
    )
