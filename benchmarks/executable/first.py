"""N3: how soon the first step is done, and how soon a refusal comes, in processes that know nothing.

Every figure is taken in a process of its own, in CPU seconds from the first call of the model to the end
of one training step, update included, or to the refusal; imports and the making of the model are left
out. Prices and plans are kept in a folder that is empty at first, native libraries apart:

    aot_eager    torch.compile with torch's own graph backend, which plans nothing; where it makes no
                 graph at all, as of a recurrent net, it is a plain step, and no ratio is taken
    ample        a budget that needs no recomputation, nothing known
    refused      1 KiB, nothing known; of it, capturing takes about what aot_eager takes
    tight        5 % more than the refusal names, nothing known but what the refusal left: prices
    second       the same again in another process, which finds prices and plans
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict
from tightrope.core import TightropeError
from tightrope.native import library, sources

_EAGER = "aot_eager"
_AMPLE = "64GiB"
_TIGHT = 1.05
_MOST = {"ample": 2.0, "tight": 15.0, "refused": 5.0, "second": 2.0}
"""Times of aot_eager; CPU seconds; CPU seconds above aot_eager, twice."""
_SECONDS = 300


def _cases(settings: Settings) -> Sequence[str]:
    from benchmarks.witness.families import FAMILIES

    return tuple(FAMILIES)[:: 6 if settings.quick else 1]


def _rows(name: str, _: Settings) -> Iterator[Row]:
    row: Row = {"net": name}
    with tempfile.TemporaryDirectory() as folder:
        first, other = Path(folder) / "first", Path(folder) / "other"
        for empty in (first, other):
            empty.mkdir(mode=0o700)
            for name in sources():
                shutil.copy2(library(name), empty)
        peer = _fresh(name, _EAGER, first)
        row |= {"eager": peer["cpu"], "graphs": peer["graphs"]}
        row["ample"] = _fresh(name, _AMPLE, first)["cpu"]
        refused = _fresh(name, "1KiB", other)
        row["refused"], named = refused["cpu"], refused["named"]
        if not named:
            yield row | {"note": f"no budget named: {refused['said'][:60]}"}
            return
        tight = str(int(_TIGHT * named))
        for which in ("tight", "second"):
            found = _fresh(name, tight, other)
            row[which] = found["cpu"]
            row["note"] = found["said"][:60]
    yield row


def _fresh(name: str, how: str, folder: Path) -> dict[str, Any]:
    """Run one step of a family in a process of its own."""
    environment = {**os.environ, "TIGHTROPE_CACHE": str(folder), "TIGHTROPE_PLANS": str(folder / "plans")}
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.executable.first", name, how],
        env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise TightropeError(f"{name} with {how}: {ran.stderr[-400:]}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _verdicts(rows: Sequence[Row], _: Settings) -> list[Verdict]:
    over = {
        "ample": [(row["ample"] / row["eager"], row["net"]) for row in rows if row["graphs"]],
        "tight": [(row["tight"], row["net"]) for row in rows if "tight" in row],
        "refused": [(row["refused"] - row["eager"], row["net"]) for row in rows if "refused" in row],
        "second": [(row["second"] - row["eager"], row["net"]) for row in rows if "second" in row],
    }
    words = {
        "ample": "ample, times aot_eager",
        "tight": "tight, CPU-s",
        "refused": "refused, CPU-s above aot_eager",
        "second": "second process, CPU-s above aot_eager",
    }
    told, met = [], bool(rows)
    for which, found in over.items():
        late = [name for value, name in found if value > _MOST[which]]
        met &= bool(found) and not late
        worst, name = max(found, default=(0.0, "none"))
        more = f", over {_MOST[which]:g}: {', '.join(late)}" if late else ""
        told.append(f"{words[which]}: worst {worst:.2f} ({name}){more}")
    return [Verdict("N3", met, "; ".join(told))]


def _seconds(value: float) -> str:
    return f"{value:.1f}"


BAR = Bar(
    ids=("N3",),
    title="CPU seconds of the first step in a fresh process, and of a refusal",
    columns=(
        Column("net", "family", 20),
        Column("eager", "aot_eager", 9, _seconds),
        Column("graphs", "graphs", 6),
        Column("ample", "ample", 7, _seconds),
        Column("refused", "refused", 8, _seconds),
        Column("tight", "tight", 7, _seconds),
        Column("second", "second", 7, _seconds),
        Column("note", "note", 60),
    ),
    cases=_cases,
    rows=_rows,
    verdicts=_verdicts,
)


def _measure(name: str, how: str) -> dict[str, Any]:
    """Run one step in this process."""
    import torch

    import tightrope
    from benchmarks.witness.families import FAMILIES
    from tightrope.core import InfeasibleError

    torch.set_num_threads(1)
    torch.manual_seed(0)
    trial = FAMILIES[name].make()
    said, named = "", None
    began = time.process_time()
    for model in trial.models:
        if how == _EAGER:
            model._compiled_call_impl = torch.compile(_inlined(model._call_impl), backend=_EAGER)
        else:
            tightrope.compile(model, budget=how, progress=False)
    try:
        trial.step()
    except (InfeasibleError, torch.OutOfMemoryError) as error:
        said = str(error)
        found = re.search(r"budget=(\d+)", said)
        tried = getattr(error, "budget_to_try", None) or getattr(error, "smallest_found", None)
        named = int(found[1]) if found else tried
    return {"cpu": time.process_time() - began, "said": said, "named": named, "graphs": _num_graphs()}


def _inlined(call: Callable[..., Any]) -> Callable[..., Any]:
    """Call from a file that torch.compile looks into: it skips those of torch, ``Sequential`` among them."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return run


def _num_graphs() -> int:
    """Number of graphs that torch.compile made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.stdout.write(json.dumps(_measure(*sys.argv[1:])) + "\n")
