"""I4: a fault at random in every step that pages; processes that are killed while they page."""

import errno
import gc
import hashlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn
from unittest import mock

import torch
from rich.console import Console
from torch import nn

import tightrope
from tightrope.capture._torch import reset_dynamo
from tightrope.core import Machine, PagingError, Tier
from tightrope.run.compile import compiled_of
from tightrope.run.execute import page_file
from tightrope.run.execute.page_file import PageFile

_X = torch.linspace(-1, 1, 4096 * 64).reshape(4096, 64).sin()


def faults(console: Console, trials: int, folder: str, kinds: Sequence[str]) -> None:
    """Print a row per kind of fault."""
    rng = random.Random(0)
    if transfers := [kind for kind in _KINDS if kind in kinds]:
        _transfers(console, trials, folder, transfers, rng)
    if KILLED not in kinds:
        return
    strays, leaked, wrong = _killed(trials, folder, rng)
    console.print(
        f"{KILLED:12}{trials} trials: {strays} left a file, {leaked} left blocks, {wrong} wrong restarts",
        highlight=False,
    )


def _transfers(console: Console, trials: int, folder: str, kinds: Sequence[str], rng: random.Random) -> None:
    """Let one system call of each step fail."""
    right = iter(_right(4 + len(kinds) * trials))
    model = _net()
    machine = Machine("fast", (Tier("dram", 2**40), Tier("file", 2**30, 4096, read=1e12, write=1e12)))
    tightrope.compile(model, budget="45%", page_to=folder, machine=machine, progress=False)
    pages = compiled_of(model).settings.pages
    assert pages is not None
    pages.contest = False  # a step without pages has no faults
    update = _adam(model)
    assert all(_step(model, update) == next(right) for _ in range(2))
    counts = {name: _count(name, model, update, next(right)) for name in ("pwrite", "preadv")}
    for kind in kinds:
        name, make = _KINDS[kind]
        silent = changed = wrong = 0
        for _ in range(trials):
            before, fault = _state(model, update), _at(rng.randrange(counts[name]), make(rng))
            with mock.patch.object(page_file, name, fault):
                try:
                    _step(model, update)
                    silent += 1
                except PagingError:
                    pass
            gc.collect()
            changed += _state(model, update) != before
            wrong += _step(model, update) != next(right)
        console.print(
            f"{kind:12}{trials} trials: {silent} silent, {changed} changed the state, "
            f"{wrong} wrong next steps",
            highlight=False,
        )


_Fault = Callable[[Callable[..., int], int, Any, int], int]


def _full(rng: random.Random) -> _Fault:
    def fault(real: Callable[..., int], fd: int, data: Any, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return fault


def _short(rng: random.Random) -> _Fault:
    def fault(real: Callable[..., int], fd: int, data: Any, at: int) -> int:
        whole = data[0] if isinstance(data, list) else data
        less = whole[: 512 * rng.randrange(len(whole) // 512)]
        return real(fd, [less] if isinstance(data, list) else less, at) if len(less) else 0

    return fault


def _flip(rng: random.Random) -> _Fault:
    def fault(real: Callable[..., int], fd: int, data: Any, at: int) -> int:
        count = real(fd, data, at)
        data[0][rng.randrange(count)] ^= 1 << rng.randrange(8)
        return count

    return fault


_KINDS: dict[str, tuple[str, Callable[[random.Random], _Fault]]] = {
    "disk full": ("pwrite", _full),
    "short write": ("pwrite", _short),
    "short read": ("preadv", _short),
    "flipped bit": ("preadv", _flip),
}
KILLED: Final = "kill -9"
KINDS: Final = (*_KINDS, KILLED)


def _at(number: int, fault: _Fault) -> Callable[..., int]:
    """Make a system call that fails at its ``number``-th use; each says by its name which it is."""
    calls = iter(range(2**62))

    def call(fd: int, data: Any, at: int) -> int:
        real: Callable[..., int] = os.preadv if isinstance(data, list) else os.pwrite
        return fault(real, fd, data, at) if next(calls) == number else real(fd, data, at)

    return call


def _count(name: str, model: nn.Module, update: torch.optim.Optimizer, right: str) -> int:
    """Count the system calls of a step."""
    with mock.patch.object(page_file, name, wraps=getattr(os, name)) as watched:
        assert _step(model, update) == right
    return watched.call_count


def _net() -> nn.Module:
    reset_dynamo()
    torch.manual_seed(3)
    return nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.GELU())])


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def _right(count: int) -> list[str]:
    model = _net()
    update = _adam(model)
    return [_step(model, update) for _ in range(count)]


def _step(model: nn.Module, update: torch.optim.Optimizer) -> str:
    update.zero_grad()
    model(_X).square().mean().backward()
    update.step()
    return _state(model, update)


def _state(model: nn.Module, update: torch.optim.Optimizer) -> str:
    found = hashlib.blake2b()
    for tensor in (*model.parameters(), *(value for row in update.state.values() for value in row.values())):
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()


def _killed(trials: int, folder: str, rng: random.Random) -> tuple[int, int, int]:
    """Fork processes that page, kill each at random; count files, blocks and wrong restarts."""
    strays = leaked = wrong = 0
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for _ in range(trials):
            free = _free(place)
            child = os.fork()
            if child == 0:
                _page_for_ever(place)
            time.sleep(0.02 + 0.2 * rng.random())
            strays += bool(os.listdir(place))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            strays += bool(os.listdir(place))
            leaked += _free(place) < free - 2**26 and _waited(place) < free - 2**26
            wrong += not _works(place)
    return strays, leaked, wrong


_SIZE = 2**28


def _page_for_ever(place: str) -> NoReturn:
    data = torch.ones(_SIZE, dtype=torch.uint8)
    pages = PageFile(place).lease(_SIZE)
    while True:
        pages.out(0, data.data_ptr(), _SIZE, 0)
        pages.wait(0)


def _free(place: str) -> int:
    room = os.statvfs(place)
    return room.f_bfree * room.f_frsize


def _waited(place: str) -> int:
    time.sleep(2)
    return _free(place)


def _works(place: str) -> bool:
    data = torch.arange(2**18, dtype=torch.int32)
    again = torch.empty_like(data)
    pages = PageFile(place).lease(2**20)
    pages.out(0, data.data_ptr(), 2**20, 0)
    pages.wait(0)
    pages.back(0, again.data_ptr(), 2**20, 0)
    pages.wait(0)
    return torch.equal(data, again)
