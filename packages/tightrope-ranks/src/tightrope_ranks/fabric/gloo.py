"""The calls of a fabric over the sends and receives of a process group: between hosts, or where one is there.

Rank 0 calls, all others serve: one letter, then its tensors, and the same back.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from tightrope.core import RankError, TightropeError
from tightrope_ranks.fabric import basic
from tightrope_ranks.fabric.letters import (
    DTYPES,
    NAMES,
    Letter,
    LetterKind,
    PlaceItem,
    PlainItem,
    decode,
    divided,
    encode,
)
from tightrope_ranks.fabric.peer import check_tensor
from tightrope_ranks.fabric.registry import function_of
from tightrope_ranks.fabric.reply import failed

_MOST = 2**20


class GlooFabric:
    """Calls from rank 0 of a process group to the others; all of them make one together.

    Args:
        timeout: seconds that one transfer may take.
    """

    def __init__(self, *, timeout: float = 60.0) -> None:
        self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self.number, self.num = distributed.get_rank(), distributed.get_world_size()
        assert basic.ping()

    def call(self, node: int, name: str, *arguments: Any) -> Any:
        """Call a registered function on a node and return its result.

        Raises:
            RankError: it raised, the node ended, or the time is over.
        """
        if self.number != 0 or not 0 < node < self.num:
            raise TightropeError(
                f"rank {self.number} calls node {node}: rank 0 calls nodes 1 to {self.num - 1}."
            )
        packed = _packed(LetterKind.CALL, name, arguments)
        try:
            self._put(node, *packed)
            letter, values = self._take(node)
        except RuntimeError as error:
            said = str(error).strip().partition("\n")[0]
            raise RankError(f"node {node} did not answer {name!r}: {said}") from error
        if letter.kind == LetterKind.ERROR:
            raise RankError(f"node {node}: {letter.name}")
        return values[0] if letter.single else tuple(values)

    def serve(self) -> None:
        """Answer calls until rank 0 closes."""
        while True:
            letter, values = self._take(0)
            if letter.kind == LetterKind.STOP:
                return
            try:
                found = function_of(letter.name)(*values)
                many = isinstance(found, tuple | list)
                packed = _packed(LetterKind.RESULT, letter.name, found if many else (found,), single=not many)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # the caller gets it, `sys.exit` included
                packed = _packed(LetterKind.ERROR, failed(letter.name, error), ())
            self._put(0, *packed)

    def close(self) -> None:
        """Let the others return from `serve`."""
        for node in range(1, self.num) if self.number == 0 else ():
            self._put(node, *_packed(LetterKind.STOP, "", ()))

    def _put(self, node: int, data: bytes, tensors: Sequence[Tensor]) -> None:
        distributed.send(torch.tensor([len(data)]), node, self._group)
        distributed.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), node, self._group)
        for one in tensors:
            if one.numel():
                distributed.send(one.view(-1).view(torch.uint8), node, self._group)

    def _take(self, node: int) -> tuple[Letter, list[Any]]:
        size = torch.zeros(1, dtype=torch.int64)
        distributed.recv(size, node, self._group)
        if not 0 < int(size) <= _MOST:
            raise TightropeError(f"node {node} announced a letter of {int(size)} bytes.")
        data = torch.empty(int(size), dtype=torch.uint8)
        distributed.recv(data, node, self._group)
        letter = decode(data.numpy().tobytes())
        values: list[Any] = []
        for item in letter.items:
            if isinstance(item, PlaceItem):
                one = torch.empty(item.shape, dtype=DTYPES[item.dtype])
                if one.numel():
                    distributed.recv(one.view(-1).view(torch.uint8), node, self._group)
                values.append(one)
            elif isinstance(item, PlainItem):
                values.append(item.value)
        return letter, values


def _packed(
    kind: LetterKind, name: str, values: Sequence[Any], *, single: bool = False
) -> tuple[bytes, list[Tensor]]:
    """Return a letter, and the tensors that follow it."""
    items: list[PlaceItem | PlainItem] = []
    tensors = []
    for value in values:
        if isinstance(value, Tensor):
            check_tensor(value)
            one = value.detach().resolve_conj().resolve_neg().contiguous()
            items.append(PlaceItem(False, 0, 0, 0, NAMES[one.dtype], tuple(one.shape)))
            tensors.append(one)
        else:
            items.append(PlainItem(divided(value, ())[0]))
    data = encode(Letter(kind, 0, name, tuple(items), single))
    if len(data) > _MOST:
        raise TightropeError(f"{name!r}: {len(data)} bytes of plain values; at most {_MOST}.")
    return data, tensors
