"""What a call of a model begins from besides its inputs: buffers, and the generators of random numbers."""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import getattr_static
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import torch

_MOST: Final = 100_000
"""Objects that are looked at in search of generators."""
_KINDS: Final = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_CONTENTS: Final = (list, dict, OrderedDict)
_LEAVES: Final = (
    *(torch.Tensor, np.ndarray, str, bytes, int, float, type(None)),
    *(type, ModuleType),
)


class RandomStates(NamedTuple):
    """States of all generators that a forward may draw from.

    Attributes:
        torch: of the default generator.
        numpy: of the global generator.
        python: of the module ``random``.
        own: generators that are objects of the user's, with their states.
    """

    torch: torch.Tensor
    numpy: dict[str, Any]
    python: tuple[Any, ...]
    own: tuple[tuple[Any, Any], ...] = ()

    @staticmethod
    def now(*holders: Any) -> "RandomStates":
        """Copy the present states, those of generators that are found in ``holders`` among them."""
        return _states(generators_in(holders))

    def present(self) -> "RandomStates":
        """Copy what the states of the same generators are now."""
        return _states(generator for generator, _ in self.own)

    def restore(self) -> None:
        """Put the generators back."""
        torch.default_generator.set_state(self.torch)
        np.random.set_state(self.numpy)
        random.setstate(self.python)
        for generator, state in self.own:
            _set_state(generator, state)

    def differing(self, other: "RandomStates") -> list[str]:
        """Name the generators whose states differ."""
        same = {
            "torch": torch.equal(self.torch, other.torch),
            "numpy": repr(self.numpy) == repr(other.numpy)
            and np.array_equal(self.numpy["state"]["key"], other.numpy["state"]["key"]),
            "python": self.python == other.python,
        }
        for (generator, state), (_, its) in zip(self.own, other.own, strict=True):
            name = f"{type(generator).__module__}.{type(generator).__name__} of the model or its inputs"
            same[name] = same.get(name, True) and _comparable(state) == _comparable(its)
        return [name for name, equal in same.items() if not equal]


def generators_in(holders: Iterable[Any]) -> list[Any]:
    """Find generators in objects and in what they hold, the nearest first, and around forwards of modules.

    No more than 100,000 objects are looked at: a generator further away is not found. Python modules and
    classes are not entered; of a function, what encloses it and generators among its globals are looked at. A
    generator without a state that can be read, as `random.SystemRandom`, is left out.
    """
    found, seen, left = list[Any](), dict[int, Any](), deque(holders)
    while left and len(seen) < _MOST:
        one = left.popleft()
        kind = type(one)  # `isinstance` would read `__class__`, which may run code of the object
        if id(one) in seen or issubclass(kind, _LEAVES):
            continue
        seen[id(one)] = one
        if issubclass(kind, _KINDS):
            found += [one] if _has_state(one) else []
        elif issubclass(kind, dict):
            left += dict.values(one)
        elif issubclass(kind, list | tuple | set | frozenset):
            left += one
        elif issubclass(kind, FunctionType):
            left += _around(one)
        elif issubclass(kind, MethodType):
            left += [one.__self__, one.__func__]
        elif issubclass(kind, partial):
            left += [one.func, *one.args, *one.keywords.values()]
        else:
            left += _attributes(one)
            if issubclass(kind, torch.nn.Module):
                left += _around(getattr_static(kind, "forward", None))
    return found


def _attributes(one: Any) -> list[Any]:
    """List the values in the ``__dict__`` of an object, without code of its own."""
    try:
        return list(object.__getattribute__(one, "__dict__").values())
    except AttributeError:  # it has slots, or nothing
        return []


def _has_state(generator: Any) -> bool:
    try:
        _state(generator)
    except Exception:  # whatever a class of the user's raises for "there is none"
        return False
    return True


def _around(function: Any) -> list[Any]:
    """List what a function refers to: what encloses it, and generators among its globals."""
    if not isinstance(function, FunctionType):
        return []
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return [*cells, *(value for value in function.__globals__.values() if issubclass(type(value), _KINDS))]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that is bound later
        return False


def _states(own: Iterable[Any]) -> RandomStates:
    return RandomStates(
        torch.default_generator.get_state(),
        np.random.get_state(legacy=False),
        random.getstate(),
        tuple((generator, _state(generator)) for generator in own),
    )


def _state(generator: Any) -> Any:
    match generator:
        case random.Random():
            return generator.getstate()
        case np.random.Generator():
            return generator.bit_generator.state
        case np.random.RandomState():
            return generator.get_state(legacy=False)
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    match generator:
        case random.Random():
            generator.setstate(state)
        case np.random.Generator():
            generator.bit_generator.state = state
        case _:
            generator.set_state(state)


def _comparable(state: Any) -> Any:
    """Turn arrays within a state into lists."""
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | torch.Tensor) else state


@contextmanager
def attributes_kept(model: torch.nn.Module) -> Iterator[None]:
    """Put back the attributes of modules, and what lists and dicts among them hold, when a block ends."""
    every = [vars(module) for module in model.modules()]
    held = {id(one): one for attributes in every for one in attributes.values() if type(one) in _CONTENTS}
    before = [(one, one.copy()) for one in (*every, *held.values())]
    try:
        yield
    finally:
        for now, kept in before:
            if isinstance(now, list):
                now[:] = kept
            elif now.keys() != kept.keys() or any(now[key] is not one for key, one in kept.items()):
                now.clear()
                now.update(kept)


def state_of(model: torch.nn.Module, *given: Any) -> Callable[[], None]:
    """Remember the buffers and the random states, those of generators in ``given`` among them.

    Returns:
        What puts them back.
    """
    states = RandomStates.now(model, *given)
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}

    def restore() -> None:
        states.restore()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])

    return restore
