"""The new graph while it is written: what rules read and write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, NoReturn

from tightrope.core import (
    Argument,
    Bytes,
    Flag,
    Graph,
    Input,
    Items,
    Kind,
    Op,
    Result,
    Storage,
    StorageId,
    UnsupportedOpError,
    View,
)
from tightrope.core.values import EMPTY, ITEM_BYTES, Part, views
from tightrope.lower import with_writes
from tightrope_micro.names import DIMENSIONS

HOME: Final = 1
"""Tier in which parameters, buffers, optimizer state and inputs lie between steps."""
PLAIN_LABELS: Final = {"int64": "int32"}
"""Dtypes that are held in another one on the device: numbers of classes."""


@dataclass(frozen=True, slots=True)
class SgdRule:
    """Numbers of an update by gradient descent; those of `torch.optim.SGD`."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class AdamRule:
    """Numbers of an update with two moments and decay apart from them; those of `torch.optim.AdamW`."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    maximize: bool = False


Rule = SgdRule | AdamRule
"""How a parameter is updated."""


@dataclass(frozen=True, slots=True)
class PendingGradient:
    """A gradient that is computed inside the update that uses it.

    Attributes:
        target: of the op that computes it and changes the parameter.
        before: arguments in front of the parameter.
        behind: arguments behind its momentum.
    """

    target: str
    before: tuple[Argument, ...]
    behind: tuple[Argument, ...] = ()


@dataclass
class Translator:
    """The new graph while it is written.

    Attributes:
        graph: as captured, one part, with its updates.
        updates: storage of an update's settings -> its numbers.
        names: storage of the caller -> its name, such as ``conv.weight``.
        ops: written so far.
        storages: made so far.
        known: captured storage -> the new one.
        pending: captured storage of a gradient -> how it is computed.
        constants: captured storage -> the one number that it holds.
        inputs: what the caller holds, in the order of first use.
        rates: rate and betas -> the two numbers of this step that updates with them read.
        padded: captured storage of a tensor with zeros around -> the one inside, zeros above and left.
        key: what the dropouts of this step draw from; None = there was none yet.
        draws: dropouts so far.
    """

    graph: Graph
    updates: Mapping[StorageId, Rule]
    names: Mapping[StorageId, str]
    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    known: dict[StorageId, StorageId] = field(default_factory=dict)
    pending: dict[StorageId, PendingGradient] = field(default_factory=dict)
    constants: dict[StorageId, float] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    rates: dict[tuple[float, ...], View] = field(default_factory=dict)
    padded: dict[StorageId, tuple[View, int, int]] = field(default_factory=dict)
    key: View | None = None
    draws: int = 0
    here: Op | None = None

    def look(self, value: Argument) -> View:
        """Look at a tensor as the new graph has it: as it lies, or a dense copy of what a view shows.

        Raises:
            UnsupportedOpError: it is no tensor, or is neither float32 nor class numbers.
        """
        value, storage = self._found(value)
        whole = not value.offset and prod(value.shape) * 4 == storage.bytes
        if storage.label.startswith("float32") and not value.bits and not (whole and is_dense(value)):
            return self._gathered(value)
        return self.whole(value)

    def whole(self, value: Argument) -> View:
        """Look at a dense tensor where it lies, which an op may change.

        Raises:
            UnsupportedOpError: it is none.
        """
        value, storage = self._found(value)
        dtype = PLAIN_LABELS.get(value.dtype, value.dtype)
        count = 1
        for size in value.shape:
            count *= size
        if value.offset or value.bits or count * ITEM_BYTES[dtype] != storage.bytes or not is_dense(value):
            self.refuse(f"reads a part or a permutation of {storage.label or 'a tensor'}")
        return self._plain(storage.id, dtype, value.shape)

    def _found(self, value: Argument) -> tuple[View, Storage]:
        """Find what a captured tensor lies in."""
        if not isinstance(value, View):
            self.refuse(f"takes {value!r:.60} where a tensor is expected")
        if value.base in self.pending and value.base not in self.known:
            self.refuse("uses the gradient of a parameter for more than its update")
        if value.base not in self.known:
            self._caller(value)
        return value, self.storages[self.known[value.base]]

    def _plain(self, storage: StorageId, dtype: str, shape: tuple[int, ...]) -> View:
        at = -1
        if self.storages[storage].external:
            at = next(k for k, given in enumerate(self.inputs) if given.view and given.view.base == storage)
        return View(storage, dtype, shape, contiguous(shape), input=at)

    def _caller(self, view: View) -> None:
        old = self.graph.storages[view.base]
        if not old.external:
            self.refuse("reads what no op here makes")
        whole = (one.view for one in self.graph.parts[0].inputs)  # it may be a part that is read first
        view = next((one for one in whole if one is not None and one.base == view.base), view)
        dtype = PLAIN_LABELS.get(view.dtype, view.dtype)
        if dtype not in ("float32", "int32"):
            self.refuse(f"reads {view.dtype}; the kernels compute in float32")
        if view.offset or not is_dense(view):
            self.refuse("reads a part or a permutation that the caller holds")
        label = f"{dtype}[{'x'.join(map(str, view.shape)) or 'scalar'}]"
        self.known[view.base] = self.held(self.names.get(view.base, ""), dtype, view.shape, old.kind, label)

    def held(self, name: str, dtype: str, shape: tuple[int, ...], kind: Kind, label: str = "") -> StorageId:
        """Add what the caller holds between steps."""
        made = self._storage(dtype, shape, kind)
        old = self.storages[made]
        self.storages[made] = Storage(
            made, old.bytes, kind, 4, external=True, label=label or old.label, module=name, home=HOME
        )
        given = View(made, dtype, shape, contiguous(shape), input=len(self.inputs))
        self.inputs.append(Input(name or f"input_{len(self.inputs)}", given))
        return made

    def adam_rates(self, rule: AdamRule) -> View:
        """Look at the numbers of this step that AdamW takes from a count of steps, which is held."""
        key = (rule.lr, *rule.betas)
        if key not in self.rates:
            name = f"adamw.step{len(self.rates) or ''}"
            step = self._plain(self.held(name, "float32", (1,), Kind.OPTIMIZER_STATE), "float32", (1,))
            (self.rates[key],) = self.emit("adamw_rates", (step, *key), [("float32", (2,))], (step,))
        return self.rates[key]

    def drawn(self) -> tuple[View, int]:
        """Look at the number that this step's dropouts draw from, and number one more of them."""
        if self.key is None:
            step = self._plain(self.held("dropout.step", "int32", (1,), Kind.BUFFER), "int32", (1,))
            (self.key,) = self.emit("dropout_key", (step,), [("int32", (1,))], (step,))
        self.draws += 1
        return self.key, self.draws

    def _storage(
        self, dtype: str, shape: tuple[int, ...], kind: Kind = Kind.ACTIVATION, module: str = ""
    ) -> StorageId:
        count: Bytes = ITEM_BYTES[dtype]
        for size in shape:
            count *= size
        label = f"{dtype}[{'x'.join(map(str, shape)) or 'scalar'}]"
        self.storages.append(Storage(len(self.storages), count, kind, 4, label=label, module=module))
        return len(self.storages) - 1

    def emit(
        self,
        target: str,
        arguments: Sequence[Argument],
        makes: Sequence[tuple[str, tuple[int, ...]]] = (),
        mutates: Sequence[View] = (),
    ) -> list[View]:
        """Write one op.

        Args:
            target: without its family, such as ``relu``.
            arguments: in the order of its kernel.
            makes: dtype and shape of every result.
            mutates: what it changes in place.

        Returns:
            The results.
        """
        assert self.here is not None
        module = self.here.module
        made = [self._storage(dtype, shape, module=module) for dtype, shape in makes]
        found = [
            View(storage, dtype, shape, contiguous(shape))
            for storage, (dtype, shape) in zip(made, makes, strict=True)
        ]
        reads = {view.base for value in arguments for view in views(value) if view.base != EMPTY}
        changed = tuple(sorted(view.base for view in mutates))
        self.ops.append(
            Op(
                len(self.ops), f"{target}_{len(self.ops)}", f"micro.{target}", tuple(sorted(reads)),
                tuple(made), changed,
                flags=Flag.IN_PLACE | Flag.NEVER_RECOMPUTE if changed else Flag.NONE,
                phase=self.here.phase, module=module, source=self.here.source, arguments=tuple(arguments),
                results=tuple(
                    Result(-1 if len(found) == 1 else k, view) for k, view in enumerate(found)
                ),
            )
        )  # fmt: skip
        return found

    def bind(self, old: Argument, new: View) -> None:
        """Say that a captured tensor is a new one, which lies in the order of its indices."""
        assert isinstance(old, View)
        plain = contiguous(old.shape)
        if merged(old.shape, old.strides) != merged(old.shape, plain):  # views of it count on how it lies
            order = sorted(range(len(old.shape)), key=lambda axis: -old.strides[axis])
            sizes, lies = (tuple(of[k] for k in order) for of in (old.shape, old.strides))
            shape, steps = merged(sizes, tuple(plain[k] for k in order))
            dense = merged(sizes, lies) == merged(sizes, contiguous(sizes))
            if not dense or len(shape) > DIMENSIONS or old.offset:
                self.refuse("makes a tensor with gaps, or a permutation of many dimensions")
            flat = View(new.base, new.dtype, (prod(old.shape),), (1,), input=new.input)
            (new,) = self.emit("gather", (flat, Items(shape), Items(steps), 0), [(new.dtype, (prod(shape),))])
        self.bind_as_it_lies(old, new)

    def bind_as_it_lies(self, old: Argument, new: View) -> None:
        """Say that a captured tensor is a new one that lies as it does."""
        assert isinstance(old, View)
        self.known[old.base] = new.base

    def _gathered(self, value: View) -> View:
        """Copy what a view shows, in the order of its indices."""
        shape, strides = merged(value.shape, value.strides)
        if len(shape) > DIMENSIONS:
            self.refuse(f"reads a permutation of {len(shape)} dimensions; the kernel has {DIMENSIONS}")
        source = self.storages[self.known[value.base]]
        x = self._plain(source.id, "float32", (source.bytes // 4,))
        arguments = (x, Items(shape), Items(strides), value.offset)
        return self.emit("gather", arguments, [("float32", value.shape)])[0]

    def result(self, position: int) -> View | None:
        """How the captured op's result at a position looks; None where it makes none there."""
        assert self.here is not None
        at = -1 if len(self.here.results) == 1 and self.here.results[0].position == -1 else position
        return next((one.view for one in self.here.results if one.position == at), None)

    def refuse(self, why: str) -> NoReturn:
        """Refuse the captured op.

        Raises:
            UnsupportedOpError: names the op, its module and line, and the next step.
        """
        assert self.here is not None
        who = self.here.describe()
        raise UnsupportedOpError(
            f"{who} {why}: it cannot be written as C. Replace the op in the model.", op=who
        )

    def finish(self) -> Graph:
        """Return the new graph, with what it returns marked as staying."""
        outputs: list[Argument] = []
        for value in self.graph.parts[0].outputs:
            if not isinstance(value, View) or value.base not in self.known:
                continue
            view = self.look(value)
            old = self.storages[view.base]
            if old.external:
                continue
            self.storages[view.base] = Storage(
                old.id, old.bytes, Kind.OUTPUT, 4, resident_at_end=True, label=old.label, module=old.module
            )
            outputs.append(view)
        part = Part(len(self.ops), tuple(self.inputs), tuple(outputs))
        return with_writes(
            Graph(
                tuple(self.ops), tuple(self.storages), parts=(part,), name=self.graph.name,
                environment=(("device", "micro"),), alignment=4,
            )
        )  # fmt: skip


def merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Join neighbouring dimensions that are read as one, and leave out those of one element.

    >>> merged((1, 2, 3, 4, 5), (0, 60, 20, 5, 1))
    ((120,), (1,))
    >>> merged((2, 3, 4), (4, 8, 1))
    ((2, 3, 4), (4, 8, 1))
    """
    sizes: list[int] = []
    steps: list[int] = []
    for size, step in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if sizes and steps[-1] == size * step:
            sizes[-1], steps[-1] = sizes[-1] * size, step
        else:
            sizes.append(size)
            steps.append(step)
    return (tuple(sizes), tuple(steps)) if sizes else ((1,), (1,))


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    strides = []
    count = 1
    for size in reversed(shape):
        strides.append(count)
        count *= size
    return tuple(reversed(strides))


def is_dense(view: View) -> bool:
    """Tell whether elements lie in the order of their indices, without gaps."""
    pairs = zip(view.strides, contiguous(view.shape), view.shape, strict=True)
    return all(mine == dense or size == 1 for mine, dense, size in pairs)


def whole_numbers(value: Argument) -> tuple[int, ...]:
    """Read a list of whole numbers.

    >>> whole_numbers(Items((1, 2)))
    (1, 2)
    """
    assert isinstance(value, Items)
    return tuple(item for item in value.items if isinstance(item, int))
