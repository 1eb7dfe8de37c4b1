"""Parties in processes of their own, on any machines: one training over rows, over sockets.

Every party runs the same training on its own rows. What parties of one process add up, these hand to gloo,
and each draws the same tree from the same sums: there is no server. Names, numbers of rows, the largest label
and weight, settings and the distinct values of features with few of them are shown to all.

Guarantee   The forest is that of `train_over_rows`, to the last bit.
Gaps        Gloo neither encrypts nor asks who connects: with masks a vector tells nobody anything, but who
            can reach the port can take part. Give it a private network, or a tunnel. A party that ends, ends
            the training.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope.core.units import Bytes, shown
from tightrope_fleet.secure import PartyGoneError, SecureMember, Words
from tightrope_fleet.trees.bins import agree_cuts
from tightrope_fleet.trees.forest import Forest
from tightrope_fleet.trees.params import MAX_ROWS, Boosting
from tightrope_fleet.trees.parties import Learner, PartyTable, bits_for, held_out, work_of
from tightrope_fleet.trees.rows import RowParties, RowSide, RowSum, base_of, boosted, check_rows
from tightrope_fleet.trees.wire import Wire

_MOST_TEXT: Final[Bytes] = 2**30


class Introduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What parties tell each other first.

    Attributes:
        name: who it is.
        rows: of its table.
        label: the largest one, without its sign.
        weight: the largest one, at least 1.
        settings: digest of what it asks for.
        key: for masks; empty = none.
    """

    name: str
    rows: int
    label: float
    weight: float
    settings: str
    key: bytes


