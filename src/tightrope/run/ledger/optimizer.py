"""Bytes that an optimizer takes and does not take yet: its state, and what one update makes and drops.

Idea        Optimizers that exist are found by the garbage collector, in one of the first forwards. What one
            makes per parameter is found by an update of a small made-up one, with the options of its group.
Guarantee   Exact for the optimizers of ``torch.optim`` that are listed; others are taken to keep
            nothing until they do. Nothing that the user has is changed.
Gaps        An optimizer that is made after the first forward is seen right before its first update. What
            SparseAdam makes and drops follows the number of rows that are looked up, and is not foreseen.
            Where a processor multiplies bfloat16 itself, Muon makes up to a sixteenth more.
"""

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import unwrap
from typing import Any, Final, NamedTuple

import torch

from tightrope.capture._eager import tensors_in
from tightrope.capture._torch import real_tensors
from tightrope.core import Bytes, round_up
from tightrope.native.hook.allocator import Allocator
from tightrope.price.device import device_of
from tightrope.run.base.sharded import bytes_of, local_part
from tightrope.run.ledger.kept_pages import by_page

_KNOWN: Final = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "Rprop", "ASGD", "Adafactor",
    "Muon", "SparseAdam",
)  # fmt: skip
"""Optimizers of torch that make their state in the first update, from the parameter's shape alone."""
_COPIES, _SEARCHING = 6, 6
"""Of all gradients: what LBFGS holds beside its history at a call of its closure; more for a line search."""
_STATE, _BESIDE, _SMALL = 2, 3, 64
"""What AdamW keeps and makes, in sizes of the parameter, and its count of steps: where none is known."""
_VECTOR, _MATRIX = (128,), (16, 16)
"""Made-up parameters: small enough for the bytes that a budget holds back."""
_LOOKS: Final = 3
"""Forwards at which optimizers are looked for until one is found: one look takes about 20 ms."""


class UpdateBytes(NamedTuple):
    """What an update takes beside parameters and gradients.

    Attributes:
        state: bytes that stay, and are not there yet.
        beside: most bytes that one update makes and drops again.
    """

    state: Bytes
    beside: Bytes


NO_UPDATE: Final = UpdateBytes(0, 0)


class _Rate(NamedTuple):
    """Bytes per byte of a parameter, and bytes that do not depend on its size, that stay and that do not.

    Of ``beside``, ``left`` is what was made for the parameter before and is still there.
    """

    state: float
    small: Bytes
    beside: float
    small_beside: Bytes
    left: float = 0.0


