"""The networks of POET as training steps, from its published closed forms.

Idea        Every layer has an output of so many values of 4 bytes and a count of operations; its
            gradient takes twice as many. Layers are recorded on a tape, which is then read backwards.
Source      Patil et al., POET (ICML 2022): shapes, operation counts, layer lists
Guarantee   Repaired against the published graphs: gradients of skip connections are wired and added up;
            a gradient has the shape of what it is the gradient of; it reads what its layer saved and
            nothing else; attention reads its values; dropout is replayed from its mask; parameters and
            their gradients are counted when asked for.
Complexity  Linear in the layers.
Gaps        One kernel per layer and direction; no optimizer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tightrope.core import Flag, Graph, Kind, Op, Phase, Storage, StorageId, TightropeError

_VALUE_BYTES: Final = 4
_MOST_BATCH: Final = 4_096


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of the forward pass; ``graded`` = a gradient of it is wanted."""

    storage: StorageId
    shape: tuple[int, ...]
    graded: bool = True


class _LayerTape:
    """Ops so far, what each layer's gradient is made of, and the gradients known."""

    def __init__(self, *, rate: float, parameters: bool) -> None:
        self.rate, self.parameters = rate, parameters
        self.ops: list[Op] = []
        self.storages: list[Storage] = []
        self.variants: list[tuple[int, Op]] = []
        self.backward: list[Callable[[], None]] = []
        self.gradients: dict[StorageId, StorageId] = {}
        self.phase = Phase.FORWARD

    def storage(
        self, values: int, kind: Kind, *, external: bool = False, resident: bool = False
    ) -> StorageId:
        size = values * _VALUE_BYTES
        self.storages.append(
            Storage(len(self.storages), size, kind, external=external, resident_at_end=resident)
        )
        return len(self.storages) - 1

    def run(
        self,
        name: str,
        flops: int,
        reads: Sequence[StorageId],
        creates: Sequence[StorageId],
        flags: Flag = Flag.NONE,
    ) -> int:
        op = len(self.ops)
        ns = round(flops / self.rate * 1e9)
        ordered = tuple(sorted(set(reads)))
        self.ops.append(
            Op(op, f"{name}_{op}", name, ordered, tuple(creates), ns=ns, flags=flags, phase=self.phase)
        )
        return op

    def layer(
        self,
        name: str,
        shape: tuple[int, ...],
        flops: int,
        inputs: Sequence[_Value],
        *,
        weights: int = 0,
        saves_inputs: bool = True,
        saves_output: bool = False,
    ) -> _Value:
        """Run a layer, and note how its gradient is made: one op with a gradient per input."""
        held = self._weights(weights)
        out = self.storage(math.prod(shape), Kind.ACTIVATION)
        sources = [value.storage for value in inputs]
        self.run(name, flops, [*sources, *held], [out])
        saved = [*(sources if saves_inputs else []), *([out] if saves_output else [])]

        def gradient() -> None:
            wanted = [value for value in inputs if value.graded]
            made = [self.storage(math.prod(value.shape), Kind.GRADIENT) for value in wanted]
            if held:
                made.append(self.storage(weights, Kind.GRADIENT, resident=True))
            self.run(f"{name}_backward", 2 * flops, [*saved, *held, self.gradients[out]], made)
            for value, storage in zip(wanted, made, strict=False):
                self.add_gradient(value, storage)

        self.backward.append(gradient)
        return _Value(out, shape)

    def add(self, left: _Value, right: _Value) -> _Value:
        """Add a skip connection; the gradient of a sum is its own, cut to size where the other was padded."""
        size = math.prod(left.shape)
        out = self.storage(size, Kind.ACTIVATION)
        self.run("add", size, [left.storage, right.storage], [out])

        def gradient() -> None:
            for value in (left, right):
                flow, values = self.gradients[out], math.prod(value.shape)
                if values != size:
                    cut = self.storage(values, Kind.GRADIENT)
                    self.run("add_backward", values, [flow], [cut])
                    flow = cut
                self.add_gradient(value, flow)

        self.backward.append(gradient)
        return _Value(out, left.shape)

    def dropout(self, value: _Value) -> _Value:
        """Drop values at random; a re-run uses the mask that was saved, a quarter of the values' bytes."""
        size = math.prod(value.shape)
        out, mask = self.storage(size, Kind.ACTIVATION), self.storage(-(-size // 4), Kind.RANDOM_STATE)
        base = self.run("dropout", size, [value.storage], [out, mask], Flag.RANDOM)
        ns = self.ops[base].ns
        again = Op(-1, f"dropout_{base}_again", "dropout_mask", (value.storage, mask), (out,), ns=ns)
        self.variants.append((base, again))

        def gradient() -> None:
            made = self.storage(size, Kind.GRADIENT)
            self.run("dropout_backward", 2 * size, [mask, self.gradients[out]], [made])
            self.add_gradient(value, made)

        self.backward.append(gradient)
        return _Value(out, value.shape)

    def add_gradient(self, value: _Value, storage: StorageId) -> None:
        """Note a gradient of a value; the second and later ones are added up."""
        if value.storage in self.gradients:
            total = self.storage(math.prod(value.shape), Kind.GRADIENT)
            self.run(
                "add_gradients", math.prod(value.shape), [self.gradients[value.storage], storage], [total]
            )
            storage = total
        self.gradients[value.storage] = storage

    def finish(self, logits: _Value, classes: int, name: str) -> Graph:
        """End in a cross entropy, and run every gradient."""
        flops = math.prod(logits.shape) * classes
        loss = self.storage(classes, Kind.OUTPUT, resident=True)
        self.phase = Phase.LOSS
        self.run("cross_entropy", flops, [logits.storage], [loss])
        self.phase = Phase.BACKWARD
        seed = self.storage(math.prod(logits.shape), Kind.GRADIENT)
        self.run("cross_entropy_backward", 2 * flops, [logits.storage], [seed])
        self.gradients[logits.storage] = seed
        for gradient in reversed(self.backward):
            gradient()
        return self._graph(name)

    def _graph(self, name: str) -> Graph:
        ops, variants = list(self.ops), []
        for position, (base, again) in enumerate(self.variants):
            number = len(ops) + position
            old = ops[base]
            ops[base] = Op(
                base, old.name, old.target, old.reads, old.creates, ns=old.ns, flags=old.flags, variant=number
            )
            variants.append(
                Op(number, again.name, again.target, tuple(sorted(again.reads)), again.creates, ns=again.ns)
            )
        return Graph(tuple(ops), tuple(self.storages), tuple(variants), name=name)

    def _weights(self, count: int) -> list[StorageId]:
        return [self.storage(count, Kind.PARAMETER, external=True)] if count and self.parameters else []


def _linear(tape: _LayerTape, x: _Value, width: int, *, relu: bool = False) -> _Value:
    rows, features = x.shape
    weights = (features + 1) * width
    flops = 2 * weights + width + (rows * width if relu else 0)
    return tape.layer("linear", (rows, width), flops, [x], weights=weights, saves_output=relu)


def _relu(tape: _LayerTape, x: _Value) -> _Value:
    return tape.layer("relu", x.shape, math.prod(x.shape), [x], saves_inputs=False, saves_output=True)


def _conv(
    tape: _LayerTape, x: _Value, channels: int, kernel: int, *, stride: int = 1, padding: int
) -> _Value:
    batch, features, height, width = x.shape
    high, wide = ((side - kernel + 2 * padding) // stride + 1 for side in (height, width))
    shape = (batch, channels, high, wide)
    flops = 2 * kernel**2 * math.prod(x.shape) * channels + math.prod(shape)
    return tape.layer("conv", shape, flops, [x], weights=channels * features * kernel**2 + channels)


def _norm(tape: _LayerTape, x: _Value) -> _Value:
    return tape.layer("batch_norm", x.shape, 2 * math.prod(x.shape), [x], weights=4 * x.shape[1])


def _pool(tape: _LayerTape, x: _Value, kernel: int, *, stride: int, average: bool = False) -> _Value:
    batch, channels, height, width = x.shape
    shape = (batch, channels, (height - kernel) // stride + 1, (width - kernel) // stride + 1)
    flops, name = 2 * kernel**2 * math.prod(shape), "average_pool" if average else "max_pool"
    return tape.layer(name, shape, flops, [x], saves_inputs=not average, saves_output=not average)


def _flatten(tape: _LayerTape, x: _Value) -> _Value:
    shape = (x.shape[0], math.prod(x.shape[1:]))
    return tape.layer("flatten", shape, math.prod(shape), [x], saves_inputs=False)


def _mlp(tape: _LayerTape, batch: int, classes: int) -> _Value:
    x = _input(tape, (batch, 784))
    for width in (10, 120, 100, 200, 10, classes):
        x = _relu(tape, _linear(tape, x, width))
    return x


def _vgg16(tape: _LayerTape, batch: int, classes: int, side: int) -> _Value:
    x = _input(tape, (batch, 3, side, side))
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = _relu(tape, _conv(tape, x, channels, 3, padding=1))
        x = _pool(tape, x, 2, stride=2)
    x = _flatten(tape, x)
    for _ in range(2):
        x = tape.dropout(_relu(tape, _linear(tape, x, 4096)))
    return _linear(tape, x, classes)


def _stem(tape: _LayerTape, batch: int) -> _Value:
    x = _conv(tape, _input(tape, (batch, 3, 224, 224)), 64, 7, stride=2, padding=3)
    return _pool(tape, _norm(tape, x), 3, stride=2)


def _head(tape: _LayerTape, x: _Value, classes: int) -> _Value:
    return _linear(tape, _flatten(tape, _pool(tape, x, x.shape[2], stride=1, average=True)), classes)


def _resnet18(tape: _LayerTape, batch: int, classes: int) -> _Value:
    x = _stem(tape, batch)
    for channels, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        first = _relu(tape, _norm(tape, _conv(tape, x, channels, 3, stride=stride, padding=1)))
        x = _relu(tape, tape.add(_norm(tape, _conv(tape, first, channels, 3, padding=1)), first))
    return _head(tape, x, classes)


def _resnet18_cifar(tape: _LayerTape, batch: int, classes: int) -> _Value:
    x = _norm(tape, _conv(tape, _input(tape, (batch, 3, 32, 32)), 16, 3, padding=1))
    for channels, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        first = _relu(tape, _norm(tape, _conv(tape, x, channels, 3, stride=stride, padding=1)))
        second = _relu(tape, _norm(tape, _conv(tape, first, channels, 3, padding=1)))
        skip = _norm(tape, _conv(tape, x, channels, 3, stride=stride, padding=1))
        x = _relu(tape, tape.add(second, skip))
    return _head(tape, x, classes)


def _resnet50(tape: _LayerTape, batch: int, classes: int) -> _Value:
    x = _stem(tape, batch)
    for channels, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(count):
            stride = 2 if block == 0 and channels > 64 else 1
            first = _relu(tape, _norm(tape, _conv(tape, x, channels, 1, stride=stride, padding=0)))
            second = _relu(tape, _norm(tape, _conv(tape, first, channels, 3, padding=1)))
            third = _norm(tape, _conv(tape, second, 4 * channels, 1, padding=0))
            x = _relu(tape, tape.add(third, first))
    return _head(tape, x, classes)


def _transformer(tape: _LayerTape, blocks: int) -> _Value:
    rows, hidden, inner, heads = 512, 768, 64, 12
    x = _input(tape, (rows, hidden))
    for _ in range(blocks):
        size = rows * hidden * inner * heads
        qkv = tape.layer("qkv", (3 * rows, inner * heads), 3 * size, [x], weights=3 * hidden * inner * heads)
        square = rows * rows * heads
        scores = tape.layer("scores", (rows, rows * heads), square * inner + 2 * square, [qkv])
        mixed = tape.layer("values", (rows, inner * heads), 2 * square * inner, [qkv, scores])
        x = tape.add(_linear(tape, mixed, hidden), x)
        x = tape.add(_linear(tape, _linear(tape, x, 4 * hidden, relu=True), hidden), x)
    return x


def _input(tape: _LayerTape, shape: tuple[int, ...]) -> _Value:
    return _Value(tape.storage(math.prod(shape), Kind.INPUT, external=True), shape, graded=False)


_NETWORKS: Final[dict[str, tuple[Callable[[_LayerTape, int], _Value], int]]] = {
    "linear": (lambda tape, batch: _mlp(tape, batch, 10), 10),
    "vgg16_cifar": (lambda tape, batch: _vgg16(tape, batch, 10, 32), 10),
    "vgg16": (lambda tape, batch: _vgg16(tape, batch, 1000, 224), 1000),
    "resnet18_cifar": (lambda tape, batch: _resnet18_cifar(tape, batch, 10), 10),
    "resnet18": (lambda tape, batch: _resnet18(tape, batch, 1000), 1000),
    "resnet50": (lambda tape, batch: _resnet50(tape, batch, 1000), 1000),
    "transformer": (lambda tape, _: _transformer(tape, 1), 512),
    "bert12": (lambda tape, _: _transformer(tape, 12), 512),
}
POET_NETWORKS: Final = tuple(_NETWORKS)
"""Names that `poet_network` accepts; the last two have one sequence of 512 tokens, whatever the batch."""


def poet_network(
    name: str, *, batch: int = 1, flops_per_second: float = 6.37e6, parameters: bool = False
) -> Graph:
    """Make a training step of a POET network.

    Args:
        name: one of `POET_NETWORKS`.
        batch: images.
        flops_per_second: of the device; the default is POET's Cortex-M4F, its Raspberry Pi has 2e9.
        parameters: count parameters as the caller's, and their gradients as resident at the end; POET's
            budgets leave both out.

    Raises:
        TightropeError: no such network, or the numbers are out of range.

    Example:
        >>> graph = poet_network("linear")
        >>> [op.target for op in graph.ops][:2], sum(op.phase == "backward" for op in graph.ops)
        (['linear', 'relu'], 13)
    """
    if name not in _NETWORKS:
        raise TightropeError(f"there is no network {name!r}; there are: {', '.join(POET_NETWORKS)}.")
    if not 1 <= batch <= _MOST_BATCH or not 1 <= flops_per_second < math.inf:
        raise TightropeError(
            f"batch {batch} must lie between 1 and {_MOST_BATCH}, {flops_per_second} flops/s be finite."
        )
    tape = _LayerTape(rate=flops_per_second, parameters=parameters)
    build, classes = _NETWORKS[name]
    return tape.finish(build(tape, batch), classes, name)
