"""The evicted neighbourhood of a storage: exact, and by union-find as in DTR (ICLR 2021)."""

from tightrope.core import Nanoseconds, StorageId
from tightrope.plan.model import Model, made_by


class Classes:
    """Evicted storages in classes that touch each other, each with the sum of its recomputation times.

    A storage that comes back takes its time out of the class and leaves it; the class is not split,
    so two of its parts may stay together although nothing evicted joins them any more.

    Attributes:
        created: per op: storages that it makes.
        inputs: per storage: what its producer reads to make it again.
        outputs: per storage: what is made from it.
        evicted: storages that are gone and can come back.
    """

    def __init__(self, model: Model, returns: tuple[bool, ...]) -> None:
        self.model, self.returns, self.created = model, returns, made_by(model)
        self.inputs: list[tuple[StorageId, ...]] = [
            model.again_reads[op] if op >= 0 else () for op in model.producer
        ]
        self.outputs: list[list[StorageId]] = [[] for _ in model.producer]
        for storage, inputs in enumerate(self.inputs):
            for source in inputs:
                self.outputs[source].append(storage)
        self.evicted: set[StorageId] = set()
        self._node = list(range(len(model.producer)))
        self._parent = list(range(len(model.producer)))
        self._sum: list[Nanoseconds] = [0] * len(model.producer)

    def evict(self, storage: StorageId) -> None:
        """Put an evicted storage into one class with its evicted neighbours."""
        if not self.returns[storage]:
            return
        self.evicted.add(storage)
        root = self._root(self._node[storage])
        self._sum[root] += self._ns(storage)
        for other in self._neighbours(storage):
            away = self._root(self._node[other])
            root = self._root(root)
            if away != root:
                self._parent[away] = root
                self._sum[root] += self._sum[away]

    def restore(self, storage: StorageId) -> None:
        """Take a storage that came back out of its class."""
        if storage not in self.evicted:
            return
        self.evicted.discard(storage)
        self._sum[self._root(self._node[storage])] -= self._ns(storage)
        self._node[storage] = len(self._parent)
        self._parent.append(len(self._parent))
        self._sum.append(0)

    def neighbourhood(self, storage: StorageId) -> Nanoseconds:
        """Sum the classes that touch a storage."""
        roots = {self._root(self._node[other]) for other in self._neighbours(storage)}
        return sum(self._sum[root] for root in roots)

    def _neighbours(self, storage: StorageId) -> list[StorageId]:
        return [s for s in (*self.inputs[storage], *self.outputs[storage]) if s in self.evicted]

    def _ns(self, storage: StorageId) -> Nanoseconds:
        return self.model.again_ns[self.model.producer[storage]]

    def _root(self, node: int) -> int:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node


def evicted_time(classes: Classes, storage: StorageId) -> Nanoseconds:
    """Sum the time of evicted storages that must come back for this one, or that need this one to."""
    total = 0
    for edges in (classes.inputs, classes.outputs):
        seen: set[StorageId] = set()
        waiting = [storage]
        while waiting:
            for other in edges[waiting.pop()]:
                if other in classes.evicted and other not in seen:
                    seen.add(other)
                    waiting.append(other)
        total += sum(classes.model.again_ns[classes.model.producer[other]] for other in seen)
    return total
