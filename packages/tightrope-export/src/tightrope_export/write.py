"""Write a form as a Python file that needs nothing but PyTorch.

Everything that comes from a model or a plan stands in the file as a literal, and module names are checked
first: nothing of a plan is ever run as code.
"""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TypeAlias

from tightrope.core import TightropeError, format_bytes, printable
from tightrope_export.values.form import Form, FormPromise

Statistics: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]
"""By path of a module: (owner inside of it, buffer) that it writes."""


def python_file(
    form: Form, promise: FormPromise, statistics: Statistics, *, model: str, stem: str, layers: str = ""
) -> str:
    """Write a form as the text of a Python file.

    Args:
        form: what is computed again.
        promise: its figures.
        statistics: that its modules write.
        model: class of the model, for people.
        stem: name of the file without its ending.
        layers: path of the list of layers that all regions are members of; empty = any modules.

    Raises:
        TightropeError: a name of a module or an op is none.
    """
    owned = (one for pairs in statistics.values() for owner, name in pairs for one in (owner or "0", name))
    for path in (*(region.path for region in form), layers or "0", *statistics, *owned):
        check_path(path)
    for name in (name for region in form for name, _ in region.saved):
        if not all(part.isidentifier() for part in name.split(".")):
            raise TightropeError(f"{printable(name)[:80]!r} is no name of an op: plan the model again.")
    statistics = {path: names for path, names in statistics.items() if names}
    selective = any(region.saved for region in form)
    names = ("CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts", "checkpoint")
    filled = {
        "MODEL": model if model.isidentifier() else "a model",
        "STEM": stem if stem.isidentifier() else "recompute",
        "FORECAST": f"peak {format_bytes(promise.total)} ({promise.total} bytes, {promise.peak} above "
        f"what the\ncaller holds), {promise.ratio:.3f} times the time of the plain step",
        "IMPORTS": names[0] if selective else names[1],
        "REGIONS": _regions(form, layers) + _table("STATISTICS", "str, str", statistics),
    }
    found = resources.files("tightrope_export").joinpath("recompute.txt").read_text(encoding="utf-8")
    found = re.sub("#selective\n(.*?)#end\n", r"\1" if selective else "", found, flags=re.DOTALL)
    return re.sub("@([A-Z]+)@", lambda match: filled[match[1]], found)


def _regions(form: Form, layers: str) -> str:
    if not layers:
        return _table("REGIONS", "str, int", {region.path: region.saved for region in form})
    numbers = tuple(int(region.path.rpartition(".")[2]) for region in form)
    listed = textwrap.fill(f"COMPUTED_AGAIN = {numbers}", 100, subsequent_indent="    ")
    regions = 'REGIONS: dict[str, list[tuple[str, int]]] = {f"{LAYERS}.{n}": [] for n in COMPUTED_AGAIN}'
    return f'\nLAYERS = "{layers}"\n{listed}\n{regions}\n'


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
    known = all(part.isidentifier() or (part.isascii() and part.isdigit()) for part in path.split("."))
    if len(path) > 400 or not known:
        raise TightropeError(f"{printable(path)[:80]!r} is no path of a module: rename it, and export again.")
