"""Watch from outside what the runtime judges, compiles, registers and runs.

The functions that do so are wrapped while a ``with`` block lasts; the product knows nothing of it. An
executable is one object from the judge to the run: what is compiled into functions, and what gives
the allocator its addresses, must be the object that the judge accepted before.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tightrope.core import Executable, Resume, Run
from tightrope.lower import judged as judging
from tightrope.lower import planned
from tightrope.native.hook.allocator import Allocator
from tightrope.run.execute import prepared as preparing
from tightrope.run.execute.check import RecomputeCheck
from tightrope.run.execute.prepared import Proof
from tightrope.run.execute.running import Running


@dataclass(frozen=True)
class PartRun:
    """One part that ran.

    Attributes:
        executable: that its functions were compiled from.
        part: of it.
        at: when it began, seconds since the epoch.
        num_checked: results that the inline check looked at meanwhile; -1 = it was not there.
        same_addresses: whether the allocator serves the addresses of that executable.
    """

    executable: Executable
    part: int
    at: float
    num_checked: int
    same_addresses: bool


@dataclass
class Observed:
    """What happened, in order.

    Attributes:
        verdicts: every executable that was judged, whether it was accepted, and when.
        runs: every part that ran.
    """

    verdicts: list[tuple[Executable, bool, float]] = field(default_factory=list)
    runs: list[PartRun] = field(default_factory=list)
    _code: dict[int, tuple[Any, Executable, RecomputeCheck | None]] = field(default_factory=dict)
    _tables: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)

    def executed(self) -> list[Executable]:
        """List the executables of which a part ran, once each."""
        return list({id(run.executable): run.executable for run in self.runs}.values())

    def problems(self, proofs: tuple[Proof, ...]) -> list[str]:
        """List what was run without being judged, or first run without being checked, or is not reported."""
        found: list[str] = []
        for executable in self.executed():
            name = executable.fingerprint[:8]
            runs = [run for run in self.runs if run.executable is executable]
            accepted = [at for one, ok, at in self.verdicts if one is executable and ok]
            if not accepted or min(accepted) > runs[0].at:
                found.append(f"{name} ran before it was judged")
            if not all(run.same_addresses for run in runs):
                found.append(f"{name} ran at other addresses than its own")
            results = _results(executable)
            for part in sorted({run.part for run in runs}):
                first = next(run for run in runs if run.part == part)
                if first.num_checked != results[part]:
                    found.append(
                        f"{name}, part {part}: {first.num_checked} of {results[part]} results checked"
                    )
            mine = [proof for proof in proofs if proof.executable == executable.fingerprint]
            if not any(_tells(proof, runs) for proof in mine):
                found.append(f"{name} is not reported as it was judged and checked")
        return found


def _tells(proof: Proof, runs: list[PartRun]) -> bool:
    """Whether a proof says when its executable was judged, when it was checked, and against what."""
    text = str(proof)
    last = max(run.part for run in runs)
    if not (proof.cause and 0 < proof.judged <= runs[0].at and proof.executable[:12] in text):
        return False
    if proof.checked:
        return proof.checked >= runs[0].at and "equal their first, bit for bit" in text
    return proof.num_parts == last + 1 and f"its first {last + 1} parts checked" in text


def _results(executable: Executable) -> list[int]:
    """Results of kernels, by part."""
    counts: list[int] = []
    for instruction in executable.instructions:
        if isinstance(instruction, Resume):
            counts.append(0)
        elif isinstance(instruction, Run):
            counts[-1] += len(instruction.results)
    return counts


@contextmanager
def observed() -> Iterator[Observed]:
    """Watch everything that is judged and run in a ``with`` block."""
    seen = Observed()
    judge: Any = vars(judging)["judge"]
    emit: Any = vars(preparing)["emit"]
    register, run = Allocator.register_plan, Running.run

    def judge_(graph: Any, executable: Executable, *others: Any) -> Any:
        verdict = judge(graph, executable, *others)
        seen.verdicts.append((executable, verdict.ok, time.time()))
        return verdict

    def emit_(graph: Any, executable: Executable, **options: Any) -> Any:
        code = emit(graph, executable, **options)
        check = getattr(options.get("wrap"), "__self__", None)
        seen._code[id(code.parts)] = (code, executable, check if isinstance(check, RecomputeCheck) else None)
        return code

    def register_(self: Allocator, sizes: Any, offsets: Any, **options: Any) -> int:
        table = register(self, sizes, offsets, **options)
        seen._tables[table] = (list(sizes), list(offsets))
        return table

    def run_(self: Running, kept: list[Any], given: list[Any]) -> Any:
        _, executable, check = seen._code[id(self._code.parts)]
        before, at, part = 0 if check is None else check.num_results, time.time(), self.position
        rows = planned(executable)
        wanted = ([row.bytes for row in rows], [row.offset for row in rows])
        same = self.prepared.allocator is None or seen._tables[self.prepared.table] == wanted
        result = run(self, kept, given)
        num_checked = -1 if check is None else check.num_results - before
        seen.runs.append(PartRun(executable, part, at, num_checked, same))
        return result

    with ExitStack() as wrapped:
        wrapped.enter_context(patch.object(judging, "judge", judge_))
        wrapped.enter_context(patch.object(preparing, "emit", emit_))
        wrapped.enter_context(patch.object(Allocator, "register_plan", register_))
        wrapped.enter_context(patch.object(Running, "run", run_))
        yield seen
