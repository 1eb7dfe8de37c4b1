"""What changed from one trace to another."""

from dataclasses import asdict, dataclass
from typing import Any

from tightrope.core import Bytes, Nanoseconds, Trace, format_bytes, format_time
from tightrope.core.repeats import TimeChange, time_changes
from tightrope.core.trace_check import check_trace


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """What changed from one trace to another; ``str`` of it is for people.

    Attributes:
        peak: bytes before and after.
        ns: step time before and after.
        operator_ns: sum of the self times of all events, before and after.
        beyond_noise: whether that sum was larger, or smaller, in all steps of one than in all of the other;
            None where too few steps were recorded to tell.
        steps: how many each recorded; times are medians over them, that of a step apart.
        stages: what changed in each, largest change first.
        modules: likewise, by module path.
        num_buffers: allocations before and after.
        decisions: (storage, before, after) where plans decide differently.
    """

    peak: tuple[Bytes, Bytes]
    ns: tuple[Nanoseconds, Nanoseconds]
    operator_ns: tuple[Nanoseconds, Nanoseconds]
    beyond_noise: bool | None
    steps: tuple[int, int]
    stages: tuple[TimeChange, ...]
    modules: tuple[TimeChange, ...]
    num_buffers: tuple[int, int]
    decisions: tuple[tuple[int, str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"peak: {format_bytes(self.peak[0])} -> {format_bytes(self.peak[1])} "
            f"({self.peak[1] - self.peak[0]:+d} B)",
            f"step time: {format_time(self.ns[0])} -> {format_time(self.ns[1])} (the last step of each)",
            str(TimeChange("operator time", self.operator_ns, self.beyond_noise)),
            f"allocations: {self.num_buffers[0]} -> {self.num_buffers[1]}",
        ]
        before, after = self.steps
        lines.append(f"operator times are medians over {before} and {after} recorded steps")
        if self.beyond_noise is None:
            lines.append(
                f"{before} and {after} recorded steps are too few to tell changes of time from noise"
            )
        lines += [str(change) for change in self.stages if change.ns[0] != change.ns[1]]
        lines += [f"  {change}" for change in self.modules[:10] if change.ns[0] != change.ns[1]]
        lines += [f"storage {storage}: {a} -> {b}" for storage, a, b in self.decisions[:10]]
        return "\n".join(lines)


def diff(before: Trace, after: Trace) -> TraceDiff:
    """Compare two traces of the same model.

    Raises:
        PlanFileError: a trace is not well formed: says what is wrong.

    Example:
        >>> diff(Trace("observed", ()), Trace("observed", ())).peak
        (0, 0)
    """
    for trace in (before, after):
        check_trace(trace)
    decided = [{r.storage: r.decision for r in trace.reasons} for trace in (before, after)]
    rows = time_changes(before, after, lambda trace, event: "operator time")
    whole = rows[0] if rows else TimeChange("operator time", (0, 0), None)
    return TraceDiff(
        peak=(before.peak, after.peak),
        ns=(before.ns, after.ns),
        operator_ns=whole.ns,
        beyond_noise=whole.beyond_noise,
        steps=(1 + len(before.repeats), 1 + len(after.repeats)),
        stages=time_changes(before, after, lambda trace, event: event.phase.value),
        modules=time_changes(
            before, after, lambda trace, event: trace.modules[event.module].path or "(no module)"
        ),
        num_buffers=(len(before.buffers), len(after.buffers)),
        decisions=tuple(
            (storage, decided[0].get(storage, "absent"), decided[1].get(storage, "absent"))
            for storage in (sorted({*decided[0], *decided[1]}) if all(decided) else ())
            if decided[0].get(storage) != decided[1].get(storage)
        ),
    )