class Foresight:
    """What a model's training will hold and does not hold yet.

    Args:
        parameters: of the model.
        allocator: the hook, which sees what an update makes; None = it is not known.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], allocator: Allocator | None) -> None:
        self._allocator = allocator
        self.follow(parameters)
        self._found: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._looks = _LOOKS
        self._rates: dict[Any, _Rate] = {}
        self._begun: weakref.WeakKeyDictionary[torch.optim.Optimizer, Bytes] = weakref.WeakKeyDictionary()

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        """Look at these parameters from now on."""
        self._parameters = {id(p): weakref.ref(p) for p in parameters}
        self._complete_at: tuple[int, int] | None = None

    def _trained(self) -> list[torch.Tensor]:
        alive = (known() for known in self._parameters.values())
        return [p for p in alive if p is not None and p.requires_grad]

    def _extent(self) -> tuple[int, int]:
        """How many parameters are trained, and how many the known optimizers hold: both may grow."""
        groups = [group for optimizer in self._found for group in optimizer.param_groups]
        return len(self._trained()), sum(len(group["params"]) for group in groups)

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether an optimizer updates one of the parameters."""
        members = (p for group in optimizer.param_groups for p in group["params"])
        return any((known := self._parameters.get(id(p))) is not None and known() is p for p in members)

    def found(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether an optimizer of the parameters is known."""
        return optimizer in self._found

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Take an optimizer in that `holds`."""
        self._found.add(optimizer)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an update begins: one with a closure calls the model in the middle of it."""
        if self._allocator is not None:
            self._begun[optimizer] = self._allocator.stats().live - _held(optimizer)

    def end(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an update ended."""
        self._begun.pop(optimizer, None)

    @property
    def gradients(self) -> Bytes:
        """Bytes of the gradients that are not there yet."""
        return sum(map(round_up, self._without_gradient()))

    @property
    def staying(self) -> Bytes:
        """The same, counted by page: so they are charged where they stay in an arena that is idle."""
        return sum(map(by_page, self._without_gradient()))

    def _without_gradient(self) -> list[Bytes]:
        return [bytes_of(p) for p in self._trained() if p.grad is None]

    @property
    def summed(self) -> Bytes:
        """Bytes of all gradients of one backward, while autograd adds those of another one to them."""
        return sum(by_page(bytes_of(p)) for p in self._trained()) + self.largest

    @property
    def largest(self) -> Bytes:
        """Bytes of the largest gradient, by page."""
        return max((by_page(bytes_of(p)) for p in self._trained()), default=0)

    def left_after_one(self, forwards: Iterable[Bytes | None]) -> Bytes:
        """Bytes that the backward of one of some forwards leaves, while another one's gradients are added.

        Args:
            forwards: what the results of each stay charged; None = nobody knows, as it was dropped.
        """
        found = (self.summed if left is None else left + self.largest for left in forwards)
        return min(self.summed, max(found, default=0))

    @property
    def known(self) -> bool:
        """Whether an optimizer of the parameters was found."""
        return len(self._found) > 0

    @property
    def complete(self) -> bool:
        """Whether every known optimizer has its state."""
        return self._complete_at is not None and self._complete_at == self._extent()

    def assumed(self) -> UpdateBytes:
        """What AdamW would take for the parameters."""
        return assumed_update([bytes_of(p) for p in self._trained()])

    def update(self) -> UpdateBytes:
        """What the known optimizers take, one after another."""
        if self.complete:
            return NO_UPDATE
        if not self.known and self._looks and self._trained():
            self._looks -= 1
            every = (value for value in gc.get_objects() if issubclass(type(value), torch.optim.Optimizer))
            self._found.update(optimizer for optimizer in every if self.holds(optimizer))
        wanted = [self.update_of(optimizer) for optimizer in self._found]
        state = sum(one.state for one in wanted)
        self._complete_at = self._extent() if self.known and state == 0 else None
        return UpdateBytes(state, max((one.beside for one in wanted), default=0))

    def update_of(self, optimizer: torch.optim.Optimizer) -> UpdateBytes:
        """What the next update of an optimizer takes.

        What was made for one parameter may still be there while the next is updated. Where no parameter has
        a gradient yet, all are taken to get one; else those without may be left out or not.

        Args:
            optimizer: to be looked at; it is not changed.
        """
        if isinstance(optimizer, torch.optim.LBFGS):
            return UpdateBytes(self._history(optimizer), 0)
        if type(optimizer).__name__ not in _KNOWN or type(optimizer).__module__.partition(".")[0] != "torch":
            return NO_UPDATE
        state = beside = 0
        for group in optimizer.param_groups:
            sizes: list[Bytes] = []
            before = 0
            trained = [parameter for parameter in group["params"] if parameter.requires_grad]
            begun = any(parameter.grad is not None for parameter in trained)
            for parameter in trained:
                size = round_up(bytes_of(parameter))
                rate = self._rate(optimizer, group, parameter)
                sizes.append(int(rate.beside * size - rate.left * (size - before)) + rate.small_beside)
                before = max(before, size) if begun and parameter.grad is None else size
                if not optimizer.state.get(parameter):
                    state += int(rate.state * size) + rate.small + _factors(optimizer, parameter)
            beside = max(beside, sum(sizes) if _all_at_once(group) else max(sizes, default=0))
        return UpdateBytes(state, beside)

    def _history(self, optimizer: torch.optim.LBFGS) -> Bytes:
        """Bytes that LBFGS will hold while it calls its closure, and does not hold yet."""
        (group,) = optimizer.param_groups
        whole = round_up(sum(local_part(p).numel() * p.itemsize for p in group["params"]))
        copies = 2 * int(group["history_size"]) + _COPIES + (_SEARCHING if group["line_search_fn"] else 0)
        held = _held(optimizer)
        if self._allocator is not None and optimizer in self._begun:  # in locals of its step, too
            held = max(self._allocator.stats().live - self._begun[optimizer], 0)
        return max(copies * whole - held, 0)

    def _rate(
        self, optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: torch.Tensor
    ) -> _Rate:
        flags = tuple((name, bool(value)) for name, value in group.items() if _is_number(value))
        shape = _VECTOR if parameter.dim() < len(_MATRIX) else _MATRIX
        device = device_of([parameter])  # what is on no device yet is taken to be for the CPU
        key = (type(optimizer), parameter.dtype, device, shape, flags)
        if isinstance(optimizer, torch.optim.SparseAdam):
            return _Rate(_STATE, 0, 0, 0)
        if self._allocator is None:
            return _Rate(_STATE, _SMALL, _BESIDE, _SMALL)
        if key not in self._rates:
            make = partial(torch.zeros, shape, dtype=parameter.dtype, device=device)
            self._rates[key] = _rehearsed(optimizer, group, make, self._allocator)
        return self._rates[key]


def assumed_update(sizes: Iterable[Bytes]) -> UpdateBytes:
    """What AdamW takes for trained parameters of so many bytes each.

    >>> assumed_update([640, 64])
    UpdateBytes(state=1536, beside=1280)
    """
    rounded = [round_up(size) for size in sizes]
    state = sum(_STATE * size + _SMALL for size in rounded)
    before = (0, *rounded)  # of what an update makes, one size is left from the parameter before
    made = ((_BESIDE - 1) * size + left for left, size in zip(before, rounded, strict=False))
    return UpdateBytes(state, max(made, default=0))


def _all_at_once(group: Mapping[str, Any]) -> bool:
    """Tell whether an optimizer updates all parameters of a group by one call: the default on a GPU."""
    foreach = group.get("foreach")
    if foreach is not None or group.get("fused"):
        return bool(foreach)
    return any(parameter.device.type == "cuda" for parameter in group["params"])


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _held(optimizer: torch.optim.Optimizer) -> Bytes:
    """Bytes of the tensors in an optimizer's state."""
    return sum(round_up(bytes_of(t)) for t in tensors_in(list(optimizer.state.values())))


def _factors(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Bytes:
    """Bytes of the means of rows and of columns that Adafactor keeps of a matrix."""
    if not isinstance(optimizer, torch.optim.Adafactor) or parameter.dim() < len(_MATRIX):
        return 0
    return sum(
        round_up(parameter.numel() // max(length, 1) * parameter.itemsize) for length in parameter.shape[-2:]
    )


def _rehearsed(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    make: Callable[[], torch.Tensor],
    allocator: Allocator,
) -> _Rate:
    """Update made-up parameters twice, as the optimizer would, and see what is allocated.

    There are two of them: what was made for the first may still be there while the second is updated.
    """
    twin = object.__new__(type(optimizer))
    twin.defaults, twin.state = optimizer.defaults, defaultdict(dict)
    step: Callable[[torch.optim.Optimizer], Any] = unwrap(type(optimizer).step)
    with real_tensors(), allocator.limited(None):  # a graph may just be captured, on fake tensors
        samples = [make() for _ in range(2)]
        for sample in samples:
            sample.grad = torch.zeros_like(sample)
        twin.param_groups = [{**group, "params": samples}]
        whole = samples[0].untyped_storage().nbytes()
        beside = max(_most(lambda: step(twin), allocator, whole // 2) for _ in range(2))
        twin.param_groups = [{**group, "params": samples[:1]}]
        alone = _most(lambda: step(twin), allocator, whole // 2)
    state = twin.state[samples[0]].values()
    kept = [value.untyped_storage().nbytes() for value in state if isinstance(value, torch.Tensor)]
    large = sum(size for size in kept if size >= whole)
    small = sum(round_up(size) for size in kept if size < whole)
    if _all_at_once(group):
        return _Rate(large / whole, small, beside[0] / (len(samples) * whole), beside[1])
    return _Rate(large / whole, small, beside[0] / whole, beside[1], (beside[0] - alone[0]) / whole)


def _most(run: Callable[[], Any], allocator: Allocator, least: Bytes) -> tuple[Bytes, Bytes]:
    """The most bytes alive at once that ``run`` makes and drops: in blocks of ``least``, and smaller ones."""
    allocator.begin_record()
    try:
        run()
    finally:
        record = allocator.end_record()
    last = len(record.events)
    inside = [one for one in record.buffers() if one.end < last]
    most = (0, 0)
    for at in range(last):
        alive = [round_up(one.bytes) for one in inside if one.start <= at < one.end]
        large = sum(size for size in alive if size >= least)
        most = max(most, (large, sum(alive) - large))
    return most
