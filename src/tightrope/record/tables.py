"""Tables of a trace while it is being made: module tree, source lines, reasons."""

from collections.abc import Sequence

from tightrope.core import Module, Reason, StorageId
from tightrope.core.trace import ROOT

ROOT_TREE = (ROOT,)
MAX_TEXT = 1_000
"""Longer names are cut: a name is for people, and a file refuses texts beyond 10,000 characters."""


class ModuleTree:
    """Modules by path, parents first; a path that is new is added with everything above it."""

    def __init__(self, kinds: dict[str, str] | None = None) -> None:
        self._kinds = kinds or {}
        self._rows: list[Module] = [Module("", self._kinds.get("", ""))]
        self._at: dict[str, int] = {"": 0}

    def at(self, path: str) -> int:
        """Find the position of a module, adding it where it is new.

        Example:
            >>> tree = ModuleTree()
            >>> tree.at("encoder.0"), [module.path for module in tree.rows()]
            (2, ['', 'encoder', 'encoder.0'])
        """
        if path in self._at:
            return self._at[path]
        missing = [path]
        while (above := missing[-1].rpartition(".")[0]) not in self._at:
            missing.append(above)
        parent = self._at[above]
        for name in reversed(missing):
            self._at[name] = len(self._rows)
            self._rows.append(Module(clip(name), clip(self._kinds.get(name, "")), parent))
            parent = self._at[name]
        return parent

    def rows(self) -> tuple[Module, ...]:
        """List the modules."""
        return tuple(self._rows) if len(self._rows) > 1 or self._rows[0] != ROOT else (ROOT,)


class Lines:
    """Source lines by number, each once, and the stacks of lines that called them."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    def at(self, text: str) -> int:
        """Find the position of a text, -1 for the empty one."""
        return self._at.setdefault(clip(text), len(self._at)) if text else -1

    def rows(self) -> tuple[str, ...]:
        """List the texts."""
        return tuple(self._at)

    def stack(self, callers: Sequence[str]) -> int:
        """Find the position of the lines that called a line, nearest first; -1 where there are none."""
        lines = tuple(self.at(line) for line in callers)
        return self._stacks.setdefault(lines, len(self._stacks)) if lines else -1

    def stacks(self) -> tuple[tuple[int, ...], ...]:
        """List the stacks."""
        return tuple(self._stacks)


def clip(text: str) -> str:
    """Cut a text that is too long to be read."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def reason_rows(reasons: tuple[Reason, ...]) -> dict[StorageId, int]:
    """Positions of reasons by storage."""
    return {reason.storage: position for position, reason in enumerate(reasons)}
