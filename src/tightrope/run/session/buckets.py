"""Shapes that change: which plan serves a call, by its sizes.

Idea        A call is captured once with its sizes as symbols. Sizes fall into buckets; only the largest of a
            bucket is planned. A smaller call is the same list of ops: it uses that schedule and those
            addresses, so nothing is captured and nothing searched for (`tightrope.plan.resize`). Where an
            earlier process kept what it found, the first shape is captured alone, and symbols wait for a
            second one.
Guarantee   Nothing is padded, so results are those of the batch as it is. Where the plan of a bucket's
            largest sizes fits, so does every smaller call, whose allocations are no larger; where a kernel
            breaks that, its sizes are planned by themselves, and the report says so. The limit stays on.
Complexity  Per new size: one pass over the ops on shapes alone, and the ops measured that are new.
Gaps        What was made for each size stays until the model goes. A backward from other outputs than were
            foreseen is traced and planned for each size.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import prod
from typing import Any

import msgspec
import torch

from tightrope.capture._sizes import resized, sizes_in
from tightrope.capture.program import Program
from tightrope.core import CaptureError, Graph, InfeasibleError, ShapeError, TightropeError, format_bytes
from tightrope.lower.join import Turn
from tightrope.plan.cache import graph_key
from tightrope.run.base import shapes as stated
from tightrope.run.base.shapes import Shape, Shapes, Sizes, changes, rounded, within
from tightrope.run.session import known_shapes as earlier
from tightrope.run.session.calls import Calls
from tightrope.run.session.captured import Captured
from tightrope.run.session.known_shapes import KnownFamily, KnownShapes, known_shapes
from tightrope.run.session.patterns import Pattern, single
from tightrope.run.session.unit import Unit


class UnreadableError(CaptureError):
    """What was captured for many sizes cannot be read for those of a call, of which nothing ran."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a bucket served.

    Attributes:
        largest: its largest shapes, for people.
        num_shapes: shapes that came.
        num_calls: calls that it served.
        num_alone: shapes of it that are planned by themselves.
    """

    largest: str
    num_shapes: int
    num_calls: int
    num_alone: int = 0

    def __str__(self) -> str:
        alone = f", {self.num_alone} of them planned by themselves" if self.num_alone else ""
        calls = f"{self.num_calls} call{'s' * (self.num_calls != 1)}"
        shapes = f"{self.num_shapes} shape{'s' * (self.num_shapes != 1)}"
        return f"bucket up to {self.largest}: {calls} of {shapes}{alone}"


@dataclass
class Family:
    """Calls that one capture stands for.

    Attributes:
        program: as captured.
        form: which of its sizes may change.
        kept: what is kept of it on disk; None = nothing.
        only: the sizes that it was captured for alone; None = for all.
        lenders: declared sizes that have to fit before those -> number of their graph, as it was kept.
        served: sizes -> number of the captured graph that serves them.
        largest: sizes -> the largest ones of their bucket.
        num_calls: per sizes.
        refused: sizes -> why, and the smallest budget found for them.
        alone: sizes -> why they are the largest of their bucket, and no rounded ones are.
        admitted: whether the declared shapes were planned.
    """

    program: Program
    form: KnownFamily
    kept: KnownShapes | None = None
    only: Sizes | None = None
    lenders: dict[Sizes, int] = field(default_factory=dict)
    served: dict[Sizes, int] = field(default_factory=dict)
    largest: dict[Sizes, Sizes] = field(default_factory=dict)
    num_calls: dict[Sizes, int] = field(default_factory=dict)
    refused: dict[Sizes, tuple[str, int | None]] = field(default_factory=dict)
    alone: dict[Sizes, str] = field(default_factory=dict)
    admitted: bool = False

    @property
    def place(self) -> Hashable:
        """What families have in common that stand for the same calls, captured for one shape and for all."""
        return id(self) if self.kept is None else (self.kept.folder.path, self.form.inputs)

    def changing(self) -> set[int]:
        """Positions of the sizes that are dimensions of tensors; other numbers stay what they were first."""
        return {int(size) for _, shape in self.form.inputs for size in shape if changes(size)}

    def text(self, sizes: Sizes) -> str:
        """Show sizes as shapes of tensors."""
        shown = []
        for name, shape in self.form.inputs:
            known = [str(sizes[int(size)]) if changes(size) else str(size) for size in shape]
            if any(changes(size) for size in shape):
                shown.append(f"{name} [{' x '.join(known)}]")
        return ", ".join(shown[:3]) + (" ..." if len(shown) > 3 else "")


@dataclass(frozen=True)
class _Match:
    """What is kept of a call, which is then captured for its sizes alone.

    Attributes:
        kept: where.
        form: the family.
        sizes: of the call.
        largest: of its bucket.
        first: declared sizes that have to fit before it.
        graphs: priced, for the largest sizes and the declared ones.
    """

    kept: KnownShapes
    form: KnownFamily
    sizes: Sizes
    largest: Sizes
    first: tuple[Sizes, ...]
    graphs: Mapping[Sizes, Graph]


class _Trusted:
    """Bytes are held back for graphs that were kept while this lives; and how else they are forgotten."""

    forget: Callable[[], None] = staticmethod(lambda: None)


class Buckets:
    """The families of one model, and what serves each call; state of the runtime, used from one thread.

    Attributes:
        last: family and sizes of the last call; None = none came.
        off: why every shape is captured and planned by itself instead, or the empty string.
        captures_alone: whether the call under way is captured for its sizes alone.
    """

    off: str = ""

    def __init__(self, shapes: Shapes, calls: Calls) -> None:
        self._shapes, self._calls = shapes, calls
        self._families: list[Family] = []
        self._parameters: tuple[str, ...] = ()
        self.last: tuple[Family, Sizes] | None = None
        self.captures_alone = False
        self._look: Callable[[], KnownShapes | None] = lambda: None
        self._first: dict[str, torch.Size] | None = None
        self._match: _Match | None = None
        self._lenders: dict[tuple[Hashable, Sizes], int] = {}
        self._trusted = _Trusted()

    @contextmanager
    def calling(self, model: torch.nn.Module, args: Any, kwargs: Any) -> Iterator[bool]:
        """Note which call is made; tell whether it is to be captured for its sizes alone.

        That is the first call, where enough is kept of it, and those of its shape.
        """
        options = self._shapes, self._calls.settings.writes, earlier.modes()
        self._parameters = stated.positional(model.forward)
        self._look = cache(partial(known_shapes, model, args, kwargs, options))
        try:
            if self._first is None:
                self._match = self._find(args, kwargs)
                self._first = {} if self._match is None else earlier.shapes_of(args, kwargs)
                self.captures_alone = self._match is not None
            else:
                self.captures_alone = bool(self._first) and self._first == earlier.shapes_of(args, kwargs)
            yield self.captures_alone
        finally:
            self.captures_alone, self._match, self._look = False, None, lambda: None

    def for_all(self) -> None:
        """Capture all calls from now on for all sizes; forget what was kept if none of it was used."""
        self._first, self.captures_alone, self._match = {}, False, None
        if not any(family.admitted for family in self._families):
            self._trusted.forget()
            self._trusted = _Trusted()
            self._lenders.clear()

    def _find(self, args: Any, kwargs: Any) -> _Match | None:
        """What is kept of a call."""
        kept, tensors = self._look(), earlier.tensors_of(args, kwargs)
        if kept is None or tensors is None:
            return None
        for form in kept.families():
            sizes = form.sizes_of(tensors)
            if sizes is None:
                continue
            if self._shapes is None:
                largest, first = tuple(map(rounded, sizes)), tuple[Sizes, ...]()
            else:
                above = [most for most in form.declared if within(sizes, most)]
                if not above:
                    continue
                largest, first = min(above, key=prod), stated.maximal(form.declared)
            read = {most: kept.graph(form, most) for most in (*first, largest)}
            graphs = {most: graph for most, graph in read.items() if graph is not None}
            if len(graphs) == len(read):
                return _Match(kept, form, sizes, largest, first, graphs)
        return None

    def add(self, program: Program) -> int:
        """Take in a call that was captured for many sizes; return the number of its family."""
        assert program.resizable is not None
        form = KnownFamily(program.resizable.inputs, len(program.sizes))
        self._families.append(Family(program, form))
        return len(self._families) - 1

    def add_alone(self, program: Program, real: Sequence[Any]) -> int:
        """Take in a call that was captured for its sizes alone; return the number of its family.

        Raises:
            CaptureError: what is kept of its bucket is another list of ops, or nothing is.
        """
        match, self._match = self._match, None
        if match is None or not all(
            earlier.same_list(program.graph, graph) for graph in match.graphs.values()
        ):
            if match is not None:
                match.kept.give_up()
            raise CaptureError("what is kept of these shapes is of another graph.")
        family = Family(program, match.form, match.kept, only=match.sizes)
        self._trusted.forget = self._calls.prospects.undoing()
        number = self._calls.add(program, real, f"bucket up to {family.text(match.largest)}")
        for sizes, graph in match.graphs.items():
            family.lenders[sizes] = self._lend(family, sizes, graph)
            family.largest[sizes] = sizes
        one = self._calls.captured[number]
        one.bucket = one.nearest = family.lenders[match.largest]
        one.strict = self._shapes is not None
        family.lenders = {sizes: family.lenders[sizes] for sizes in match.first}
        family.served[match.sizes], family.largest[match.sizes] = number, match.largest
        self._families.append(family)
        return len(self._families) - 1

    def _lend(self, family: Family, sizes: Sizes, graph: Graph) -> int:
        """Take in a priced graph that was kept, which lends its plans, and is not run."""
        calls, program = self._calls, replace(family.program, graph=graph)
        one = Captured(program, program, {}, why=f"bucket up to {family.text(sizes)}", lends=True)
        calls.captured.append(one)
        calls.accounts.hold_back(self._trusted, graph.hidden)
        calls.prospects.raise_share([one], waiting=False)
        self._lenders[family.place, sizes] = len(calls.captured) - 1
        return len(calls.captured) - 1

    def serve(self, number: int, args: Sequence[Any]) -> int:
        """Find the captured graph for a call of a family, or make it.

        Raises:
            ShapeError: it is larger than every declared shape.
            InfeasibleError: a declared shape does not fit the budget.
            UnreadableError: the graph cannot be read for its sizes, or for the largest ones; or the plans
                that were kept do not fit.
        """
        family = self._families[number]
        sizes = sizes_in(args) if family.only is None else family.only
        if sizes in family.refused:
            raise ShapeError(family.refused[sizes][0], smallest_found=family.refused[sizes][1])
        if family.only is not None:
            self._admit_alone(family, sizes)
        elif sizes not in family.served:
            try:
                self._admit(family, sizes, args)
            except CaptureError as error:
                raise UnreadableError(str(error)) from error
        self.last = family, sizes
        family.num_calls[sizes] = family.num_calls.get(sizes, 0) + 1
        return family.served[sizes]

    def _admit_alone(self, family: Family, sizes: Sizes) -> None:
        """Plan the first call of a family that was captured for its sizes alone."""
        if family.admitted:
            return
        try:
            for number in (*family.lenders.values(), family.served[sizes]):
                self._plan(family, number)
        except InfeasibleError as error:  # whether it really does not fit is found with symbols
            raise UnreadableError(str(error)) from error
        family.admitted = True

    def used(self) -> tuple[Bucket, ...]:
        """Every bucket, in the order in which they were planned, with what it served."""
        came: dict[tuple[Hashable, Sizes], list[tuple[Family, Sizes]]] = {}
        for family in self._families:
            for sizes, most in family.largest.items():
                came.setdefault((family.place, most), []).append((family, sizes))
        found = []
        for (_, most), pairs in came.items():
            served = [(family, sizes) for family, sizes in pairs if sizes in family.num_calls]
            alone = {sizes for family, sizes in served if self._is_alone(family.served[sizes])}
            num_calls = sum(family.num_calls[sizes] for family, sizes in served)
            num_shapes = len({sizes for _, sizes in served})
            found.append(Bucket(pairs[0][0].text(most), num_shapes, num_calls, len(alone)))
        return tuple(found)

    def text(self) -> str:
        """Say which bucket served the last call."""
        if self.last is None or self.off:
            return self.off
        family, sizes = self.last
        number, largest = family.served[sizes], family.largest[sizes]
        unit = self._calls.last_unit(number)
        said = f"{family.text(sizes)} ran by the plan of the bucket up to {family.text(largest)}"
        alone = family.alone.get(sizes, "")
        if sizes != largest and unit is not None and unit.lender is None and unit.proofs:
            alone = unit.proofs[0].cause
        return f"{family.text(sizes)} was planned by itself: {alone}" if alone else said

    def _is_alone(self, number: int) -> bool:
        unit = self._calls.last_unit(number)
        return self._calls.captured[number].bucket is not None and unit is not None and unit.lender is None

    def _admit(self, family: Family, sizes: Sizes, args: Sequence[Any]) -> None:
        found = [self._sizes_of(family, shape) for shape in self._shapes or ()]
        every = [most for most in dict.fromkeys(found) if most is not None]
        assert family.program.resizable is not None
        declared = [most for most in every if not family.program.resizable.refused(most)]
        if not family.admitted:
            family.kept = self._look() if len(family.changing()) == family.form.num_sizes else None
            family.form = msgspec.structs.replace(family.form, declared=tuple(declared))
            for most in stated.maximal(declared):
                self._plan(family, self._take(family, most, most, args))
                self._keep(family, most)
            family.admitted = True
        changing = family.changing()

        def above(known: Sequence[Sizes]) -> list[Sizes]:
            return [most for most in known if all(sizes[at] <= most[at] for at in changing)]

        if self._shapes is None:
            largest = self._by_rule(family, sizes, args)
        elif above(declared):
            largest = min(above(declared), key=prod)
        elif above(every):  # it breaks a guard of this graph
            largest = sizes
        else:
            raise self._refusal(family, sizes, args)
        self._take(family, largest, largest, args)
        if largest in above(declared) or (self._shapes is None and sizes not in family.alone):
            self._keep(family, largest)
        self._take(family, sizes, largest, args)

    def _keep(self, family: Family, largest: Sizes) -> None:
        """Keep the graph of the largest sizes of a bucket for other processes."""
        if family.kept is not None:
            family.kept.keep(family.form, largest, self._calls.captured[family.served[largest]].graph)

    def _by_rule(self, family: Family, sizes: Sizes, args: Sequence[Any]) -> Sizes:
        """The largest sizes of a bucket that was not declared: those of the call where they are no call."""
        assert family.program.resizable is not None
        changing, first = family.changing(), enumerate(family.program.sizes)
        largest = tuple(rounded(sizes[at]) if at in changing else size for at, size in first)
        guard = family.program.resizable.refused(largest)
        if not guard:
            try:
                self._take(family, largest, largest, args)
                return largest
            except InfeasibleError:
                guard = "an op of theirs does not fit the budget alone"
        why = f"{family.text(largest)} would be the largest of its bucket, but: {guard}"
        if not family.alone:
            said = f"a call with {family.text(sizes)} is planned by itself, others may be"
            warnings.warn(f"tightrope: {said}: {why}", stacklevel=2)
        family.alone[sizes] = why
        return sizes

    def _sizes_of(self, family: Family, shape: Shape) -> Sizes | None:
        """A declared shape as sizes, of the fixed ones as they are; None where one of these is larger.

        Raises:
            TightropeError: it says nothing of a size, or names a tensor that the call does not have.
        """
        assert family.program.resizable is not None
        inputs = family.form.inputs
        shapes = shape if isinstance(shape, Mapping) else {inputs[0][0]: shape}
        known: dict[int, int] = {}
        for name, wanted in shapes.items():
            one = next(
                (one for other, one in inputs if name in stated.by_name(other, self._parameters)), None
            )
            if one is None or len(one) != len(wanted):
                have = ", ".join(f"{other} with {len(one)} dimensions" for other, one in inputs)
                known_as = f"{len(wanted)} sizes for {name!r}" if one is not None else f"the tensor {name!r}"
                raise TightropeError(f"shapes={shape!r} names {known_as}; the call has {have}.")
            for size, most in zip(one, wanted, strict=True):
                if changes(size):
                    known[int(size)] = most
                elif isinstance(size, int) and size > most:
                    return None
        if missing := family.changing() - known.keys():
            names = [name for name, one in inputs if any(changes(s) and int(s) in missing for s in one)]
            raise TightropeError(
                f"shapes={shape!r} says nothing of {', '.join(names)}: give a shape per name, such as "
                f"{{{inputs[0][0]!r}: {(1,) * len(inputs[0][1])}, {names[0]!r}: ...}}."
            )
        return tuple(known.get(at, size) for at, size in enumerate(family.program.sizes))

    def _take(self, family: Family, sizes: Sizes, largest: Sizes, args: Sequence[Any]) -> int:
        """Capture nothing: read the graph for some sizes, and price it."""
        if sizes in family.served:
            return family.served[sizes]
        assert family.program.resizable is not None
        same = sizes == family.program.sizes
        program = family.program if same else family.program.resizable.at(sizes)
        near = self._nearest(family, sizes)
        number = self._calls.add(
            program, resized(args, program.module), f"bucket up to {family.text(largest)}"
        )
        if sizes == largest:
            number = self._instead_of_kept(family, sizes, number)
        one = self._calls.captured[number]
        one.nearest, one.lends = near, sizes == largest
        if sizes != largest:
            one.bucket, one.strict = family.served[largest], self._shapes is not None
        family.served[sizes], family.largest[sizes] = number, largest
        return number

    def _instead_of_kept(self, family: Family, sizes: Sizes, number: int) -> int:
        """Let a graph that was just read take the place of the same one as it was kept, and of its plans."""
        kept, captured = self._lenders.pop((family.place, sizes), None), self._calls.captured
        if kept is None or graph_key(captured[kept].graph) != graph_key(captured[number].graph):
            return number
        captured[kept] = captured.pop()
        return kept

    def _nearest(self, family: Family, sizes: Sizes) -> int | None:
        """The largest sizes of the nearest bucket: of a larger one, whose plan fits, if there is any."""
        most = [one for one in family.served if family.largest[one] == one]
        near = min(most, key=lambda one: (not within(sizes, one), abs(prod(one) - prod(sizes))), default=None)
        return None if near is None else family.served[near]

    def _plan(self, family: Family, number: int) -> None:
        """Plan a declared shape before it comes; no other is as large in every size.

        Raises:
            InfeasibleError: it does not fit the budget.
        """
        calls = self._calls
        alone: Pattern = single(number) if family.program.has_backward else (Turn(0, number, False),)
        calls.prospects.begin(first=not calls.num_forwards)
        self._suit(calls.unit(alone))

    def _suit(self, unit: Unit) -> Unit:
        prospects = self._calls.prospects
        room = prospects.room(unit, self._calls.accounts.charged(), updates=True)
        unit.suit(room, lambda: prospects.expected(stepped=self._calls.num_steps > 0))
        return unit

    def _refusal(self, family: Family, sizes: Sizes, args: Sequence[Any]) -> ShapeError:
        """Refuse a call that is larger than every declared shape, with the price of admitting it."""
        assert family.program.resizable is not None
        calls = self._calls
        program = family.program.resizable.at(sizes)
        expected = calls.prospects.expected(stepped=calls.num_steps > 0)
        try:
            one = Captured.of(
                program, resized(args, program.module), calls.accounts.allocator, calls.status,
                writes=calls.settings.writes,
            )  # fmt: skip
            unit = Unit(
                one.graph, calls.settings, calls.accounts, calls.status, headroom=one.headroom,
                why="the price of a shape that was not declared",
            )  # fmt: skip
            forecast = self._suit(unit).forecast
            least = None
            price = (
                f"it fits the budget, with a plan of {format_bytes(forecast.total)} that takes "
                f"{forecast.tdi_percent:.1f} % more time than every op once"
            )
        except InfeasibleError as error:
            if error.smallest_found is None:
                error = calls.prospects.unmeasured(program.graph, error, expected)
            least = error.smallest_found
            price = f"it does not fit the budget: {error}"
        declared = ", ".join(str(shape) for shape in self._shapes or ())
        said = (
            f"a call with {family.text(sizes)} is larger than every declared shape, {declared}. The price of "
            f"admitting it: {price}. Add its shape to shapes=[{declared}], or make the batch smaller."
        )
        family.refused[sizes] = said, least
        return ShapeError(said, smallest_found=least)
