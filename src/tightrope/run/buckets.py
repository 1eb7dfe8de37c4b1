"""Shapes that change: which plan serves a call, by its sizes.

Idea        A call is captured once with its sizes as symbols. Sizes fall into buckets; only the largest of a
            bucket is planned. A smaller call is the same list of ops: it uses that schedule and those
            addresses, so nothing is captured and nothing searched for (`tightrope.plan.resize`).
Guarantee   Nothing is padded, so results are those of the batch as it is. Where the plan of a bucket's
            largest sizes fits, so does every smaller call, whose allocations are no larger; where a kernel
            breaks that, its sizes are planned by themselves, and the report says so. The limit stays on.
Complexity  Per new size: one pass over the ops on shapes alone, and the ops measured that are new.
Gaps        What was made for each size stays until the model goes. A backward from other outputs than were
            foreseen is traced and planned for each size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from tightrope.capture._sizes import resized, sizes_in
from tightrope.capture.program import Program
from tightrope.core import CaptureError, InfeasibleError, ShapeError, TightropeError, format_bytes
from tightrope.core.arguments import refuse_argument
from tightrope.core.units import shown
from tightrope.lower.join import Turn
from tightrope.run.calls import Calls
from tightrope.run.captured import Captured
from tightrope.run.patterns import single
from tightrope.run.unit import Unit

Sizes: TypeAlias = tuple[int, ...]
Shape: TypeAlias = tuple[int, ...] | Mapping[str, tuple[int, ...]]
Shapes: TypeAlias = tuple[Shape, ...] | None
"""The largest of every bucket, as declared; None = by rule."""


def check_shapes(shapes: object, *, fuse: bool, page_to: object = None) -> Shapes:
    """Read what buckets a user asks for.

    Raises:
        TightropeError: quotes what is neither "bucket" nor a list of shapes, or does not go together.
    """
    if shapes is None:
        return None
    if fuse:
        raise TightropeError(
            f"shapes={shapes!r} and fuse=True do not go together: loops are compiled for one shape. Leave "
            "one of the two out."
        )
    if page_to is not None:
        raise TightropeError(
            f"shapes={shapes!r} and page_to={shown(page_to)} do not go together: pages have the sizes of one "
            "shape. Leave one of the two out."
        )
    if shapes == "bucket" and isinstance(shapes, str):
        return None
    wanted = (
        '"bucket", or a list of the largest shapes to expect: each the shape of the first tensor, such as '
        '(8, 128), or of tensors by name, such as {"input_ids": (8, 128)}'
    )
    if not isinstance(shapes, list | tuple) or not shapes:
        refuse_argument("shapes", shapes, wanted)
    found: list[Shape] = []
    for shape in shapes:
        if isinstance(shape, Mapping) and shape and all(isinstance(name, str) for name in shape):
            found.append({name: _shape(one, wanted) for name, one in shape.items()})
        else:
            found.append(_shape(shape, wanted))
    return tuple(found)


def _shape(shape: object, wanted: str) -> tuple[int, ...]:
    if not isinstance(shape, list | tuple) or not shape:
        refuse_argument("shapes", shape, wanted)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape):
        refuse_argument("shapes", shape, wanted)
    return tuple(shape)


def rounded(size: int) -> int:
    """The largest size of a bucket by rule: the next power of two, or three quarters of it.

    >>> [rounded(size) for size in (1, 5, 6, 7, 64, 65, 97)]
    [1, 6, 6, 8, 64, 96, 128]
    """
    power = 1 << max(size - 1, 0).bit_length()
    return power * 3 // 4 if 4 * size <= 3 * power and power > 2 else power


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
        served: sizes -> number of the captured graph that serves them.
        largest: sizes -> the largest ones of their bucket.
        num_calls: per sizes.
        refused: sizes -> why, and the smallest budget found for them.
        alone: sizes -> why they are the largest of their bucket, and no rounded ones are.
        admitted: whether the declared shapes were planned.
    """

    program: Program
    served: dict[Sizes, int] = field(default_factory=dict)
    largest: dict[Sizes, Sizes] = field(default_factory=dict)
    num_calls: dict[Sizes, int] = field(default_factory=dict)
    refused: dict[Sizes, tuple[str, int | None]] = field(default_factory=dict)
    alone: dict[Sizes, str] = field(default_factory=dict)
    admitted: bool = False

    def changing(self) -> set[int]:
        """Positions of the sizes that are dimensions of tensors; other numbers stay what they were first."""
        assert self.program.resizable is not None
        inputs = self.program.resizable.inputs
        return {int(size) for _, shape in inputs for size in shape if _changes(size)}

    def text(self, sizes: Sizes) -> str:
        """Show sizes as shapes of tensors."""
        assert self.program.resizable is not None
        shown = []
        for name, shape in self.program.resizable.inputs:
            known = [str(sizes[int(size)]) if _changes(size) else str(size) for size in shape]
            if any(_changes(size) for size in shape):
                shown.append(f"{name} [{' x '.join(known)}]")
        return ", ".join(shown[:3]) + (" ..." if len(shown) > 3 else "")


