"""U3: what compiling costs when a plan runs fused, beside Inductor compiling the whole graph.

Every figure is taken in a process of its own, in CPU seconds of the first step, compilers that it
starts included, on one compile thread: seconds on the wall depend on how many cores compile at once, and
on what else they do. What fusing costs is the difference to the same budget op by op (L1), with prices of
ops known; what Inductor costs is the difference to aot_eager. *Cold* finds no plan and no compiled code,
*warm* finds what the process before left of both; it is compared with L1 that finds its plan. Identical
layers are counted in a net of 12 and one of 96.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tightrope
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict
from benchmarks.zoo import build
from tightrope.core import TightropeError

_BUDGET, _BUDGET_OF_LAYERS = "75%", "90%"
_NETS = ("gpt2_small_vocab", "resnet18")
_LAYERS = (12, 96)
_MOST, _MOST_WARM, _MORE = 0.6, 3.0, 1.2
_SECONDS = 1800


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Measure one net, or the nets of identical layers."""
    if name == "layers":
        for count in _LAYERS:
            with tempfile.TemporaryDirectory() as folder:
                yield {"net": f"{count} layers", "layers": count} | _fusing(
                    f"layers {count}", settings, folder
                )
        return
    with tempfile.TemporaryDirectory() as folder:
        ours = _fusing(name, settings, folder)
        base = _fresh(name, "aot_eager", settings, folder)
        peer = {when: _fresh(name, "inductor", settings, folder) - base for when in ("cold", "warm")}
    yield {"net": name} | ours | {f"inductor_{when}": cost for when, cost in peer.items()}


def _fusing(name: str, settings: Settings, folder: str) -> Row:
    """CPU seconds that fusing adds to the first step, with empty caches and with full ones."""
    _fresh(name, "L1", settings, folder, plans="off")
    plain = [_fresh(name, "L1", settings, folder, plans="plain") for _ in range(2)]
    fused = [_fresh(name, "L2", settings, folder, plans="fused") for _ in range(2)]
    return {when: fused[k] - plain[k] for k, when in enumerate(("cold", "warm"))}


def _fresh(name: str, how: str, settings: Settings, folder: str, *, plans: str = "off") -> float:
    """CPU seconds of the first step, in a process of its own."""
    environment = {
        **os.environ,
        "TIGHTROPE_PLANS": plans if plans == "off" else _private(folder, plans),
        "TIGHTROPE_CACHE": _private(folder, "prices"),
        "TORCHINDUCTOR_CACHE_DIR": _private(folder, "compiled"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.spine.compiling", name, how, settings.scale],
        env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise TightropeError(f"{name} with {how}: {ran.stderr[-400:]}")
    return float(json.loads(ran.stdout.splitlines()[-1]))


def _private(folder: str, name: str) -> str:
    path = Path(folder) / name
    path.mkdir(mode=0o700, exist_ok=True)
    return str(path)


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge cold and warm costs, and that of 96 layers over that of 12."""
    del settings
    texts, met = [], bool(found)
    for row in found:
        if "inductor_cold" in row:
            ratio = row["cold"] / row["inductor_cold"]
            met &= ratio <= _MOST and row["warm"] <= _MOST_WARM
            texts.append(f"{row['net']} {ratio:.2f}x of Inductor cold, {row['warm']:.1f} CPU-s warm")
    deep = {row["layers"]: row["cold"] for row in found if "layers" in row}
    if len(deep) == len(_LAYERS):
        more = deep[_LAYERS[1]] / deep[_LAYERS[0]]
        met &= more <= _MORE
        texts.append(f"{_LAYERS[1]} layers {more:.2f}x of {_LAYERS[0]}")
    return [Verdict("U3", met, "; ".join(texts))]


def _seconds(value: float) -> str:
    return f"{value:.1f}"


BAR = Bar(
    ids=("U3",),
    title="CPU seconds that fusing adds to a first step, beside Inductor",
    columns=(
        Column("net", "net", 17),
        Column("cold", "fusing, cold", 12, _seconds),
        Column("warm", "warm", 6, _seconds),
        Column("inductor_cold", "Inductor, cold", 14, _seconds),
        Column("inductor_warm", "warm", 6, _seconds),
    ),
    cases=lambda settings: (*settings.choose(*_NETS), "layers"),
    rows=rows,
    verdicts=verdicts,
)


def _spent() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _measure(name: str, how: str, scale: Any) -> float:
    """Run one step in this process; its CPU seconds."""
    torch.set_num_threads(1)
    kind, _, count = name.partition(" ")
    budget = _BUDGET_OF_LAYERS if kind == "layers" else _BUDGET
    if kind == "layers":
        torch.manual_seed(0)
        model: Any = _Layers(int(count))
        inputs: tuple[torch.Tensor, ...] = (torch.rand(256, 256),)
    else:
        case = build(name, scale=scale)
        model, inputs = case.model, case.inputs
    began = _spent()
    if how in ("L1", "L2"):
        tightrope.compile(model, budget=budget, progress=False, fuse=how == "L2")
    else:
        model = torch.compile(model, backend=how, dynamic=False)
    model(*inputs).backward()
    return _spent() - began


class _Layers(nn.Module):
    """Identical residual blocks."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(*sys.argv[1:])) + "\n")
