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
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Final, NamedTuple

from tightrope.core import Bytes, InfeasibleError, Kind, format_bytes
from tightrope_export.peak import Walker
from tightrope_export.values.form import AgainRegion, Form, FormPromise, Target
from tightrope_export.values.tape import Mark

MOST: Final = 2_500
"""Walks of one search."""
_CANDIDATES: Final = 160
_WORTH: Final = 0.05
"""What a byte less at the turn counts, next to one of the peak: some peaks fall only with two modules."""


class Hints(NamedTuple):
    """What a plan computes again and keeps, by (module, op)."""

    again: frozenset[tuple[str, str]] = frozenset()
    kept: frozenset[tuple[str, str]] = frozenset()


class ChosenForm(NamedTuple):
    """A form, its figures, and the list whose members it is made of, if it is for one."""

    form: Form
    promise: FormPromise
    layers: str = ""


def refusal(walker: Walker, path: str) -> str:
    """Say why a module cannot be computed again; empty = it can."""
    if not path:
        return "is the whole model"
    if path not in walker.by_path:
        return "was not called"
    for number in walker.by_path[path]:
        tape, extent = walker.tape, walker.extents[number]
        call, ops = tape.calls[number], [tape.graph.ops[op] for op in extent.names.values()]
        made = {storage for op in ops for storage in op.creates}
        if not any(tape.saves[save] in made for save in extent.saves):
            return "saves nothing that it computes"
        if call.start >= tape.turn:
            return "runs in the backward"
        if any(tape.writes.get(storage, -1) > call.start for storage in call.inputs):
            return "has an argument that is changed later"
        given = made.union(call.inputs)
        fixed = made.union(storage for _, _, storage in walker.statistics(path))
        for op in ops:
            if any(tape.graph.storages[one].kind is Kind.ACTIVATION for one in op.reads if one not in given):
                return "reads what is not its argument"
            if not fixed.issuperset(op.mutates):
                return "changes what it did not make"
        gone = {one for kind, one in tape.events[call.start : call.end] if kind is Mark.FREE}
        if made - gone - {*call.outputs}:
            return "keeps what it made, such as a cache"
    return ""


def choose(walker: Walker, target: Target, budget: Bytes, hints: Hints | None = None) -> ChosenForm:
    """Choose a form whose forecast holds a budget, in the shortest time that was found.

    Args:
        walker: of the step.
        target: what can be written.
        budget: total bytes.
        hints: from a plan.

    Raises:
        InfeasibleError: no form that was found holds it; has the smallest.
    """
    search = Search(walker, budget, hints or Hints())
    if target == "hf":
        found = [(search.best(members), name) for name, members in search.lists.items()]
        return search.checked(*min(found or [((), "")], key=lambda one: search.rank(one[0])))
    form = search.best(search.candidates)
    return search.checked(search.selective(form) if target == "sac" else form)


