"""What a buffer is for, by one rule for plans, runs of plans and eager runs.

What the forward and the loss make is an activation, what the backward makes a gradient (of a parameter
or of an activation), what the optimizer makes is optimizer state; what the model hands back is output.
What is made and released inside one op is temporary.
"""

from typing import Final

from tightrope.core import Category, EventPhase, Graph, StorageId
from tightrope.core.graph import Kind

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
