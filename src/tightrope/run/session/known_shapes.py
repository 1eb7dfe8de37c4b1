"""What earlier processes found of calls whose sizes change, kept on disk.

Idea        A trace with symbols takes torch several times as long as a trace of one shape. What it gave is
            kept beside the plans, by what the call is but for its sizes: which of its sizes may change, and
            the priced graphs of the largest sizes of each bucket. A later process traces its first shape
            alone, and runs it by the plan of its bucket (`tightrope.run.session.buckets`).
Guarantee   What runs is always the process's own trace, measured and judged. What is kept says only whose
            plan it uses, where it is the same list of ops; it refuses nothing: where it does not fit, or
            anything about a file is wrong, the call is traced with symbols.
Complexity  One pass over modules, parameters and inputs, once per process and captured call.
Gaps        State of the model that is neither a plain value, nor a parameter, nor code of its classes, is not
            looked at: where it alone decides about ops of larger sizes, and not of those of the call, that is
            found when a second shape is traced.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, Final

import msgspec
import torch

from tightrope.capture._torch import storage_key
from tightrope.capture.dynamo import environment
from tightrope.core import Graph, PlanFileError
from tightrope.core.cache import Folder
from tightrope.core.codec import dump_graph, load_graph
from tightrope.lower import without_writes
from tightrope.plan.kept import plans_folder
from tightrope.plan.resize import same_ops

_LAYOUT: Final = 2
"""Version of what is kept."""
_USELESS: Final = "useless"
_FAMILY: Final = "family.json"
_MOST_CALLS: Final = 256
_MOST_ITEMS: Final = 1_000
"""Longer lists that a module has are known by their length."""
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class KnownFamily(msgspec.Struct, frozen=True):
    """Calls that one trace with symbols stood for.

    Attributes:
        inputs: (name, shape) of the tensors that the caller hands over; a size that may change is the
            position of its number, as a string.
        num_sizes: sizes of the call that may change.
        declared: the largest sizes of the buckets that were declared and keep every guard.
    """

    inputs: tuple[tuple[str, tuple[int | str, ...]], ...]
    num_sizes: int
    declared: tuple[tuple[int, ...], ...] = ()

    def sizes_of(self, tensors: Mapping[str, torch.Tensor]) -> tuple[int, ...] | None:
        """The sizes of a call; None where it is none of these.

        >>> KnownFamily((("input 0", ("0", 4)),), 1).sizes_of({"input 0": torch.zeros(7, 4)})
        (7,)
        """
        known: dict[int, int] = {}
        for name, shape in self.inputs:
            tensor = tensors.get(name)
            if tensor is None or tensor.ndim != len(shape):
                return None
            for size, now in zip(shape, tensor.shape, strict=True):
                if isinstance(size, int):
                    wanted = size
                elif size.isdigit():
                    wanted = known.setdefault(int(size), now)
                else:  # it follows from others
                    continue
                if now != wanted:
                    return None
        return tuple(known[at] for at in sorted(known)) if known.keys() == {*range(self.num_sizes)} else None


class KnownShapes:
    """What is kept of one call, whatever its sizes.

    Attributes:
        every: of what is kept of every call.
        folder: for this one alone.
    """

    def __init__(self, every: Folder, key: str) -> None:
        self.every, self.folder = every, every / key

    def families(self) -> list[KnownFamily]:
        """List what was traced; what cannot be read, or is of no use, is left out."""
        found = []
        names = self.folder.names()
        for name in () if _USELESS in names else names:
            with suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode((self.folder / name).read(_FAMILY), type=KnownFamily))
        return found

    def graph(self, family: KnownFamily, sizes: Sequence[int]) -> Graph | None:
        """Read the priced graph for the largest sizes of a bucket; None where none is kept."""
        try:
            folder, name = self._file(family, sizes)
            return load_graph(folder.read(name))
        except (OSError, PlanFileError):
            return None

    def keep(self, family: KnownFamily, sizes: Sequence[int], graph: Graph) -> None:
        """Keep the priced graph for the largest sizes of a bucket, if the folder can be written."""
        folder, name = self._file(family, sizes)
        with suppress(OSError, PlanFileError):
            folder.write(name, dump_graph(graph))
            folder.write(_FAMILY, msgspec.json.encode(family))
            self.every.drop_oldest(_MOST_CALLS)

    def give_up(self) -> None:
        """Note that a trace of one shape gives other ops than one with symbols: nobody tries again."""
        with suppress(OSError):
            self.folder.write(_USELESS, b"")

    def _file(self, family: KnownFamily, sizes: Sequence[int]) -> tuple[Folder, str]:
        name = hashlib.sha256(msgspec.json.encode(family)).hexdigest()[:16]
        return self.folder / name, f"{'-'.join(map(str, sizes))}.json"


def known_shapes(model: torch.nn.Module, args: Any, kwargs: Any, options: object) -> KnownShapes | None:
    """Find what is kept of a call; None = nothing is kept, or its inputs are no plain tensors and values.

    Args:
        model: that is called.
        args: positional inputs.
        kwargs: inputs by name.
        options: what else decides about its graphs.
    """
    plans, tensors = plans_folder(), tensors_of(args, kwargs)
    if plans is None or tensors is None:
        return None
    digest = hashlib.sha256()
    for said in (*_said_of_call(tensors, args, kwargs), *_said_of_model(model), options):
        digest.update(repr(said).encode())
    return KnownShapes(plans / f"shapes-{_LAYOUT}", digest.hexdigest()[:32])


def modes() -> tuple[object, ...]:
    """What decides about graphs besides a model and its inputs; to ask before a call, which may change it.

    >>> modes()[0]
    True
    """
    casts = ((torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in ("cpu", "cuda"))
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), *casts


def same_list(graph: Graph, kept: Graph) -> bool:
    """Tell whether a graph as captured and a priced one for other sizes are the same ops."""
    return graph.environment == kept.environment and same_ops(without_writes(graph), without_writes(kept))


def shapes_of(args: Any, kwargs: Any) -> dict[str, torch.Size]:
    """The shapes of `tensors_of`, by name; of none where that gives None."""
    return {name: tensor.shape for name, tensor in (tensors_of(args, kwargs) or {}).items()}


def tensors_of(args: Any, kwargs: Any) -> dict[str, torch.Tensor] | None:
    """Name the tensors among the inputs of a call as its trace does; None where some are no plain ones.

    >>> list(tensors_of((torch.zeros(2), [torch.zeros(3)]), {"mask": None}))
    ['input 0', 'input 1.0']
    """
    found: dict[str, torch.Tensor] = {}

    def look(path: tuple[str, ...], value: Any) -> bool:
        if type(value) is torch.Tensor:
            found[".".join(path)] = value
            return value.layout is torch.strided and value.is_contiguous()
        if type(value) in (tuple, list):
            return all(look((*path, str(at)), one) for at, one in enumerate(value))
        if type(value) is dict:
            return all(look((*path, str(name)), one) for name, one in value.items())
        return isinstance(value, _PLAIN)

    plain = all(look((f"input {at}",), one) for at, one in enumerate(args))
    return found if plain and all(look((name,), one) for name, one in kwargs.items()) else None


def _said_of_call(tensors: Mapping[str, torch.Tensor], args: Any, kwargs: Any) -> Iterable[object]:
    """What a call is but for its sizes."""
    storages: dict[int, int] = {}
    for name, tensor in tensors.items():
        same = storages.setdefault(storage_key(tensor), len(storages))
        yield name, tensor.ndim, tensor.dtype, tensor.device, tensor.requires_grad, same
    yield _without_tensors((args, kwargs))


def _without_tensors(tree: Any) -> object:
    if isinstance(tree, torch.Tensor):
        return "tensor"
    if isinstance(tree, tuple | list):
        return type(tree).__name__, *map(_without_tensors, tree)
    if isinstance(tree, dict):
        return {name: _without_tensors(one) for name, one in tree.items()}
    return tree


def _said_of_model(model: torch.nn.Module) -> Iterable[object]:
    """Modules with their plain values and code, parameters and buffers by shape, the environment."""
    state = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in state:
        yield name, type(tensor).__name__, tuple(tensor.shape), tensor.dtype, tensor.requires_grad
    kinds: dict[type, None] = {}
    for name, module in model.named_modules():
        kinds[type(module)] = None
        yield name, type(module).__qualname__, module.extra_repr(), _plain_values(module)
    for kind in kinds:
        for base in kind.__mro__:
            if base.__module__.partition(".")[0] not in ("torch", "builtins"):
                yield (
                    base.__qualname__,
                    [_code(f) for f in vars(base).values() if isinstance(f, FunctionType)],
                )
    yield environment([tensor for _, tensor in state])


def _plain_values(owner: object, *, deep: bool = True) -> object:
    """Attributes that are plain values, in objects such as a configuration too; private ones may be ids."""
    found: dict[str, object] = {}
    for name, value in vars(owner).items():
        if name.startswith("_"):
            continue
        if isinstance(value, tuple | list):
            few = len(value) <= _MOST_ITEMS and all(isinstance(one, _PLAIN) for one in value)
            found[name] = value if few else len(value)
        elif isinstance(value, _PLAIN):
            found[name] = value
        elif (
            deep
            and hasattr(value, "__dict__")
            and not isinstance(value, torch.nn.Module | torch.Tensor | type)
        ):
            found[name] = _plain_values(value, deep=False)
    return sorted(found.items(), key=lambda item: item[0])


def _code(function: FunctionType) -> object:
    def of(code: CodeType) -> object:
        constants = [of(one) if isinstance(one, CodeType) else one for one in code.co_consts]
        return code.co_code, code.co_names, [one for one in constants if not isinstance(one, frozenset)]

    return function.__name__, of(function.__code__)