class Search:
    """One search; remembers what it walked."""

    def __init__(self, walker: Walker, budget: Bytes, hints: Hints) -> None:
        self.walker, self.budget, self.hints, self.left = walker, budget, hints, MOST
        able = [path for path in walker.by_path if not refusal(walker, path)]
        kept = {path: self.weight(path) for path in able}
        self.candidates = tuple(sorted(able, key=lambda path: -kept[path])[:_CANDIDATES])
        wide = walker.tape.lists.items()
        able_in = {name: tuple(one for one in members if one in kept) for name, members in wide}
        self.lists = {name: members for name, members in able_in.items() if members}
        members = [one for members in self.lists.values() for one in members]
        self.uniform = (*map(_form, self.lists.values()), _form(_outermost(members)))
        self.seen: set[Form] = set()

    def weight(self, path: str) -> Bytes:
        """Bytes that autograd saves in a module."""
        tape = self.walker.tape
        saves = {tape.saves[s] for n in self.walker.by_path[path] for s in self.walker.extents[n].saves}
        return sum(self.walker.sizes[storage] for storage in saves if storage >= 0)

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
            text = (
                f"no exported form holds {format_bytes(self.budget)}; the smallest has a forecast peak of "
                f"{format_bytes(smallest.total)}. Give --budget {smallest.total}."
            )
            raise InfeasibleError(text, asked=self.budget, smallest_found=smallest.total)
        return ChosenForm(form, found, layers if form else "")

    def best(self, candidates: Sequence[str]) -> Form:
        """The best form of whole modules."""
        allowed = {*candidates}
        uniform = [form for form in self.uniform if allowed.issuperset(one.path for one in form)]
        ranked = sorted(dict.fromkeys([(), *uniform, self._hinted(allowed)]), key=self.rank)
        found = [self._improved(self._fitted(form, candidates), candidates) for form in ranked[:3]]
        return min([*ranked, *found], key=self.rank)

    def _hinted(self, allowed: Set[str]) -> Form:
        """The innermost modules around what a plan computes again."""
        found = set[str]()
        for path, _ in self.hints.again:
            while path and path not in allowed:
                path = path.rpartition(".")[0]
            found.add(path)
        return _form(_outermost(found - {""}))

    def _fitted(self, form: Form, candidates: Sequence[str]) -> Form:
        """Add the module that lowers the peak most per time, until the budget holds."""
        while self.left > 0 and self.promise(form).total > self.budget:
            others = (_with(form, path) for path in candidates if self.left > 0)
            best = max(others, key=partial(self._gain, form), default=form)
            if self._gain(form, best) <= 0:
                break
            form = best
        return form

    def _gain(self, form: Form, other: Form) -> float:
        now, then = self.promise(form), self.promise(other)
        won = now.peak - then.peak + _WORTH * (now.held - then.held)
        return won / max(then.ns - now.ns, 1_000)

    def _improved(self, form: Form, candidates: Sequence[str]) -> Form:
        """Take modules away, or others in their place, while that ranks better."""
        better = True
        while better:
            better = False
            for region in sorted(form, key=lambda one: -self.weight(one.path)):
                if self.left <= 0:
                    return form
                without = tuple(one for one in form if one != region)
                inner = [path for path in candidates if path.startswith(f"{region.path}.")]
                best = min((without, *(_with(without, path) for path in inner[:12])), key=self.rank)
                if self.rank(best) < self.rank(form):
                    form, better = best, True
        return form

    def selective(self, form: Form) -> Form:
        """The best form whose modules keep some results; whole modules where nothing is won."""
        self.left = MOST
        starts = sorted(dict.fromkeys((form, *self.uniform)), key=self.rank)[:4]
        fitting = [start for start in starts if start and self.promise(start).total <= self.budget]
        return min((form, *map(self._keeping, fitting)), key=self.rank)

    def _keeping(self, form: Form) -> Form:
        saved: dict[str, frozenset[tuple[str, int]]] = {region.path: frozenset() for region in form}
        for name, paths in self._groups(form):
            for part in (paths, paths[: len(paths) // 2], *([one] for one in paths)):
                new = {path: saved[path] | {name} for path in part if name not in saved[path]}
                if new and self.left > 0 and self.promise(_saving(saved | new)).total <= self.budget:
                    saved |= new
        kept = plain = _saving(saved)
        for region in kept:  # without a policy where what it keeps is not worth its own time
            other = tuple(one._replace(saved=()) if one == region else one for one in plain)
            if region.saved and self.rank(other) <= self.rank(plain):
                plain = other
        return min((form, kept, plain), key=self.rank)

    def _groups(self, form: Form) -> list[tuple[tuple[str, int], list[str]]]:
        """Results that can be kept, each with alike modules: the plan's first, then by time per byte."""
        alike: dict[tuple[str, tuple[str, int]], list[str]] = {}
        order: dict[tuple[str, tuple[str, int]], tuple[bool, float]] = {}
        tape = self.walker.tape
        for region in form:
            extent, *more = [self.walker.extents[call] for call in self.walker.by_path[region.path]]
            for name, number in () if more else extent.names.items():
                op, start = tape.graph.ops[number], tape.calls[extent.call].start
                changed = any(tape.writes.get(storage, -1) > start for storage in op.creates)
                if op.ns and op.creates and not (changed or op.flags or op.mutates):
                    key = re.sub(r"\d+", "#", region.path), name
                    size = max(sum(self.walker.sizes[storage] for storage in op.creates), 1)
                    alike.setdefault(key, []).append(region.path)
                    order.setdefault(key, ((op.module, op.target) not in self.hints.kept, -op.ns / size))
        return [(key[1], alike[key]) for key in sorted(alike, key=order.__getitem__)]


def _saving(saved: Mapping[str, Iterable[tuple[str, int]]]) -> Form:
    return tuple(AgainRegion(path, tuple(sorted(saved[path]))) for path in sorted(saved, key=_order))


def _form(paths: Iterable[str]) -> Form:
    return _saving(dict.fromkeys(paths, ()))


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
