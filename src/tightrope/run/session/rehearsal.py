"""What a call of a model takes with its backward where nothing is planned, found before it counts.

Idea        The model and its inputs are copied without values, and the copy makes the call and its backward,
            on shapes alone: autograd keeps and frees what it would in eager. Every storage is counted from
            the op that makes it to its last use. Where ops depend on values, the forward runs on the values,
            and what it saves for a backward is counted and dropped. The backward is taken to hold all of
            that, every gradient, and its largest op.
Guarantee   No random state, buffer or attribute of the model changes. On shapes, at most a few
            bytes of memory are taken; on values, what a forward without gradients takes, within the limit in
            force. What is counted is what eager takes outside of kernels.
Gaps        What kernels take while they run is not seen: as much again as an op reads and writes stands for
            it. What a forward does to objects outside of its model, such as a global list, it does once
            more.
"""

import weakref
from functools import partial
from typing import Any, NamedTuple

import torch

from tightrope.capture._eager import ops_shown, tensors_in, uncompiled, without_shared_hooks
from tightrope.capture._torch import copied_without_values
from tightrope.core import Bytes, round_up
from tightrope.run.base.state import RandomStates, attributes_kept, state_of
from tightrope.run.base.status import LOG
from tightrope.run.ledger.headroom import Headroom

_SPARE = 8
"""One part in so many goes to gaps between addresses."""
_BACKWARD = 2
"""Of what the largest op reads and makes: what its backward reads and makes."""


class Rehearsed(NamedTuple):
    """Bytes of a call and its backward, gradients of parameters included.

    Attributes:
        seen: of storages that are alive at once.
        enough: with what stands for kernels, a guess at a loss, and gaps between addresses.
        forward: of storages that are alive at once in the call alone, with gradients of its outputs.
        enough_forward: the same with what stands for kernels, a guess at a loss, and gaps between addresses.
        evicting: a guess at what eviction needs at once.
        by_values: whether values decide what the call does: with others it may take more.
    """

    seen: Bytes
    enough: Bytes
    forward: Bytes
    enough_forward: Bytes
    evicting: Bytes
    by_values: bool = False


class _Counter:
    """Bytes of the storages that ops made, and that are alive; ``most`` has what stands for kernels in it.

    Attributes:
        live: see there.
        peak: most that was alive.
        most: see there.
        largest: most that one op reads and makes.
        own: most that one op makes and reads of what ops made.
    """

    def __init__(self) -> None:
        self.live: Bytes = 0
        self.peak: Bytes = 0
        self.most: Bytes = 0
        self.largest: Bytes = 0
        self.own: Bytes = 0
        self._known: dict[int, weakref.ref[Any]] = {}
        self._saved: set[int] = set()

    def see(self, op: Any, given: Any, result: Any) -> None:
        """Count what an op made."""
        del op
        read, made = tensors_in(given), tensors_in(result)
        storages = {id(tensor.untyped_storage()): tensor.untyped_storage().nbytes() for tensor in read}
        older = self._known.keys() | storages.keys()
        own = sum(round_up(size) for key, size in storages.items() if key in self._known)
        new = {id(s): s for tensor in made if id(s := tensor.untyped_storage()) not in older}
        for key, storage in new.items():
            size = round_up(storage.nbytes())
            self.live += size
            own += size
            self._known[key] = weakref.ref(storage, partial(self._gone, key, size))
        inside = sum(tensor.numel() * tensor.itemsize for tensor in (*read, *made)) if new else 0
        self.peak = max(self.peak, self.live)
        self.most = max(self.most, self.live + inside)
        self.largest = max(self.largest, inside)
        self.own = max(self.own, own)

    @property
    def evicting(self) -> Bytes:
        """What eviction needs: the tensors of one op, a gradient that waits meanwhile, and gaps."""
        return self.own + self.own // 2

    def save(self, tensor: torch.Tensor) -> None:
        """Count a tensor to the end, though it is not kept."""
        self._saved.update(self._known.keys() & {id(tensor.untyped_storage())})

    def _gone(self, key: int, size: Bytes, _: object) -> None:
        del self._known[key]
        if key in self._saved:
            self._saved.remove(key)  # another storage may have its number next
        else:
            self.live -= size


