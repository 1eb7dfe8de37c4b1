"""Write a form as a Python file that needs nothing but PyTorch.

Everything that comes from a model or a plan stands in the file as a literal, and module names are checked
first: nothing of a plan is ever run as code.
"""

from collections.abc import Mapping, Sequence

from tightrope.core import TightropeError, format_bytes, printable
from tightrope_export.values.form import Form, Promise

_HEAD = '''"""Modules of {model} that are computed again in the backward.

Forecast: {forecast}.
{more}
    from {stem} import apply
    apply(model)     # before the first step; remove(model) takes it back
"""

import functools
import types
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import {imports}
'''
_CHECKPOINT = '''

class _Again:
    """Keeps running statistics as they are while a module runs again."""

    def __init__(self, owners: list[tuple[nn.Module, str]], inner: Any = None) -> None:
        self.owners, self.inner, self.before = owners, inner, []

    def __enter__(self) -> None:
        self.before = [(owner, name, getattr(owner, name)) for owner, name in self.owners]
        for owner, name, value in self.before:
            setattr(owner, name, value.clone())
        if self.inner is not None:
            self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.inner is not None:
            self.inner.__exit__(*error)
        for owner, name, value in self.before:
            setattr(owner, name, value)
        self.before = []


class _Nothing:
    """Is entered by the first run."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass

'''
_PLAIN_CONTEXTS = """
def _contexts(owners: list[tuple[nn.Module, str]], saved: frozenset[tuple[str, int]]) -> tuple[Any, Any]:
    return _Nothing(), _Again(owners)

"""
_CONTEXTS = """
def _contexts(owners: list[tuple[nn.Module, str]], saved: frozenset[tuple[str, int]]) -> tuple[Any, Any]:
    if not saved:
        return _Nothing(), _Again(owners)
    counts: dict[tuple[bool, str], int] = {}

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        run, name = bool(context.is_recompute), str(op)
        number = counts.get((run, name), 0)
        counts[run, name] = number + 1
        keep = (name, number) in saved
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.MUST_RECOMPUTE

    first, second = create_selective_checkpoint_contexts(policy)
    return first, _Again(owners, second)

"""
_APPLY = '''
def _wrapped(module: nn.Module, path: str) -> Any:
    saved, statistics = frozenset(REGIONS[path]), STATISTICS.get(path, [])

    def again(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        forward = functools.partial(type(self).forward, self, **kwargs)
        if not torch.is_grad_enabled():
            return forward(*args)
        owners = [(self.get_submodule(owner), name) for owner, name in statistics if self.training]
        return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: _contexts(owners, saved))

    return types.MethodType(again, module)


def apply(model: nn.Module) -> nn.Module:
    """Let the modules run again in the backward; values and gradients stay as they are."""
    for path in REGIONS:
        module = model.get_submodule(path)
        if "forward" in vars(module):
            raise ValueError(f"{path}: its forward was replaced before.")
        module.forward = _wrapped(module, path)
    return model


def remove(model: nn.Module) -> nn.Module:
    """Take `apply` back."""
    for path in REGIONS:
        vars(model.get_submodule(path)).pop("forward", None)
    return model
'''


def python_file(
    form: Form,
    promise: Promise,
    statistics: Mapping[str, Sequence[tuple[str, str]]],
    *,
    model: str,
    stem: str,
    layers: str = "",
    more: Sequence[str] = (),
) -> str:
    """Write a form as the text of a Python file.

    Args:
        form: what is computed again.
        promise: its figures.
        statistics: by path, the (owner inside of it, buffer) that it writes.
        model: class of the model, for people.
        stem: name of the file without its ending.
        layers: path of the list of layers that all regions are members of; empty = any modules.
        more: sentences for its head.

    Raises:
        TightropeError: a name of a module or an op is none.
    """
    for region in form:
        check_path(region.path)
        for name, _ in region.saved:
            if not all(part.isidentifier() for part in name.split(".")):
                raise TightropeError(f"{printable(name)[:80]!r} is no name of an op: plan the model again.")
    selective = any(region.saved for region in form)
    names = ["CheckpointPolicy", "checkpoint", "create_selective_checkpoint_contexts"]
    head = _HEAD.format(
        model=model if model.isidentifier() else "a model",
        forecast=f"peak {format_bytes(promise.total)} ({promise.total} bytes, of them {promise.peak} above what "
        f"the\ncaller holds), {promise.ratio:.3f} times the time of the plain step",
        more="".join(f"{printable(line)}\n" for line in more),
        stem=stem if stem.isidentifier() else "recompute",
        imports=", ".join(names if selective else names[1:2]),
    )
    parts = [head]
    if layers:
        check_path(layers)
        numbers = [int(region.path.rpartition(".")[2]) for region in form]
        parts.append(f"\nLAYERS = {_text(layers)}\nCOMPUTED_AGAIN = {_numbers(numbers)}\n")
        parts.append(
            'REGIONS: dict[str, list[tuple[str, int]]] = {f"{LAYERS}.{n}": [] for n in COMPUTED_AGAIN}\n'
        )
    else:
        parts.append("\nREGIONS: dict[str, list[tuple[str, int]]] = {\n")
        for region in form:
            parts.append(f"    {_text(region.path)}: [")
            parts += [f"\n        ({_text(name)}, {number:d})," for name, number in region.saved]
            parts.append("\n    ],\n" if region.saved else "],\n")
        parts.append("}\n")
        parts.append('"""Modules, each with the results that it keeps: (op, number in one call)."""\n')
    parts.append("STATISTICS: dict[str, list[tuple[str, str]]] = {\n")
    for path, owners in statistics.items():
        parts.append(f"    {_text(path)}: [\n")
        for owner, name in owners:
            check_path(owner or "0")
            check_path(name)
            parts.append(f"        ({_text(owner)}, {_text(name)}),\n")
        parts.append("    ],\n")
    parts.append("}\n" + '"""Buffers that a module writes, by the module inside of it that has them."""\n')
    text = "".join(parts).replace("= {\n}\n", "= {}\n") + _CHECKPOINT
    return text + (_CONTEXTS if selective else _PLAIN_CONTEXTS) + _APPLY


def check_path(path: str) -> None:
    """Check that a text is the path of a module.

    Raises:
        TightropeError: quotes it.

    >>> check_path("layers.0.mlp")
    """
    parts = path.split(".")
    if len(path) > 400 or not all(
        part.isidentifier() or (part.isascii() and part.isdigit()) for part in parts
    ):
        raise TightropeError(f"{printable(path)[:80]!r} is no path of a module: rename it, and export again.")


def _text(name: str) -> str:
    """A literal in double quotes, of a name that was checked."""
    return f'"{name}"'


def _numbers(numbers: Sequence[int]) -> str:
    """A range where there is one, else a tuple."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    found = range(numbers[0], numbers[-1] + 1, step) if numbers and step > 0 else range(0)
    if len(numbers) > 1 and [*found] == [*numbers]:
        return f"range({found.start}, {found.stop}, {found.step})"
    return "(" + "".join(f"{number}, " for number in numbers).strip() + ")"
