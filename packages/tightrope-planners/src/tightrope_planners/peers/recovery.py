"""Which storages may be dropped at any time, and until when each may still be wanted.

A storage *comes back* when its producer may run again at every later stage at which it can be wanted:
nothing that the producer touches is changed in place before, and it has no effect beside its storages.
Others stay from their first run until the last stage at which they can be wanted, counting that a
re-run of a reader wants them too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.core import OpId, StepIndex, StorageId
from tightrope.plan.model import Model, made_by


@dataclass(frozen=True, slots=True)
class Recovery:
    """Facts per storage.

    Attributes:
        wanted: last stage at which the storage may be read, by a first run or by a re-run;
            the number of ops where it must be resident at the end, -1 where nothing reads it.
        returns: whether it may be dropped at any time and made again.
    """

    wanted: tuple[StepIndex, ...]
    returns: tuple[bool, ...]


def recovery(model: Model) -> Recovery:
    """Derive both facts from the windows of the ops, from the last op to the first."""
    num_ops, created = len(model.need), made_by(model)
    wanted = [num_ops if at_end else -1 for at_end in model.at_end]
    returns = [False] * len(model.producer)
    for op in reversed(range(num_ops)):
        for storage in created[op]:
            returns[storage] = _returns(model, op, storage, wanted[storage])
        again = last_useful(model, op, wanted)
        for storage in model.reads[op]:
            wanted[storage] = max(wanted[storage], op)
        for storage in model.again_reads[op]:
            wanted[storage] = max(wanted[storage], again)
    return Recovery(tuple(wanted), tuple(returns))


def last_useful(model: Model, op: OpId, wanted: Sequence[StepIndex]) -> StepIndex:
    """Find the last stage at which a re-run of ``op`` can be of use; -1 = never."""
    stage = min(max((wanted[s] for s in model.again_creates[op]), default=-1), model.window[op][1])
    return stage if stage >= model.window[op][0] else -1


def _returns(model: Model, op: OpId, storage: StorageId, wanted: StepIndex) -> bool:
    first, last = model.window[op]
    return (
        not model.pinned[storage]
        and storage in model.again_creates[op]
        and first <= op + 1
        and min(wanted, len(model.need) - 1) <= last
    )
