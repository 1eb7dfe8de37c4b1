"""Which module ran which op, given one forward of the model that was watched (see `dry_run`).

Idea        Where the ops of the watched forward stand in the profile, one after the other and without a
            gap, there the model ran, and every op belongs to the module that made it then. Elsewhere the
            cheapest path through the watched ops is taken: an op more or less costs something, and so
            does going back to an earlier one, as a loop does that runs more often. An op more belongs to
            the innermost module around the ops beside it.
Guarantee   Ops without a doubt stand beside the ops that they stood beside in the watched forward. The
            match is 1 where this holds for all ops of all calls, and all layers with weights in the
            profile are among them.
Complexity  Linear where the forward is found as it is; else O(ops x ops of the forward) time and bytes.
Gaps        Two models that make the same ops are one model here.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from tightrope.core import Doubt, Module
from tightrope_trace.match import UNPROVED
from tightrope_trace.paths import cheapest_path
from tightrope_trace.vocabulary import MADE, plain
from tightrope_trace.without_values import DryRun

_MORE, _OTHER, _LESS, _OUTSIDE, _BACK, _FAR = 20, 90, 60, 15, 80, 160
_CELLS: Final = 40_000_000
_LEAST: Final = 0.5
"""Part of the ops with weights that are to be found for a stretch of ops to be a call of the model at all."""


class Followed(NamedTuple):
    """Where ops belong.

    Attributes:
        owners: one position in the module tree per op; 0 outside of the model.
        inside: whether the model made the op.
        doubts: one per op.
        match: between 0 and 1; None where there is no layer with weights anywhere.
    """

    owners: list[int]
    inside: list[bool]
    doubts: list[Doubt]
    match: float | None


def follow(names: Sequence[str], groups: Sequence[int], run: DryRun, *, native: bool = True) -> Followed:
    """Find the calls of a model among ops.

    Args:
        names: of outermost ops, in the order in which they ran.
        groups: one number per op; no call reaches from one group into the next.
        run: a forward of the model.
        native: whether C++ may be used.

    Example:
        >>> run = DryRun((Module(""), Module("fc", "Linear", 0)), ("aten::linear",), (1,))
        >>> follow(["aten::stack", "aten::linear", "aten::mean"], [0, 0, 0], run).owners
        [0, 1, 0]
    """
    words, known = [plain(name) for name in names], [plain(name) for name in run.names]
    found = _Following(words, known, run, native)
    for _, members in groupby(range(len(words)), key=groups.__getitem__):
        found.search(list(members))
    return Followed(found.owners, found.inside, found.doubts, found.match())


class _Following:
    """What is known so far."""

    def __init__(self, words: list[str], known: list[str], run: DryRun, native: bool) -> None:
        self.words, self.known, self.run, self.native = words, known, run, native
        numbers = {word: number for number, word in enumerate(dict.fromkeys([*known, *words]))}
        self.kinds = np.array([numbers[word] for word in words], dtype="<u4")
        self.wanted = np.array([numbers[word] for word in known], dtype="<u4")
        self.owners, self.inside = [0] * len(words), [False] * len(words)
        self.doubts = [Doubt.NONE] * len(words)
        self.missing = 0

    def search(self, members: list[int]) -> None:
        """Find the calls in one group of ops, as they are; then what is left, as good as it fits."""
        first, end = members[0], members[-1] + 1
        for at in self._exact(first, end):
            self._near(first, at)
            for step, owner in enumerate(self.run.owners):
                self.owners[at + step], self.inside[at + step] = owner, True
            first = at + len(self.known)
        self._near(first, end)

    def _exact(self, first: int, end: int) -> list[int]:
        text, pattern = self.kinds[first:end].tobytes(), self.wanted.tobytes()
        found, at = [], text.find(pattern) if pattern else -1
        while at >= 0:
            if at % 4:
                at = text.find(pattern, at + 1)
            else:
                found.append(first + at // 4)
                at = text.find(pattern, at + len(pattern))
        return found

    def _near(self, first: int, end: int) -> None:
        """Take the cheapest path through the watched ops, where there are layers to be found."""
        words, known = self.words[first:end], self.known
        made = sum(word in MADE for word in words)
        if not made or not known or len(words) * len(known) > _CELLS:
            return
        path = self._path(first, end)
        fits = [1 <= slot <= len(known) and known[slot - 1] == word
                for slot, word in zip(path, words, strict=True)]  # fmt: skip
        if sum(fit and word in MADE for fit, word in zip(fits, words, strict=True)) < _LEAST * made:
            self.doubts[first:end] = [Doubt.PLACE] * len(words)
            return
        self.missing += len(set(range(1, len(known) + 1)) - set(path))
        for step, (slot, fit) in enumerate(zip(path, fits, strict=True)):
            near = [other for other in (step - 1, step + 1) if 0 <= other < len(path)]
            beside = any(fits[other] and path[other] - slot == other - step for other in near)
            if not 1 <= slot <= len(known):
                self.doubts[first + step] = Doubt.PLACE
                continue
            self.inside[first + step] = True
            self.owners[first + step] = self.run.owners[slot - 1] if fit else self._around(slot)
            self.doubts[first + step] = Doubt.NONE if fit and beside else Doubt.PLACE

    def _path(self, first: int, end: int) -> list[int]:
        width = len(self.known) + 2
        same = self.wanted[None, :] == np.arange(int(max(self.kinds.max(), self.wanted.max())) + 1)[:, None]
        come = np.full((len(same), width), _OUTSIDE, dtype=np.int64)
        come[:, 1:-1] = np.where(same, 0, _OTHER)
        stay = come.copy()
        stay[:, 1:-1] = _MORE
        skip = [0, *[_LESS] * len(self.known), 0]
        outside = len(self.run.modules)
        family = [outside, *self.run.owners, outside]
        kinds = self.kinds[first:end].tolist()
        return cheapest_path(
            kinds, come, skip, family, back=_BACK, far=_FAR, stay=stay, native=self.native
        ).slots

    def _around(self, slot: int) -> int:
        """The innermost module around a watched op and the one after it."""
        owners = self.run.owners
        return innermost(self.run.modules, owners[slot - 1], owners[min(slot, len(owners) - 1)])

    def match(self) -> float | None:
        """Part of the layers' ops and of the watched ops that was found."""
        lost = sum(word in MADE and not inside for word, inside in zip(self.words, self.inside, strict=True))
        ran = sum(self.inside)
        if not ran:
            return 0.0 if lost or MADE.intersection(self.known) else None
        doubted = sum(doubt is not Doubt.NONE for doubt in self.doubts)
        sure = sum(
            inside and doubt is Doubt.NONE for inside, doubt in zip(self.inside, self.doubts, strict=True)
        )
        share = sure / (ran + lost + self.missing)
        return 1.0 if share == 1 and not doubted else min(share, UNPROVED)


def innermost(modules: Sequence[Module], one: int, other: int) -> int:
    """The innermost module around two modules.

    Example:
        >>> tree = [Module(""), Module("a", "", 0), Module("a.b", "", 1), Module("a.c", "", 1)]
        >>> innermost(tree, 2, 3), innermost(tree, 1, 3)
        (1, 1)
    """
    while one != other:
        if one > other:
            one = modules[one].parent
        else:
            other = modules[other].parent
    return one
