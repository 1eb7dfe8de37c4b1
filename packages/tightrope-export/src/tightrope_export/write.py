"""Write a form as a Python file that needs nothing but PyTorch.

Everything that comes from a model or a plan stands in the file as a literal, and module names are checked
first: nothing of a plan is ever run as code.
"""

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources

from tightrope.core import TightropeError, format_bytes, printable
from tightrope_export.values.form import Form, FormPromise

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


def python_file(
    form: Form,
    promise: FormPromise,
    statistics: Mapping[str, Sequence[tuple[str, str]]],
    *,
    model: str,
    stem: str,
    layers: str = "",
) -> str:
    """Write a form as the text of a Python file.

    Args:
        form: what is computed again.
        promise: its figures.
        statistics: by path, the (owner inside of it, buffer) that it writes.
        model: class of the model, for people.
        stem: name of the file without its ending.
        layers: path of the list of layers that all regions are members of; empty = any modules.

    Raises:
        TightropeError: a name of a module or an op is none.
    """
    for path in (*(region.path for region in form), *([layers] if layers else [])):
        check_path(path)
    for name in (name for region in form for name, _ in region.saved):
        if not all(part.isidentifier() for part in name.split(".")):
            raise TightropeError(f"{printable(name)[:80]!r} is no name of an op: plan the model again.")
    for path, owner, name in ((path, *one) for path, owners in statistics.items() for one in owners):
        for text in (path, owner or "0", name):
            check_path(text)
    selective = any(region.saved for region in form)
    names = ("CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts", "checkpoint")
    filled = {
        "MODEL": model if model.isidentifier() else "a model",
        "STEM": stem if stem.isidentifier() else "recompute",
        "FORECAST": f"peak {format_bytes(promise.total)} ({promise.total} bytes, {promise.peak} above "
        f"what the\ncaller holds), {promise.ratio:.3f} times the time of the plain step",
        "IMPORTS": names[0] if selective else names[1],
        "CONTEXTS": _CONTEXTS if selective else _PLAIN_CONTEXTS,
        "REGIONS": _regions(form, layers) + _table("STATISTICS", "str, str", statistics),
    }
    found = resources.files("tightrope_export").joinpath("recompute.txt").read_text(encoding="utf-8")
    return re.sub("@([A-Z]+)@", lambda match: filled[match[1]], found)


def _regions(form: Form, layers: str) -> str:
    if not layers:
        return _table("REGIONS", "str, int", {region.path: region.saved for region in form})
    numbers = [int(region.path.rpartition(".")[2]) for region in form]
    return (
        f'\nLAYERS = "{layers}"\nCOMPUTED_AGAIN = {_numbers(numbers)}\n'
        'REGIONS: dict[str, list[tuple[str, int]]] = {f"{LAYERS}.{n}": [] for n in COMPUTED_AGAIN}\n'
    )


def _table(name: str, kinds: str, rows: Mapping[str, Sequence[tuple[str, str | int]]]) -> str:
    """A dict of lists of pairs as source; every text in it was checked."""
    lines = [f"{name}: dict[str, list[tuple[{kinds}]]] = {{"]
    for path, pairs in rows.items():
        inner = [f'        ("{first}", {json.dumps(second)}),' for first, second in pairs]
        lines += [f'    "{path}": [', *inner, "    ],"] if inner else [f'    "{path}": [],']
    return "\n".join((*lines, "}\n")) if rows else f"{lines[0]}}}\n"


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


def _numbers(numbers: Sequence[int]) -> str:
    """A range where there is one, else a tuple."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    found = range(numbers[0], numbers[-1] + 1, step) if numbers and step > 0 else range(0)
    if len(numbers) > 1 and [*found] == [*numbers]:
        return f"range({found.start}, {found.stop}, {found.step})"
    return "(" + "".join(f"{number}, " for number in numbers).strip() + ")"
