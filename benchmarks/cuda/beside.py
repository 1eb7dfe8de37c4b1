"""C3: time and memory of a plan beside checkpointing every block, and beside selective checkpointing."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, Final

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import tightrope
from benchmarks.cuda.nets import build
from benchmarks.cuda.steps import Call, clean, milliseconds, optimizer_of, step
from benchmarks.spine.peers import first_blocks, layers, per_block
from benchmarks.zoo.case import Case
from tightrope.core import Bytes
from tightrope.run.compile import compiled_of

REPEATS: Final = 30
_KEPT: Final = ("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product")
_LESS: Final = 0.97
"""Of a peer's bytes: a plan with as much has to be faster, one with less must not be slower."""


def _selective(case: Case) -> Call:
    def choose(_context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        kept = op.name().startswith(_KEPT)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, choose)
    return first_blocks(case, len(layers(case)), context_fn=contexts)


PEERS: Final[dict[str, Callable[[Case], Call]]] = {"per block": per_block, "selective": _selective}


def rows(name: str, *, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure eager and both peers, then plans with each peer's bytes and with less."""
    eager = build(name)
    yield {"net": name, "how": "eager", **_alone(eager, eager.model.forward)}
    for peer, make in PEERS.items():
        theirs = Case(name, copy.deepcopy(eager.model), eager.inputs, eager.tags)
        call = make(theirs)
        theirs_alone = _alone(theirs, call)
        yield {"net": name, "how": peer, **theirs_alone}
        ours = Case(name, copy.deepcopy(eager.model), eager.inputs, eager.tags)
        beside = sum(_bytes(case) for case in (theirs, eager))
        for share in (1.0, _LESS):
            torch._dynamo.reset()
            budget = int(theirs_alone["reserved"] * share) + beside
            model = tightrope.compile(ours.model, budget=budget, verify=None, seconds=seconds, progress=False)
            yield {"net": name, "how": f"plan, {share:.0%} of {peer}",
                   **_paired(ours, model, theirs, call), "budget": budget - beside}  # fmt: skip
            compiled_of(model).close()
        del theirs, ours, call, model
        clean()


def _bytes(case: Case) -> Bytes:
    return sum(p.numel() * p.element_size() for p in case.model.parameters())


def _alone(case: Case, call: Call) -> dict[str, Any]:
    """Bytes above what other models hold, and the time of a step."""
    clean()
    others = torch.cuda.memory_allocated() - _bytes(case)
    optimizer = optimizer_of(case)
    for _ in range(3):
        step(case, call, optimizer)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    spent = [milliseconds(lambda: step(case, call, optimizer)) for _ in range(10)]
    optimizer.zero_grad(set_to_none=True)
    return {"ms": median(spent), "reserved": torch.cuda.max_memory_reserved() - others}


def _paired(ours: Case, model: Call, theirs: Case, call: Call) -> dict[str, Any]:
    """Interleave steps of a plan with those of a peer, which the budget does not hold."""
    clean()
    mine, other = optimizer_of(ours), optimizer_of(theirs)
    free = compiled_of(ours.model).accounts.unlimited
    for _ in range(3):
        step(ours, model, mine)
    mine.zero_grad(set_to_none=True)
    clean()
    torch.cuda.reset_peak_memory_stats()
    step(ours, model, mine)
    torch.cuda.synchronize()
    reserved = torch.cuda.max_memory_reserved()
    mine.zero_grad(set_to_none=True)
    pairs: list[tuple[float, float]] = []
    for _ in range(REPEATS + 2):
        one = milliseconds(lambda: step(ours, model, mine))
        mine.zero_grad(set_to_none=True)
        with free():
            two = milliseconds(lambda: step(theirs, call, other))
            other.zero_grad(set_to_none=True)
        pairs.append((one, two))
    said = tightrope.report(ours.model)
    ratios = sorted(one / two for one, two in pairs[2:])
    return {
        "ms": median(one for one, _ in pairs[2:]), "peer_ms": median(two for _, two in pairs[2:]),
        "ratio": median(ratios), "low": ratios[1], "high": ratios[-2], "all_reserved": reserved,
        "needs": said.persistent + said.arena + said.outside, "level": said.level,
        "divergences": str(said.divergences),
    }  # fmt: skip
