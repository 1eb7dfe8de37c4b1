"""`load`: a saved step, ready to run in a process that has captured nothing.

Idea        The file has the graph, the executable and the bytes that the step begins from. The judge
            looks at the executable, it becomes flat code, and that runs in an arena of its own.
Guarantee   The file is data: names in it lead to overloads of torch's own ops and to the kernels of this
            package, and to nothing else. What runs was accepted by the judge; its first run is checked
            inline; the process is held to the budget of the file.
Gaps        One call: one part, or a forward and its backward. A kernel gets the arguments that the file
            says: do not run files of people whose programs you would not run.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import torch

from tightrope.capture.optim import Rule, read_options, rule_named
from tightrope.core import (
    Bytes,
    JudgeError,
    PlanFileError,
    TightropeError,
    View,
    format_bytes,
    parse_bytes,
    round_up,
)
from tightrope.core.arguments import check_kind, check_path
from tightrope.core.bundle import Bundle, Extent, Opened, Role, open_bundle
from tightrope.core.collector import collector_paused
from tightrope.core.executable import ARENA
from tightrope.core.ledger import Ledger, Row
from tightrope.core.units import shown
from tightrope.core.values import EMPTY
from tightrope.judge import judge
from tightrope.lower import simulate
from tightrope.native.hook.allocator import Divergence
from tightrope.price.kernels import dtype_of, tensor_in
from tightrope.run.base.arguments import check_verify
from tightrope.run.execute.check import RecomputeCheck
from tightrope.run.execute.emit import Code, emit
from tightrope.run.execute.prepared import Proof, part_starts, register
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.arenas import Arenas, trim_all
from tightrope.run.ledger.headroom import ByLoop

_MOST_THREADS: Final = 4096


def load(path: str | Path, *, budget: str | int | None = None, verify: str | None = "first") -> "SavedStep":
    """Read a step that `save` wrote, have it judged, and make it ready to run.

    Nothing is captured and nothing in the file is executed. The random state of the process stays as
    it is; to repeat the very call that was saved, set it: ``torch.set_rng_state(step.random_state)``.

    Args:
        path: of the file.
        budget: bytes that the process is held to, such as ``"8GiB"``; default: those it was planned for.
            More are needed where the process holds something beside the step.
        verify: ``"first"`` checks the first run inline, value by value where something is computed
            again; None checks nothing while it runs.

    Raises:
        PlanFileError: it is no such file, or a damaged one; says what is wrong.
        JudgeError: the judge refuses what it would run.
        TightropeError: an op in it is not known here, or may not be called from a file.
        InfeasibleError: the budget is less than the step needs.
        torch.OutOfMemoryError: what the process holds already leaves no room for its storages.

    Example:
        >>> import tempfile, torch, tightrope
        >>> model, x = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB"), torch.ones(2, 8)
        >>> model(x).sum().backward()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tightrope.save(model, f"{folder}/linear.step", (x,))
        ...     saved = load(f"{folder}/linear.step")
        >>> results = saved()
        >>> list(results), torch.equal(results["gradient of weight"], model.weight.grad)
        (['output 0', 'gradient of weight', 'gradient of bias'], True)
    """
    check_verify(verify)
    check_path(path, "the path of a saved step")
    if not Path(path).is_file():
        raise PlanFileError(f"{str(path)!r} is not a file: give the path of a saved step.")
    with collector_paused(), Path(path).open("rb") as file:
        opened = open_bundle(file, str(path))
        state, wanted = opened.bundle.random_state.bytes, torch.get_rng_state().numel()
        if state != wanted:
            raise PlanFileError(f"bundle: $.random_state.bytes = {state}: the generator has {wanted}.")
        size = opened.bundle.budget if budget is None else parse_bytes(budget)
        return SavedStep(opened, budget=size, verify=verify)


@dataclass
class Observed:
    """What the runs of a saved step took.

    Attributes:
        budget: bytes that the process is held to.
        enforced: whether it is; without a C++ compiler nothing is.
        persistent: bytes of what the file holds.
        forecast_peak: largest number of live bytes that a step makes, by the executable.
        observed_peak: the same as observed in all runs.
        charged: largest number of bytes charged, everything included.
        num_steps: that ran.
        divergences: allocations that did not go as planned.
    """

    budget: Bytes
    enforced: bool
    persistent: Bytes
    forecast_peak: Bytes
    observed_peak: Bytes = 0
    charged: Bytes = 0
    num_steps: int = 0
    divergences: list[Divergence] = field(default_factory=list)


class SavedStep:
    """A step that was loaded from a file; made by `load`.

    Attributes:
        graph: what it computes.
        executable: what runs.
        proof: what was judged and checked, and when.
        observed: what its runs took.
        inputs: the batch by name; a call may give others.
        state: parameters, buffers and optimizer state by name; a step changes them in place.
        random_state: of the CPU generator when it was saved.
    """

    def __init__(self, opened: Opened, *, budget: Bytes, verify: str | None) -> None:
        bundle, began = opened.bundle, time.perf_counter()
        self.graph, self.executable, self._bundle = bundle.graph, bundle.executable, bundle
        verdict = judge(self.graph, self.executable)
        if verdict.problems:
            raise JudgeError(verdict.problems[0])
        if not self.executable.placed:
            raise TightropeError("an executable without addresses cannot run: plan with placement.")
        self._check = RecomputeCheck(self.graph, self.executable) if verify is not None else None
        self._watched = self._check is not None
        wrap = None if self._check is None else self._check.wrap
        self._code: Code = emit(self.graph, self.executable, wrap=wrap, allow=())
        self.proof = Proof(verdict.executable, "loaded", time.time(), time.perf_counter() - began)
        self._accounts = accounts()
        figures = simulate(self.executable)
        allocator = self._accounts.allocator
        ledger = Ledger(budget).plus(
            Row("parameters, state and inputs", self.graph.persistent),
            Row("outside the arena", figures.outside, "forecast"),
            Row("random state", round_up(bundle.random_state.bytes)),
        )
        if ledger.room() < figures.arena:
            raise ledger.explain(Row("the step", figures.arena, "forecast"))
        self.observed = Observed(
            budget, allocator is not None, self.graph.persistent - self.graph.hidden, figures.peak,
        )  # fmt: skip
        trim_all()  # what arenas of others have free is not in the way of this step
        enough = self._accounts.charged() + ledger.needed(figures.arena)
        self._accounts.note_enough(self, ByLoop(enough, enough))
        self._accounts.hold(self, budget, name="the loaded step")
        self._accounts.hold_back(self, self.graph.hidden)
        self._given, self.random_state = _memory(opened)
        self.inputs = self.by_role("input")
        self.state = self.by_role("parameter") | self.by_role("buffer") | self.by_role("state")
        self._updates = _Settings(bundle, self._given) if bundle.updates else None
        self._arenas = Arenas(allocator) if allocator is not None else None
        self._starts, self._live, _ = part_starts(self.executable)
        self._table = -1 if allocator is None else register(self.executable, allocator)

    def __del__(self) -> None:
        arenas = self.__dict__.get("_arenas")
        if arenas is not None and self.__dict__.get("_table", -1) >= 0:
            assert self._accounts.allocator is not None
            self._accounts.allocator.drop_plan(self._table)
            arenas.close()

    def __str__(self) -> str:
        name = self.graph.name or "step"
        size = format_bytes(self.observed.budget)
        return f"saved {name}: {self.executable.num_runs} kernels, {size}; {self.proof}"

    def __call__(
        self,
        inputs: Mapping[str, torch.Tensor] | None = None,
        *,
        tangents: Sequence[torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Make one step.

        Args:
            inputs: other tensors in place of those saved, by name, with the same layout.
            tangents: where the backward starts from, one per output that a loss reads; default: ones,
                as ``sum(outputs).backward()`` would.

        Returns:
            Outputs and gradients by name; parameters, buffers and state are changed in place.

        Raises:
            TightropeError: an input has another layout, or a name is not known.
            VerificationError: in the first run: a value differs from what it was before.
            torch.OutOfMemoryError: the process holds too much beside the step.
        """
        names = ", ".join(self.inputs) or "it has no inputs"
        others = {} if inputs is None else inputs
        check_kind("inputs", others, Mapping, f"a dict of tensors by name: {names}")
        for name, tensor in others.items():
            check_kind(f"inputs[{shown(name)}]", tensor, torch.Tensor, "a tensor")
        if tangents is not None:
            _check_tangents(tangents)
        if self._watched and self._check is None:
            self._code, self._watched = emit(self.graph, self.executable, allow=()), False
        given = self._inputs(dict(others))
        with self._accounts.turn, torch.no_grad():
            self._accounts.note_tensors(given)
            if self._updates is not None:
                self._updates.refresh()
            with self._arena() as arena:
                results = self._run(given, tangents, arena)
            if self._updates is not None:
                self._updates.finish()
        self._after_run()
        return results

    @property
    def num_threads(self) -> int:
        """Threads of the process that saved it; 0 where it did not say."""
        text = dict(self.graph.environment).get("num_threads", "")
        return int(text) if text.isascii() and text.isdigit() and 0 < int(text) <= _MOST_THREADS else 0

    @property
    def environment(self) -> tuple[tuple[str, str, str], ...]:
        """(what, then, now) wherever this process differs from the one that saved it, as results may."""
        return _differences(dict(self.graph.environment))

    def by_role(self, role: Role) -> dict[str, torch.Tensor]:
        """Look up what the step begins from: parameters, buffers, optimizer state, ..., by name."""
        pairs = zip(self._bundle.inputs, self._given, strict=True)
        return {one.name: tensor for one, tensor in pairs if one.role == role and tensor is not None}

    def _run(
        self, given: list[Any], tangents: Sequence[torch.Tensor] | None, arena: int | None
    ) -> dict[str, torch.Tensor]:
        results: dict[str, torch.Tensor] = {}
        kept: list[Any] = []
        for part, names in enumerate(self._bundle.outputs):
            inputs = [*given] if part == 0 else self._tangents(tangents)
            first = self._profiled and part == 0
            with self._accounts.observed(profiled=first, held=self._live[part]) as seen:
                outputs, kept = self._served(part, kept, inputs, arena)
            self.observed.observed_peak = max(self.observed.observed_peak, self._live[part] + seen.above)
            self.observed.charged = max(self.observed.charged, seen.charged)
            if part == 0:
                for output, position in self._bundle.changed:
                    given[position].copy_(outputs[output])
            results |= {
                name: value
                for name, value in zip(names, outputs, strict=True)
                if name and isinstance(value, torch.Tensor)
            }
            del outputs
        return results

    @property
    def _profiled(self) -> bool:
        return self._accounts.allocator is None and not self.observed.num_steps

    def _served(
        self, part: int, kept: list[Any], inputs: list[Any], arena: int | None
    ) -> tuple[list[Any], list[Any]]:
        """Run one part at its planned addresses."""
        allocator = self._accounts.allocator
        if allocator is None or arena is None or self.observed.divergences:
            return self._code.parts[part](kept, inputs)
        start = self._starts[part]
        allocator.begin_replay(arena, self._table, start=start)
        try:
            result = self._code.parts[part](kept, inputs)
        finally:
            end = allocator.end_replay()
            if end.divergence is not None:
                self.observed.divergences.append(end.divergence)
        if end.divergence is None and end.reached < self._starts[part + 1]:
            self.observed.divergences.append(Divergence(end.reached, 0, 0, "short", 0))
        return result

    @contextmanager
    def _arena(self) -> Iterator[int | None]:
        if self._arenas is None:
            yield None
            return
        found, _ = self._arenas.reclaim()
        arena = self._arenas.fit(found, self.executable.spaces[ARENA].capacity)
        try:
            yield arena
        finally:
            self._arenas.finish(arena, retire=bool(self.observed.divergences))

    def _after_run(self) -> None:
        self.observed.num_steps += 1
        self.proof.peak = self.observed.observed_peak
        if self._check is not None:
            self.proof.note(self._check, "", len(self._bundle.outputs), over=True)
            self._check = None

    def _inputs(self, others: dict[str, torch.Tensor]) -> list[Any]:
        given = list(self._given)
        for position, one in enumerate(self._bundle.inputs):
            if one.role == "input" and one.name in others:
                given[position] = self._fitting(one.name, others.pop(one.name), given[position])
        if others:
            raise TightropeError(f"no input is called {min(others)!r}; there are: {', '.join(self.inputs)}.")
        return given

    def _fitting(self, name: str, tensor: torch.Tensor, saved: Any) -> torch.Tensor:
        looks, wanted = _looks(tensor), _looks(saved)
        if looks != wanted:
            raise TightropeError(
                f"input {name!r} is {looks}; the step was planned for {wanted}. Give one like that, or save "
                "the step again with this one."
            )
        return tensor.detach()

    def _tangents(self, given: Sequence[torch.Tensor] | None) -> list[Any]:
        views = [item.view for item in self.graph.parts[1].inputs]
        num_starts = sum(view is not None for view in views)
        if given is not None and len(given) != num_starts:
            raise TightropeError(f"{len(given)} tangents given; the backward starts from {num_starts}.")
        left = enumerate(given) if given is not None else None
        found: list[Any] = []
        for view in views:
            if view is None:
                found.append(None)
                continue
            one = torch.empty_strided(view.shape, view.strides, dtype=dtype_of(view.dtype)).fill_(1)
            if left is not None:
                position, tangent = next(left)
                one = self._fitting(f"tangent {position}", tangent, one)
            found.append(one)
        return found


