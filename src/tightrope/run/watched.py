"""The check within the budget: every recomputed value equals its first, bit for bit.

Idea        Where the unplanned step does not fit, run the plan's own steps from the heap and keep a
            digest of every storage that is computed more than once. If each recomputation gives the
            bits of the first, then, by induction over the steps, every op gets the inputs that the
            unplanned step would give it.
Guarantee   An op that gives other bits when it runs again, or that runs again on inputs that changed
            meanwhile, raises. Planned addresses are not used here, so a comparison with the run that
            uses them shows values that were overwritten.
Complexity  One digest per storage and run of a recomputed op; no bytes through torch.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tightrope.capture.program import Program
from tightrope.core import Compute, Schedule, StorageId, VerificationError
from tightrope.run.verify import digest


def watched(program: Program, schedule: Schedule) -> tuple[Program, int]:
    """Make ops compare what they compute again with what was there first.

    Returns:
        A program for one run of ``schedule``, and how many storages are compared.
    """
    computed = [step.op for step in schedule.steps if isinstance(step, Compute)]
    made = Counter(storage for op in computed for storage in program.graph.op(op).creates)
    again = {storage for storage, count in made.items() if count > 1}
    seen: dict[StorageId, str] = {}
    compared: set[StorageId] = set()
    calls = dict(program.calls)
    for op in set(computed):
        call = calls[op]
        if call is None or again.isdisjoint(program.graph.op(op).creates):
            continue
        places = {
            position: storage
            for position, node in call.results.items()
            if (storage := program.storage_of.get(node, -1)) in again
        }
        compared.update(places.values())
        target = partial(_compared, call.target, places, seen, program.graph.op(op).describe())
        calls[op] = replace(call, target=target)
    return replace(program, calls=calls), len(compared)


def _compared(
    target: Callable[..., Any],
    places: dict[int | None, StorageId],
    seen: dict[StorageId, str],
    name: str,
    *args: Any,
    **kwargs: Any,
) -> Any:
    result = target(*args, **kwargs)
    for position, storage in places.items():
        bits = digest(result if position is None else result[position])
        if seen.setdefault(storage, bits) != bits:
            raise VerificationError(
                f"{name} gave other bits when it ran again. Nothing was returned. An op that is not "
                "deterministic may be the cause: try torch.use_deterministic_algorithms(True)."
            )
    return result
