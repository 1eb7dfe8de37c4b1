"""Parameters that several layers use, as the output head of a language model uses its embedding.

Idea        Layers that share a `torch.nn.Parameter` may come into stages on different ranks, each with a
            copy. Behind the last backward the gradients of the copies are summed (`TiedCopies`), so that
            equal optimizers keep the copies equal.
Guarantee   Every copy gets the same gradient: the sum over its stages, of which the last one comes first.
            Within a stage autograd sums as one process does.
Complexity  Linear in the parameters.
Gaps        One process sums per micro-batch over all uses; sums per stage round differently. To have its
            bits, every micro-batch would send a gradient of the size of the parameter. The time of the sum is
            not in the forecast. A parameter counts once per layer that uses it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

import msgspec
import torch

from tightrope.core import TightropeError
from tightrope.core.units import Bytes, round_up
from tightrope_ranks.values.ranks import StageCost, Tie


@dataclass(frozen=True, slots=True)
class TiedParameters:
    """Whose parameters are whose.

    Attributes:
        layers: per layer, the numbers of its parameters, in the order of ``parameters()``.
        names: of those that several layers train, by number, for people.
        sizes: their bytes.
    """

    layers: tuple[tuple[int, ...], ...] = ()
    names: tuple[tuple[int, str], ...] = ()
    sizes: tuple[Bytes, ...] = ()

    def between(self, cuts: Sequence[int]) -> tuple[Tie, ...]:
        """Say what is tied between stages that begin at ``cuts``."""
        stages = [list(dict.fromkeys(chain(*self.layers[a:b]))) for a, b in pairwise(cuts)]
        found = []
        for (number, name), size in zip(self.names, self.sizes, strict=True):
            users = tuple(stage for stage, own in enumerate(stages) if number in own)
            if len(users) > 1:
                found.append(Tie(name, size, users, tuple(stages[one].index(number) for one in users)))
        return tuple(found)


NOTHING_TIED: Final = TiedParameters()


def with_room(cost: StageCost, ties: Sequence[Tie]) -> StageCost:
    """Give a stage room for the sums of its tied parameters: what comes, and gradients of earlier steps.

    >>> with_room(StageCost(1, 1, state=5), [Tie("0.weight", 64, (0, 1), (0, 0))]).state
    133
    """
    return msgspec.structs.replace(cost, state=cost.state + 2 * sum(tie.bytes for tie in ties))


def tied_parameters(layers: Sequence[torch.nn.Module]) -> TiedParameters:
    """Find the parameters that several layers train.

    Raises:
        TightropeError: layers share memory that cannot be kept equal on several ranks.

    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> tied_parameters([layer, torch.nn.ReLU(), layer]).between((0, 2, 3))
    (Tie(name='0.weight', bytes=64, stages=(0, 1), places=(0, 0)),)
    """
    numbers: dict[int, int] = {}
    names: dict[int, str] = {}
    sizes: dict[int, Bytes] = {}
    users: dict[int, int] = {}
    found = []
    for position, layer in enumerate(layers):
        own = []
        for name, parameter in layer.named_parameters():
            number = numbers.setdefault(id(parameter), len(numbers))
            own.append(number)
            users[number] = users.get(number, 0) + parameter.requires_grad
            names.setdefault(number, f"{position}.{name}")
            sizes[number] = round_up(parameter.numel() * parameter.element_size())
        found.append(tuple(own))
    _refuse_views(layers)
    several = [number for number, count in users.items() if count > 1]
    return TiedParameters(
        tuple(found), tuple((one, names[one]) for one in several), tuple(sizes[one] for one in several)
    )


@contextmanager
def buffers_unshared(layers: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Refuse what forwards within a ``with`` block write to a buffer of several layers.

    Raises:
        TightropeError: names the layer and the buffer.
    """
    first: dict[int, int] = {}
    several = [
        (position, name, one, one._version)
        for position, layer in enumerate(layers)
        for name, one in layer.named_buffers()
        if first.setdefault(id(one), position) != position
    ]
    yield
    for position, name, one, version in several:
        if one._version != version:
            raise TightropeError(
                f"layers {first[id(one)]} and {position} write the same buffer {name}: its copies on two "
                "ranks would differ. Give each layer its own."
            )


def _refuse_views(layers: Sequence[torch.nn.Module]) -> None:
    """Refuse different parameters of different layers in the same memory."""
    owner: dict[int, tuple[int, int, str]] = {}
    for position, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            if not parameter.requires_grad or not parameter.numel() or parameter.is_meta:
                continue
            mine = (id(parameter), position, f"{position}.{name}")
            first = owner.setdefault(parameter.data_ptr(), mine)
            if first[0] != mine[0] and first[1] != position:
                raise TightropeError(
                    f"{first[2]} and {mine[2]} are two parameters in the same memory: copies on two ranks "
                    "would differ after an update. Let both layers use the same Parameter."
                )
