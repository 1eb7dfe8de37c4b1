"""A process that trains one family: plainly, through `aot_eager`, or under a budget; then step by step."""

import os
import random
import re
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tightrope
from benchmarks._measure import digest
from benchmarks.families.registry import FAMILIES
from tightrope.core import TightropeError
from tightrope.core.cache import VARIABLE
from tightrope.native.hook.allocator import MemoryStats, ReplayEnd
from tightrope.run.ledger.accounts import accounts

NUM_STEPS = 8
_PEAKS = ("charged_peak", "live_peak", "heap_peak", "refused", "heap_refused")


class FamilyLoop:
    """A training loop that keeps losses, times and bytes of its steps."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.model, self.inputs, self.loss = FAMILIES[name].make()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        native = accounts().allocator
        assert native is not None, "the counts need the native part"
        self.native, self.step, self.saved = native, 0, 0
        self.log: dict[str, list[Any]] = {name: [] for name in ("losses", "times", "cpu", "waters")}
        self._water, self._before = 0, native.stats()
        self._stats, self._reset = native.stats, native.reset_peaks
        self._begin, self._end = native.begin_span, native.end_span
        native.stats, native.reset_peaks = self._shown, self._noted  # type: ignore[method-assign]
        native.begin_span, native.end_span = self._begun, self._ended  # type: ignore[method-assign]

    def _shown(self, found: MemoryStats | None = None) -> MemoryStats:
        """What the library would see if no peak were reset at the start of a step."""
        found, before = found or self._stats(), self._before
        peaks = {name: max(getattr(found, name), getattr(before, name)) for name in _PEAKS}
        return found._replace(**peaks)

    def _begun(self, arena: int, plan: int, *, start: int = 0) -> MemoryStats:
        return self._afresh(self._begin(arena, plan, start=start))

    def _ended(self) -> tuple[ReplayEnd, MemoryStats]:
        ended, found = self._end()
        return ended, self._afresh(found)

    def _afresh(self, found: MemoryStats) -> MemoryStats:
        """Note the counters of a part of a step, behind which peaks start afresh."""
        self._water = max(self._water, found.charged_peak)
        shown, self._before = self._shown(found), self._stats()
        return shown

    def _noted(self) -> None:
        self._water = max(self._water, self._stats().charged_peak)
        self._reset()
        self._before = self._stats()

    def _peak(self) -> int:
        self._before, water = self._shown(), max(self._water, self._stats().charged_peak)
        self._reset()
        self._water = 0
        return water + accounts().older

    def run(self) -> float:
        """Run one step; return its thread-CPU seconds."""
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(self.step + 1)
        self.step += 1
        given = self.inputs(self.step)
        self._peak()
        limited, held = self.native.limit is not None, self._stats().live
        start, process = time.thread_time(), time.process_time()
        loss = self.loss(self.model, given)
        self.saved = self._stats().live - held
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.log["times"].append(seconds := time.thread_time() - start)
        self.log["cpu"].append(time.process_time() - process)
        self.log["losses"].append(digest([loss.detach().clone()]))
        self.log["waters"].append(self._peak() * (1 if limited else -1))
        return seconds

    def told(self) -> dict[str, Any]:
        """Say what came of the steps; a peak before there was a limit is negative."""
        copies = [one.detach().clone() for one in self.model.parameters()]  # numpy is to see none itself
        return self.log | {"parameters": digest(copies), "saved": self.saved}


def budgeted(loop: FamilyLoop) -> dict[str, Any]:
    """What the report says of a run."""
    found = tightrope.report(loop.model)
    names = ("level", "why", "budget", "unplanned", "observed_total", "forecast_peak", "observed_peak")
    more = ("divergences", "num_recomputed", "hidden", "unlike_eager", "enforced")
    told = {name: getattr(found, name) for name in names + more}
    return told | {"graphs": len(found.planned), "plans": len(found.proofs), "reported": str(found)[:600]}


def serve(name: str, way: str, pipe: Connection, cache: Path) -> None:
    """Train, and tell it; then make one step for each message, until it is empty."""
    warnings.simplefilter("ignore")
    os.environ[VARIABLE], nothing = str(cache), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    torch.set_num_threads(1)
    started, loop = time.process_time(), None
    try:
        loop = FamilyLoop(name)
        started = time.process_time()
        if way == "aot_eager":
            loop.model = torch.compile(loop.model, backend="aot_eager")  # type: ignore[assignment]
        elif way != "eager":
            tightrope.compile(loop.model, budget=int(way) if way.isdigit() else way, progress=False)
        for _ in range(1 if way == "aot_eager" else NUM_STEPS):
            loop.run()
        told = loop.told()
        if way == "aot_eager":
            counted = torch._dynamo.utils.counters
            told |= {"graphs": counted["stats"]["unique_graphs"], "breaks": list(counted["graph_break"])[:3]}
        elif way != "eager":
            told |= budgeted(loop)
        pipe.send(told)
        while pipe.recv():
            pipe.send(loop.run())
    except Exception as error:
        named = getattr(error, "smallest_found", None) or getattr(error, "budget_to_try", None)
        said = re.findall(r'budget="?(\d+%?)', str(error))
        raised = "refused" if isinstance(error, TightropeError) else "failed"
        told = {raised: type(error).__name__, "said": str(error)[:1200]}
        told |= {"step": loop.step - 1 if loop else -1, "seconds": time.process_time() - started}
        told["named"] = str(named or (said[-1] if said else ""))
        if raised == "failed" or told["step"] > 0:
            told["trace"] = traceback.format_exc()[-6000:]
        pipe.send(told)