def rehearsed(model: torch.nn.Module, args: Any, kwargs: Any) -> Rehearsed | None:
    """Find what a call and its backward take in addition to what is there; None = it cannot be rehearsed."""
    random = RandomStates.now(model, args, kwargs)
    real = {id(one) for one in (*model.parameters(), *tensors_in((args, kwargs)))}
    try:
        with copied_without_values((model, args, kwargs)) as (twin, its_args, its_kwargs):
            leaves = [
                one
                for one in (*twin.parameters(), *tensors_in((its_args, its_kwargs)))
                if id(one) not in real and one.is_leaf and one.requires_grad
            ]
            return _taken(twin, its_args, its_kwargs, leaves)
    except Exception as error:  # whatever code of the user raises where values are missing
        LOG.debug("a call is not rehearsed on shapes: %r", error)
    finally:
        random.restore()
    restore = state_of(model, args, kwargs)
    try:
        return _taken_on_values(model, args, kwargs)
    except Exception as error:  # memory is short, or the call fails on its values too
        LOG.debug("a call is not rehearsed on values: %r", error)
        return None
    finally:
        restore()


def _never(_: None) -> torch.Tensor:
    raise AssertionError("no backward follows")


def _taken_on_values(model: torch.nn.Module, args: Any, kwargs: Any) -> Rehearsed:
    counter = _Counter()
    dropped = torch.autograd.graph.saved_tensors_hooks(counter.save, _never)
    with uncompiled(model), attributes_kept(model), ops_shown(counter.see), torch.enable_grad(), dropped:
        outputs = tensors_in(model(*args, **kwargs))
        trained = [output for output in outputs if output.requires_grad]
    sizes = [round_up(output.untyped_storage().nbytes()) for output in trained]
    large = [size for size, output in zip(sizes, trained, strict=True) if output.dim()]
    least, loss = _with_losses(counter.live, large, sizes)
    gradients = sum(round_up(one.nbytes) for one in model.parameters() if one.requires_grad)
    backward = counter.live + gradients + _BACKWARD * counter.largest
    forward, most = max(counter.peak, least), max(counter.most, loss)
    backward *= bool(trained)
    seen, enough = max(counter.peak, backward), _spread(max(most, backward))
    return Rehearsed(seen, enough, forward, _spread(most), counter.evicting, by_values=True)


def _taken(twin: torch.nn.Module, args: Any, kwargs: Any, leaves: list[torch.Tensor]) -> Rehearsed:
    """Count a call and its backward, which ends at ``leaves``: a copied script module has the user's too."""
    counter = _Counter()
    for leaf in leaves:
        leaf.grad = None
    without_shared_hooks(twin)
    with uncompiled(twin), ops_shown(counter.see):
        outputs = tensors_in(twin(*args, **kwargs))
        trained = [output for output in outputs if output.requires_grad]
        sizes = [round_up(output.untyped_storage().nbytes()) for output in trained]
        large = [size for size, output in zip(sizes, trained, strict=True) if output.dim()]
        least, loss = _with_losses(counter.live, large, sizes)
        forward, most = max(counter.peak, least), max(counter.most, loss)
        if trained and leaves:
            tangents = [torch.empty_like(output) for output in trained]
            torch.autograd.backward(trained, tangents, inputs=leaves)
    enough = _spread(max(counter.most, most))
    return Rehearsed(counter.peak, enough, forward, _spread(most), counter.evicting)


def _with_losses(live: Bytes, large: list[Bytes], sizes: list[Bytes]) -> tuple[Bytes, Bytes]:
    """Add the gradients of outputs of such sizes alone, and a generous guess at a loss, to what is alive."""
    headroom = Headroom(sum(large), sum(sizes))
    return live + headroom.needed, live + headroom.wanted


def _spread(most: Bytes) -> Bytes:
    return most + most // _SPARE