class PartyLink:
    """One party's sockets to all others.

    Args:
        address: ``HOST:PORT`` at which the party with place 0 listens.
        place: of this party, from 0.
        count: how many parties there are.
        seconds: that others may be silent.

    Attributes:
        num_bytes: handed to others.

    Raises:
        TightropeError: the address or the place is none.
        PartyGoneError: not all parties came in time.

    Example:
        Each party calls ``train_with_others(party, params, PartyLink("10.0.0.1:5000", place, 3))``.
    """

    def __init__(self, address: str, place: int, count: int, *, seconds: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise TightropeError(f"address {shown(address)}: write HOST:PORT, such as 10.0.0.1:5000.")
        if not (2 <= count <= 1000 and 0 <= place < count):
            raise TightropeError(f"party {place} of {count}: give 2 parties or more, and a place from 0 on.")
        import torch
        from torch import distributed as dist

        self.place, self.count, self.num_bytes, self._torch = place, count, 0, torch
        limit = timedelta(seconds=seconds)
        try:
            store = dist.TCPStore(host, int(port), count, place == 0, limit)  # type: ignore[attr-defined]
            self._group: Any = dist.ProcessGroupGloo(store, place, count, limit)
        except (RuntimeError, ValueError) as error:  # of several classes in torch
            raise _gone(error, f"{count} parties did not meet at {address} within {seconds:g} s") from error

    def total(self, words: Words) -> Words:
        """Add up the vectors of all parties, modulo 2^64.

        Raises:
            PartyGoneError: a party ended or was silent.
        """
        tensor = self._torch.from_numpy(words.view(np.int64).copy())
        self._wait(self._group.allreduce, [tensor])
        self.num_bytes += words.nbytes
        return np.asarray(tensor.numpy()).view(np.uint64)

    def exchange(self, data: bytes) -> list[bytes]:
        """Hand bytes to all parties; get those of every one, in the order of their places.

        Raises:
            PartyGoneError: a party ended or was silent.
        """
        sizes = self._gather(np.array([len(data)], np.int64))
        lengths = [int(one[0]) for one in sizes]
        if max(lengths) > _MOST_TEXT:
            raise TightropeError(f"a party sends {max(lengths)} bytes: at most {_MOST_TEXT} are taken.")
        padded = np.zeros(max(lengths), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        found = self._gather(padded)
        return [one[:length].tobytes() for one, length in zip(found, lengths, strict=True)]

    def _gather(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        given = self._torch.from_numpy(values)
        found = [self._torch.empty_like(given) for _ in range(self.count)]
        self._wait(self._group.allgather, [found], [given])
        self.num_bytes += values.nbytes
        return [one.numpy() for one in found]

    def _wait(self, what: Callable[..., Any], *given: Any) -> None:
        try:
            what(*given).wait()
        except RuntimeError as error:
            raise _gone(error, "a party ended, or was silent for too long; nothing was written") from error


def _gone(error: Exception, what: str) -> PartyGoneError:
    said = (str(error).splitlines() or [""])[0][:120]
    return PartyGoneError(f"{what} ({said}). Start all parties again.", party="")


@dataclass(slots=True)
class _LinkSum(RowSum):
    """Adds the vector of this party to those of the others."""

    link: PartyLink | None = None
    member: SecureMember | None = None

    def __call__(self, vectors: list[Words]) -> Words:
        (vector,) = vectors
        hidden = vector if self.member is None else self.member.mask(vector, round_=self.round_)
        self.round_ += 1
        assert self.link is not None
        return self.link.total(hidden)


def train_with_others(
    party: PartyTable,
    params: Boosting,
    link: PartyLink,
    *,
    features: Sequence[str] = (),
    masks: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Forest:
    """Train a forest with parties that hold other rows, in other processes.

    Args:
        party: rows of this one, with labels.
        params: what is asked for, the same by all; classes of a softmax follow from the labels of all.
        link: to the others.
        features: names, the same by all; default ``x0``, ``x1`` ...
        masks: hide every vector behind pairwise masks.
        progress: called with the number of finished rounds.

    Raises:
        TightropeError: parties ask for different things, have equal names, or too many rows.
        PartyGoneError: a party ended or was silent.
    """
    names = tuple(features) or tuple(f"x{f}" for f in range(party.table.shape[1]))
    member = SecureMember(party.name) if masks else None
    settings = hashlib.sha256(repr((params, names, masks)).encode()).hexdigest()
    mine = Introduction(
        party.name, len(party.table), party.largest_label, party.largest_weight, settings,
        b"" if member is None else member.public(),
    )  # fmt: skip
    met = _introduced(link.exchange(msgspec.json.encode(mine)), settings)
    if member is not None:
        member.meet({one.name: one.key for one in met})
    label = max(one.label for one in met)
    if params.loss == "softmax":
        params = replace(params, classes=max(2, int(label) + 1))
    check_rows([party], params)
    num_rows = sum(one.rows for one in met)
    adder = _LinkSum([party], Wire(), None, link=link, member=member)
    cuts = agree_cuts([party.table], bins=params.bins, summed=adder, gathered=_Gathered(link))
    weight = max(one.weight for one in met)
    bits = bits_for(2.0 ** np.ceil(np.log2(max(label, 1.0))), num_rows, params.loss, weight)
    held = held_out(party, params)
    base = base_of([party], [held], params, bits, adder)
    side = RowSide(work_of(party.table, cuts), Learner(party, params, bits, num_rows, base, held))
    trees = boosted(params, cuts, bits, RowParties(params, [party], [side], adder), None, progress)
    return Forest(names, base, params.loss, trees, params.outputs)


def _introduced(texts: Sequence[bytes], settings: str) -> list[Introduction]:
    """Read what all parties said, and refuse what does not go together."""
    try:
        met = [msgspec.json.decode(text, type=Introduction) for text in texts]
    except msgspec.DecodeError as error:
        raise TightropeError(f"another party speaks another language ({error}): use one version.") from error
    for one in met:
        if one.settings != settings:
            raise TightropeError(
                f"party {one.name!r:.60} asks for other settings or columns: give all parties the same."
            )
    if len({one.name for one in met}) != len(met):
        raise TightropeError("two parties have one name: name each table otherwise.")
    if sum(one.rows for one in met) > MAX_ROWS:
        raise TightropeError(f"{sum(one.rows for one in met)} rows: at most {MAX_ROWS} are summed exactly.")
    return met


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Distinct values of every feature, of all parties."""

    link: PartyLink

    def __call__(self, distinct: list[list[Words]]) -> list[list[Words]]:
        (mine,) = distinct
        sizes = np.array([len(mine), *map(len, mine)], np.int64)
        found = []
        for text in self.link.exchange(sizes.tobytes() + b"".join(one.tobytes() for one in mine)):
            width = int(np.frombuffer(text, np.int64, 1)[0])
            if width != len(mine):
                raise TightropeError(f"parties have {len(mine)} and {width} features: the same are needed.")
            lengths = np.frombuffer(text, np.int64, width, offset=8).tolist()
            keys = np.frombuffer(text, np.uint64, offset=8 * (1 + width))
            found.append(np.split(keys, np.cumsum(lengths)[:-1]))
        return found
