"""Choose which modules are computed again, and which of their results are kept all the same.

Idea        Begin from several forms: every member of each list of modules, what the plan computes again, and
            nothing. Each is made to fit by the module that lowers the peak most per time, then made cheaper:
            modules that are not needed go, others take their places. A selective form begins from forms
            with room and keeps the results that cost most time per byte, in all alike modules first.
Source      Greedy knapsack; every figure is a walk over the tape (`tightrope_export.peak`).
Guarantee   No form is taken that exceeds the budget while one that was walked holds it, and no slower
            one than checkpointing every member of a list, where that holds it.
Complexity  `MOST` walks, each linear in the events of the step.
Gaps        Not optimal: a form of fewer bytes or less time may exist.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tightrope.core import Bytes, InfeasibleError, Kind, format_bytes
from tightrope_export.peak import Walker
from tightrope_export.values.form import AgainRegion, Form, FormPromise, Saved, Target
from tightrope_export.values.tape import Mark, StepTape

MOST: Final = 2_500
"""Walks of one search."""
_CANDIDATES: Final = 160
_WORTH: Final = 0.05
"""What a byte less at the turn counts, next to one of the peak: some peaks fall only with two modules."""


class Hints(NamedTuple):
    """What a plan computes again and keeps, by (module, op)."""

    again: frozenset[tuple[str, str]] = frozenset()
    kept: frozenset[tuple[str, str]] = frozenset()


NO_HINTS: Final = Hints()


class ChosenForm(NamedTuple):
    """A form, its figures, and the list whose members it is made of, if it is for one."""

    form: Form
    promise: FormPromise
    layers: str = ""


def refusal(walker: Walker, path: str) -> str:
    """Say why a module cannot be computed again; empty = it can."""
    if not path:
        return "is the whole model"
    for number in walker.by_path.get(path, ()):
        if found := _call_refusal(walker, number, path):
            return found
    return "" if path in walker.by_path else "was not called"


def _call_refusal(walker: Walker, number: int, path: str) -> str:
    tape, extent = walker.tape, walker.extents[number]
    call = tape.calls[number]
    made = {storage for op in extent.names.values() for storage in tape.graph.ops[op].creates}
    if not any(tape.saves[save] in made for save in extent.saves):
        return "saves nothing that it computes"
    if call.start >= tape.turn:
        return "runs in the backward"
    inputs, storages = {*call.inputs}, tape.graph.storages
    fixed = {one for names in walker.statistics(path).values() for _, one in names}
    for storage in inputs:
        if any(at > call.start for at in tape.writes.get(storage, ())):
            return "has an argument that is changed later"
    for op in map(tape.graph.ops.__getitem__, extent.names.values()):
        for storage in op.reads:
            if storage not in made and storage not in inputs and storages[storage].kind is Kind.ACTIVATION:
                return "reads what is not its argument"
        if any(storage not in made and storage not in fixed for storage in op.mutates):
            return "changes what it did not make"
    gone = {one for kind, one in tape.events[call.start : call.end] if kind is Mark.FREE}
    if made - gone - {*call.outputs}:
        return "keeps what it made, such as a cache"
    return ""


def choose(walker: Walker, target: Target, budget: Bytes, hints: Hints = NO_HINTS) -> ChosenForm:
    """Choose a form whose forecast holds a budget, at the least time that was found.

    Args:
        walker: of the step.
        target: what can be written.
        budget: total bytes.
        hints: from a plan.

    Raises:
        InfeasibleError: no form that was found holds it; has the smallest.
    """
    search = Search(walker, budget, hints)
    if target == "hf":
        found = [(form, name) for name in search.lists for form in [search.best(search.lists[name])]]
        form, layers = min(found or [((), "")], key=lambda one: search.rank(one[0]))
        return search.checked(form, layers)
    form = search.best(search.candidates)
    return search.checked(search.selective(form) if target == "sac" else form)


class Search:
    """One search; remembers what it walked."""

    def __init__(self, walker: Walker, budget: Bytes, hints: Hints) -> None:
        self.walker, self.budget, self.hints, self.left = walker, budget, hints, MOST
        able = [path for path in walker.by_path if not refusal(walker, path)]
        kept = {path: self.weight(path) for path in able}
        self.candidates = tuple(sorted(able, key=lambda path: -kept[path])[:_CANDIDATES])
        wide = {
            name: tuple(one for one in members if one in kept) for name, members in walker.tape.lists.items()
        }
        self.lists = {name: members for name, members in wide.items() if members}
        self.seen: set[Form] = set()

    def weight(self, path: str) -> Bytes:
        """Bytes that autograd saves in a module."""
        tape = self.walker.tape
        saves = {tape.saves[s] for n in self.walker.by_path[path] for s in self.walker.extents[n].saves}
        return sum(self.walker.sizes[storage] for storage in saves if storage >= 0)

    @property
    def tape(self) -> StepTape:
        """Of the step."""
        return self.walker.tape

    def promise(self, form: Form) -> FormPromise:
        """The figures of a form."""
        if form not in self.seen:
            self.seen.add(form)
            self.left -= 1
        return self.walker.promise(form)

    def rank(self, form: Form) -> tuple[bool, int, int]:
        """Forms that fit first, by time; then the others, by bytes."""
        found = self.promise(form)
        fits = found.total <= self.budget
        return not fits, found.ns if fits else found.total, found.total if fits else found.ns

    def checked(self, form: Form, layers: str = "") -> ChosenForm:
        """A form that holds the budget.

        Raises:
            InfeasibleError: it does not; has the smallest that was walked.
        """
        found = self.promise(form)
        if found.total > self.budget:
            smallest = min(map(self.walker.promise, self.seen), key=lambda one: one.total)
            raise InfeasibleError(
                f"no exported form holds {format_bytes(self.budget)}; the smallest has a forecast peak of "
                f"{format_bytes(smallest.total)}. Give --budget {smallest.total}.",
                asked=self.budget,
                smallest_found=smallest.total,
            )
        return ChosenForm(form, found, layers if form else "")

    def best(self, candidates: Sequence[str]) -> Form:
        """The best form of whole modules."""
        starts: list[Form] = [()]
        allowed = {*candidates}
        for members in self.lists.values():
            if allowed.issuperset(members):
                starts.append(_form(members))
        if self.lists and allowed.issuperset(one for members in self.lists.values() for one in members):
            outer = _outermost(one for members in self.lists.values() for one in members)
            starts.append(_form(outer))
        if hinted := self._hinted(candidates):
            starts.append(hinted)
        ranked = sorted(dict.fromkeys(starts), key=self.rank)
        found = [self._improved(self._fitted(form, candidates), candidates) for form in ranked[:3]]
        return min([*ranked, *found], key=self.rank)

    def _hinted(self, candidates: Sequence[str]) -> Form:
        """The innermost modules around what a plan computes again."""
        allowed, found = {*candidates}, set[str]()
        for path, _ in self.hints.again:
            while path and path not in allowed:
                path = path.rpartition(".")[0]
            found.add(path)
        return _form(_outermost(found - {""}))

    def _fitted(self, form: Form, candidates: Sequence[str]) -> Form:
        """Add the module that lowers the peak most per time, until the budget holds."""
        while self.left > 0 and (now := self.promise(form)).total > self.budget:
            best, most = form, 0.0
            for path in candidates:
                other = _with(form, path)
                if other == form:
                    continue
                then = self.promise(other)
                won = now.peak - then.peak + _WORTH * (now.held - then.held)
                rate = won / max(then.ns - now.ns, 1_000)
                if won > 0 and rate > most:
                    best, most = other, rate
                if self.left <= 0:
                    break
            if best == form:
                break
            form = best
        return form

    def _improved(self, form: Form, candidates: Sequence[str]) -> Form:
        """Take modules away, or others in their place, while that ranks better."""
        better = True
        while better and self.left > 0:
            better = False
            for region in sorted(form, key=lambda one: -self.weight(one.path)):
                without = tuple(one for one in form if one != region)
                inner = [path for path in candidates if path.startswith(f"{region.path}.")]
                near = [without, *(_with(without, path) for path in inner[:12])]
                best = min(near, key=self.rank)
                if self.rank(best) < self.rank(form):
                    form, better = best, True
                if self.left <= 0:
                    break
        return form

    def selective(self, form: Form) -> Form:
        """The best form whose modules keep some results; whole modules where nothing is won."""
        starts = [form, *(_form(members) for members in self.lists.values())]
        outer = _form(_outermost(one for members in self.lists.values() for one in members))
        starts.append(outer)
        self.left = MOST
        found = [form]
        for start in sorted(dict.fromkeys(starts), key=self.rank)[:4]:
            if start and self.promise(start).total <= self.budget:
                found.append(self._keeping(start))
        return min(found, key=self.rank)

    def _keeping(self, form: Form) -> Form:
        groups = sorted(self._groups(form).items(), key=lambda one: -one[1][0])
        if any(hinted := [one for one in groups if one[1][2]]):
            groups = [*hinted, *(one for one in groups if not one[1][2])]
        saved: dict[str, dict[tuple[str, int], None]] = {region.path: {} for region in form}
        for (_, name), (_, paths, _) in groups:
            for part in (paths, paths[: len(paths) // 2], *([one] for one in paths)):
                new = [path for path in part if name not in saved[path]]
                trial = {
                    path: {**own, **({name: None} if path in new else {})} for path, own in saved.items()
                }
                if new and self.left > 0 and self.promise(_saving(trial)).total <= self.budget:
                    saved = trial
        kept = _saving(saved)
        return min((form, kept, self._plain_where_little(kept)), key=self.rank)

    def _plain_where_little(self, form: Form) -> Form:
        """Modules without a policy where what it keeps is not worth its own time."""
        for region in form:
            other = tuple(one._replace(saved=()) if one == region else one for one in form)
            if region.saved and self.rank(other) <= self.rank(form):
                form = other
        return form

    def _groups(self, form: Form) -> dict[tuple[str, tuple[str, int]], tuple[float, list[str], bool]]:
        """Results that can be kept, by kind of module: (time per byte, modules, whether a plan does)."""
        found: dict[tuple[str, tuple[str, int]], tuple[float, list[str], bool]] = {}
        for region in form:
            calls = self.walker.by_path[region.path]
            if len(calls) > 1:
                continue
            extent = self.walker.extents[calls[0]]
            for name, op in extent.names.items():
                rate = self._rate(op, extent.call)
                if rate <= 0:
                    continue
                key = re.sub(r"\d+", "#", region.path), name
                one = self.walker.tape.graph.ops[op]
                known = found.setdefault(key, (rate, [], (one.module, one.target) in self.hints.kept))
                known[1].append(region.path)
        return found

    def _rate(self, number: int, call: int) -> float:
        """Time per byte of keeping what an op makes; 0 = it cannot be kept."""
        tape = self.walker.tape
        op = tape.graph.ops[number]
        at = tape.calls[call].start
        changed = any(when > at for storage in op.creates for when in tape.writes.get(storage, ()))
        random = bool(op.flags) or op.mutates
        if not op.creates or changed or random:
            return 0.0
        return op.ns / max(sum(self.walker.sizes[storage] for storage in op.creates), 1)


def _saving(saved: Mapping[str, Mapping[tuple[str, int], None]]) -> Form:
    return tuple(AgainRegion(path, _names(saved[path])) for path in sorted(saved, key=_order))


def _names(saved: Iterable[tuple[str, int]]) -> Saved:
    return tuple(sorted(saved))


def _form(paths: Iterable[str]) -> Form:
    return tuple(AgainRegion(path) for path in sorted(paths, key=_order))


def _order(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]


def _outermost(paths: Iterable[str]) -> list[str]:
    every = {*paths}
    return [path for path in every if not any(path.startswith(f"{other}.") for other in every)]


def _with(form: Form, path: str) -> Form:
    """A form with a module more, in place of those inside of it; the same where it is inside of one."""
    if any(path == one.path or path.startswith(f"{one.path}.") for one in form):
        return form
    return _form([path, *(one.path for one in form if not one.path.startswith(f"{path}."))])