class Buckets:
    """The families of one model, and what serves each call; state of the runtime, used from one thread.

    Attributes:
        last: family and sizes of the last call; None = none came.
        off: why every shape is captured and planned by itself instead, or the empty string.
    """

    off: str = ""

    def __init__(self, shapes: Shapes, calls: Calls) -> None:
        self._shapes, self._calls = shapes, calls
        self._families: list[Family] = []
        self.last: tuple[Family, Sizes] | None = None

    def add(self, program: Program) -> int:
        """Take in a call that was captured for many sizes; return the number of its family."""
        self._families.append(Family(program))
        return len(self._families) - 1

    def serve(self, number: int, args: Sequence[Any]) -> int:
        """Find the captured graph for a call of a family, or make it.

        Raises:
            ShapeError: it is larger than every declared shape.
            InfeasibleError: a declared shape does not fit the budget.
            UnreadableError: the graph cannot be read for its sizes, or for the largest ones.
        """
        family, sizes = self._families[number], sizes_in(args)
        if sizes in family.refused:
            raise ShapeError(family.refused[sizes][0], smallest_found=family.refused[sizes][1])
        if sizes not in family.served:
            try:
                self._admit(family, sizes, args)
            except CaptureError as error:
                raise UnreadableError(str(error)) from error
        self.last = family, sizes
        family.num_calls[sizes] = family.num_calls.get(sizes, 0) + 1
        return family.served[sizes]

    def used(self) -> tuple[Bucket, ...]:
        """Every bucket, in the order in which they were planned, with what it served."""
        found = []
        for family in self._families:
            for largest in dict.fromkeys(family.largest.values()):
                mine = [sizes for sizes, most in family.largest.items() if most == largest]
                came = [sizes for sizes in mine if sizes in family.num_calls]
                alone = sum(self._is_alone(family.served[sizes]) for sizes in came)
                calls = sum(family.num_calls[sizes] for sizes in came)
                found.append(Bucket(family.text(largest), len(came), calls, alone))
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
            for most in sorted(declared, key=prod, reverse=True):
                if not any(most != other and _within(most, other) for other in declared):
                    self._plan(family, self._take(family, most, most, args))
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
        self._take(family, sizes, largest, args)

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
        family.alone[sizes] = f"{family.text(largest)} would be the largest of its bucket, but: {guard}"
        return sizes

    def _sizes_of(self, family: Family, shape: Shape) -> Sizes | None:
        """A declared shape as sizes, of the fixed ones as they are; None where one of these is larger.

        Raises:
            TightropeError: it says nothing of a size, or names a tensor that the call does not have.
        """
        assert family.program.resizable is not None
        inputs = family.program.resizable.inputs
        shapes = shape if isinstance(shape, Mapping) else {inputs[0][0]: shape}
        known: dict[int, int] = {}
        for name, wanted in shapes.items():
            one = next((one for other, one in inputs if other == name or other.split(".")[-1] == name), None)
            if one is None or len(one) != len(wanted):
                have = ", ".join(f"{other} with {len(one)} dimensions" for other, one in inputs)
                what = "no such tensor" if one is None else f"{len(wanted)} sizes are not the dimensions of"
                raise TightropeError(f"shapes={shape!r}: the call has {what} {name!r}; it has {have}.")
            for size, most in zip(one, wanted, strict=True):
                if _changes(size):
                    known[int(size)] = most
                elif isinstance(size, int) and size > most:
                    return None
        if missing := family.changing() - known.keys():
            names = [name for name, one in inputs if any(_changes(s) and int(s) in missing for s in one)]
            raise TightropeError(
                f"shapes={shape!r} says nothing of {', '.join(names)}: give shapes by name, such as "
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
        one = self._calls.captured[number]
        one.nearest = near
        if sizes != largest:
            one.bucket, one.strict = family.served[largest], self._shapes is not None
        family.served[sizes], family.largest[sizes] = number, largest
        return number

    def _nearest(self, family: Family, sizes: Sizes) -> int | None:
        """The largest sizes of the nearest bucket: of a larger one, whose plan fits, if there is any."""
        most = [one for one in family.served if family.largest[one] == one]
        near = min(
            most, key=lambda one: (not _within(sizes, one), abs(prod(one) - prod(sizes))), default=None
        )
        return None if near is None else family.served[near]

    def _plan(self, family: Family, number: int) -> None:
        """Plan a declared shape before it comes; no other is as large in every size.

        Raises:
            InfeasibleError: it does not fit the budget.
        """
        calls = self._calls
        alone = single(number) if family.program.has_backward else (Turn(0, number, False),)
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


def _changes(size: int | str) -> bool:
    return isinstance(size, str) and size.isdigit()


def _within(sizes: Sizes, most: Sizes) -> bool:
    return all(size <= limit for size, limit in zip(sizes, most, strict=True))