def _looks(tensor: torch.Tensor) -> tuple[object, ...]:
    """What a tensor must have in common with the one that was saved."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return tensor.dtype, "nested" if tensor.is_nested else str(tensor.layout)
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), str(tensor.device)


def _check_tangents(tangents: object) -> None:
    """Refuse what is no sequence of tensors."""
    wanted = "a list of tensors, one per output that has a gradient"
    check_kind("tangents", tangents, Sequence, wanted)
    for position, tensor in enumerate(cast("Sequence[object]", tangents)):
        check_kind(f"tangents[{position}]", tensor, torch.Tensor, f"a tensor: tangents are {wanted}")


class _Settings:
    """The numbers of the next updates, written into the inputs that hold them."""

    def __init__(self, bundle: Bundle, given: Sequence[Any]) -> None:
        self.rule: Rule = rule_named(bundle.rule)
        self.rows = [(row, given[row.parameter], given[row.settings]) for row in bundle.updates]
        self.groups = [
            read_options(self.rule, row.options, f"bundle: $.updates[{position}]")
            for position, row in enumerate(bundle.updates)
        ]
        self.counts = [row.count for row in bundle.updates]

    def refresh(self) -> None:
        """Write the numbers of the next step."""
        for (_, parameter, settings), group, count in zip(self.rows, self.groups, self.counts, strict=True):
            state: dict[str, Any] = {"step": torch.tensor(count)}
            if count:
                state["momentum_buffer"] = parameter
            numbers = self.rule.settings(parameter, group, {parameter: state})
            settings.copy_(torch.tensor(numbers, dtype=settings.dtype))

    def finish(self) -> None:
        """Count the updates."""
        self.counts = [count + 1 for count in self.counts]


def _memory(opened: Opened) -> tuple[list[Any], torch.Tensor]:
    """Read all storages; return the inputs of the first part, and the random state."""
    storages: dict[int, torch.UntypedStorage] = {}
    for extent in opened.bundle.extents:
        storages[extent.storage] = _read(opened, extent).untyped_storage()
    given: list[Any] = []
    for item in opened.bundle.graph.parts[0].inputs:
        given.append(None if item.view is None else _input(item.view, storages))
    return given, _read(opened, opened.bundle.random_state)


def _read(opened: Opened, extent: Extent) -> torch.Tensor:
    made = torch.empty(extent.bytes, dtype=torch.uint8)
    if extent.bytes:
        opened.read_into(extent, made.numpy().data)
    return made


def _input(view: View, storages: Mapping[int, torch.UntypedStorage]) -> torch.Tensor:
    if view.base == EMPTY:
        return torch.empty_strided(view.shape, view.strides, dtype=dtype_of(view.dtype))
    return tensor_in(storages[view.base], view)


def _differences(then: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    now = {
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "num_threads": str(torch.get_num_threads()),
        "torch": str(torch.__version__),
    }
    return tuple((name, then[name], value) for name, value in now.items() if then.get(name, value) != value)
