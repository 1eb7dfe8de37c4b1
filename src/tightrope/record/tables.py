"""Tables of a trace while it is being made: module tree, source lines, reasons, what storages are for."""

from collections.abc import Mapping, Sequence
from typing import Final

from tightrope.core import Category, EventPhase, Graph, Module, Op, OpId, Phase, Reason, StorageId
from tightrope.core.graph import Kind
from tightrope.core.trace import ROOT

BY_PHASE: Final = {
    EventPhase.LOAD_DATA: Category.INPUT,
    EventPhase.COPY: Category.INPUT,
    EventPhase.FORWARD: Category.ACTIVATION,
    EventPhase.LOSS: Category.ACTIVATION,
    EventPhase.BACKWARD: Category.GRADIENT,
    EventPhase.OPTIMIZER: Category.OPTIMIZER_STATE,
}
"""Category of what an op of a stage makes; of other stages nothing is known."""


def categories(graph: Graph) -> dict[StorageId, Category]:
    """Say what every storage of a graph is for; a storage that is recomputed or paged stays what it is.

    Example:
        >>> from tightrope.core import Op, Phase, Storage
        >>> back = Op(0, "b", "aten.mm.default", creates=(0,), phase=Phase.BACKWARD)
        >>> categories(Graph((back,), (Storage(0, 64),)))[0].value
        'gradient'
    """
    made = {storage: op.phase for op in graph.ops for storage in op.creates}
    found = {}
    for storage in graph.storages:
        plain = storage.kind is Kind.ACTIVATION and storage.id in made
        phase = EventPhase(made[storage.id].value) if plain else None
        found[storage.id] = Category(storage.kind.value) if phase is None else BY_PHASE[phase]
    return found


LOSS_WORDS = ("loss", "cross_entropy", "log_softmax", "kl_div")
"""A forward op with one of these in its target computes a loss, unless modules with weights follow."""


def attribute(graph: Graph, classes: Mapping[str, str] | None = None) -> dict[OpId, tuple[str, EventPhase]]:
    """Name the module and the phase of every op of a graph; recomputation is for the schedule to tell.

    Args:
        graph: captured.
        classes: class names of modules by path; a module called ``...Loss`` is part of the loss.

    Example:
        >>> from tightrope.core import Storage
        >>> graph = Graph((Op(0, "a", "aten.mm.default", creates=(0,), module="net.fc"),), (Storage(0, 64),))
        >>> attribute(graph)
        {0: ('net.fc', <EventPhase.FORWARD: 'forward'>)}
    """
    loss = _loss_ops(graph, classes or {})
    return {
        op.id: (op.module, EventPhase.LOSS if op.id in loss else EventPhase(op.phase.value))
        for op in graph.all_ops()
    }


def _loss_ops(graph: Graph, classes: Mapping[str, str]) -> set[OpId]:
    """The tail of the forward, from the first op that computes a loss, if no weights are used after it."""
    weights = {storage.id for storage in graph.storages if storage.kind.value == "parameter"}
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    tail: list[Op] = []
    for op in reversed(forward):
        if weights.intersection(op.reads):
            break
        tail.append(op)
    tail.reverse()
    for position, op in enumerate(tail):
        named = "Loss" in classes.get(op.module, "")
        if named or any(word in op.target for word in LOSS_WORDS):
            return {later.id for later in tail[position:]}
    return set()


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
