"""What a command works on where it is ``FILE.py:FUNCTION``, which builds a model and one batch.

A Python file is run, as `python FILE.py` would run it, because the user names
a function in it; nothing else that is given to a command is ever executed. Torch is imported once that
function has returned: what is wrong before is said at once.
"""

import importlib.util
import sys
from pathlib import Path
from symtable import symtable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tightrope.core import TightropeError

if TYPE_CHECKING:
    import torch

_MAKING_NAMES: Final = (b"import *", b"globals", b"__getattr__", b"exec", b"setattr", b"vars", b"coding")
"""Words of a file whose names, or whose text, only running it tells."""


class Built(NamedTuple):
    """A model and the arguments of one call."""

    model: "torch.nn.Module"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def is_function(target: str) -> bool:
    """Tell whether a target names a function of a Python file, rather than a graph file."""
    return target.rpartition(":")[0].endswith(".py")


def build(target: str) -> Built:
    """Import ``FILE.py:FUNCTION`` and call it; it returns (model, inputs).

    Raises:
        TightropeError: the target is malformed, absent, fails, or returns something else.
    """
    return checked(target, called(target))


def called(target: str) -> object:
    """Import ``FILE.py:FUNCTION`` and return what it returns.

    Raises:
        TightropeError: the target is malformed, absent, or fails.
    """
    file, _, function = target.rpartition(":")
    if not is_function(target) or not function.isidentifier():
        raise TightropeError(
            f"{target!r} does not name a function: write FILE.py:FUNCTION, e.g. train.py:build."
        )
    try:
        made = getattr(_imported(file), function, None) if _may_have(file, function) else None
        result = made() if callable(made) else None
    except TightropeError:
        raise
    except (Exception, SystemExit) as error:
        raise TightropeError(f"{target!r} failed: {type(error).__name__}: {first_line(error)}") from error
    if made is None:
        raise TightropeError(f"{file!r} has no function {function!r}: give one of those that it defines.")
    if "torch" not in sys.modules:
        raise TightropeError(f"{target!r} must return (model, inputs), the model a torch.nn.Module.")
    return result


def _may_have(file: str, name: str) -> bool:
    """Look for a name in a file without running it, which takes seconds where torch is imported there."""
    path = Path(file)
    if "\0" in file or not path.is_file():
        raise TightropeError(f"no file {file!r}: give the path of a Python file.")
    text = path.read_bytes()
    if any(word in text for word in _MAKING_NAMES):
        return True
    return name in symtable(text.decode(), file, "exec").get_identifiers()


def _imported(file: str) -> ModuleType:
    path = Path(file)
    name = f"tightrope_target_{path.stem}"
    while name in sys.modules:  # compiled code finds modules by their names
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TightropeError(f"{file!r} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    # as for `python FILE.py`: its neighbours can be imported, and its classes can be looked up
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def checked(target: str, result: object) -> Built:
    """Take what a target returned apart.

    Raises:
        TightropeError: it is not (model, inputs).
    """
    import torch

    match result:
        case (torch.nn.Module() as model, dict() as kwargs) if all(isinstance(key, str) for key in kwargs):
            return Built(model, (), kwargs)
        case (torch.nn.Module() as model, tuple() | list() as args):
            return Built(model, tuple(args), {})
        case (torch.nn.Module() as model, torch.Tensor() as only):
            return Built(model, (only,), {})
    raise TightropeError(
        f"{target!r} must return (model, inputs): inputs is a tensor, a tuple, or a dict of keywords."
    )


def first_line(error: BaseException) -> str:
    """Give the first line of what an error says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"
