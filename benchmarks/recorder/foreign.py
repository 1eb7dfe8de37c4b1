"""H3: annotations removed from a profile, then recovered."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.recorder.nets import Net, net
from benchmarks.recorder.row import Row
from benchmarks.recorder.witness import hooked
from benchmarks.zoo import Scale
from tightrope.core import EventPhase, Module, Trace
from tightrope_trace import annotate, parse_profile, tree_of
from tightrope_trace.reverse import by_sequence
from tightrope_trace.rows import inherit
from tightrope_trace.slices import STANDARD, Slice, without_annotations
from tightrope_trace.stages import ENGINE, stages

NOT_COUNTED = frozenset({"empty", "zeros", "zero_", "view", "transpose", "as_strided"})
"""Names that the count metric of Hotline leaves out."""


def annotated(net: Net) -> bytes:
    """A profile with one annotation per module call."""
    stack: list[record_function] = []

    def enter(path: str) -> None:
        stack.append(record_function(f"span:{path}"))
        stack[-1].__enter__()  # type: ignore[no-untyped-call]

    def leave() -> None:
        stack.pop().__exit__(None, None, None)

    with hooked(net.model, enter, leave):
        for _ in range(2):
            net.step()
        with profile(activities=[ProfilerActivity.CPU]) as watcher:
            net.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        watcher.export_chrome_trace(str(path))
        return path.read_bytes()


def truth_of(slices: Sequence[Slice], modules: Sequence[Module]) -> list[int]:
    """Owners from annotations and sequence numbers; accumulated gradients go with the node before."""
    at = {module.path: number for number, module in enumerate(modules)}
    phases = stages(slices)
    owners = [0] * len(slices)
    spans = frozenset(k for k, one in enumerate(slices) if one.name.startswith("span:"))
    for k in spans:
        owners[k] = at[slices[k].name[5:]]
    inherit(slices, owners, spans)
    known, last = by_sequence(slices, phases), 0
    nodes = [k for k, one in enumerate(slices) if one.name.startswith(ENGINE)]
    for node in nodes:
        last = owners[known[node]] if node in known else last
        owners[node] = last
    inherit(slices, owners, spans | frozenset(nodes))
    return owners


def foreign(name: str, scale: Scale) -> Row:
    """Score one net by both metrics, forward and backward alike."""
    one = net(name, scale)
    modules = tree_of(one.model)
    slices = parse_profile(annotated(one))
    trace, owners = recovered(slices, modules)
    right, total, counts = scored(trace, owners)
    share = 100 * sum(right.values()) / max(sum(total.values()), 1)
    parts = [100 * right[phase] / max(total[phase], 1) for phase in ("forward", "backward")]
    return Row(
        {
            "net": name,
            "ops": len(trace.events),
            "time right %": share,
            "forward %": parts[0],
            "backward %": parts[1],
            "count metric %": counts,
        },
        share >= 97 and counts >= 99,
    )


def recovered(slices: tuple[Slice, ...], modules: Sequence[Module]) -> tuple[Trace, list[int]]:
    """Annotate a profile without its own annotations; the trace, and the true owner of every event."""
    truth = truth_of(slices, modules)
    kept = [
        owner for one, owner in zip(slices, truth, strict=True)
        if not one.annotation or one.name.startswith(STANDARD)
    ]  # fmt: skip
    bare = without_annotations(slices)
    owners = [owner for one, owner in zip(bare, kept, strict=True) if not one.annotation]
    return annotate(bare, modules), owners


def scored(trace: Trace, owners: Sequence[int]) -> tuple[Counter[str], Counter[str], float]:
    """Self time on the right module by phase, all self time, and the count metric in percent."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    want: dict[int, Counter[str]] = {}
    have: dict[int, Counter[str]] = {}
    for event, owner, ns in zip(trace.events, owners, trace.self_times(), strict=True):
        if event.phase not in (EventPhase.FORWARD, EventPhase.LOSS, EventPhase.BACKWARD):
            continue
        side = "backward" if event.phase is EventPhase.BACKWARD else "forward"
        total[side] += ns
        right[side] += ns * (event.module == owner)
        if event.name.rpartition("::")[2] not in NOT_COUNTED and side == "forward":
            want.setdefault(owner, Counter())[event.name] += 1
            have.setdefault(event.module, Counter())[event.name] += 1
    wrong = most = 0
    for module in {*want, *have}:
        a, b = want.get(module, Counter()), have.get(module, Counter())
        wrong += sum(((a - b) + (b - a)).values())
        most += max(a.total(), b.total())
    return right, total, 100 * (1 - wrong / max(most, 1))
