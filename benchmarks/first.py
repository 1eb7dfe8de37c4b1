"""How long a new user waits: ``python -m benchmarks first [--rounds 1]``.

A wheel with its native part is installed in an environment of its own, with no compiler on the path and a
cache folder that is empty. Each row runs there in a process of its own, timed from the shell:

    estimate   `tightrope estimate train.py:build` for models of 124M parameters, one sequence of 512: one in
               plain torch, one of transformers. Every op is measured, as no price is known yet.
    compile    `import tightrope`, the first `tightrope.compile` of a small net and its first step, after
               `import torch`. The budget has to be enforced.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rich.console import Console

import native_wheel as wheel
from tightrope.native import prebuilt

_PLAIN: Final = """
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(768), nn.LayerNorm(768)
        self.heads, self.out = nn.Linear(768, 2304), nn.Linear(768, 768)
        self.wide, self.narrow = nn.Linear(768, 3072), nn.Linear(3072, 768)

    def forward(self, x):
        query, key, value = self.heads(self.before(x)).unflatten(-1, (3, 12, 64)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(12)]), nn.LayerNorm(768)

    def forward(self, ids):
        x = self.norm(self.blocks(self.token(ids) + self.place.weight[: ids.shape[1]]))
        return functional.cross_entropy((x @ self.token.weight.T)[0, :-1], ids[0, 1:])


def build():
    return Language(), torch.randint(50257, (1, 512))
"""
_TRANSFORMERS: Final = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build():
    ids = torch.randint(50257, (1, 512))
    return GPT2LMHeadModel(GPT2Config()), {"input_ids": ids, "labels": ids}
"""
_COMPILE: Final = """
import time

import torch

start, cpu = time.perf_counter(), time.process_time()
import tightrope
from tightrope.native import compiler

assert "site-packages" in tightrope.__file__ and compiler() is None
pairs = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(8)]
net = torch.nn.Sequential(*pairs)
model = tightrope.compile(net, budget="8MiB")
model(torch.randn(256, 256)).sum().backward()
taken = time.perf_counter() - start, time.process_time() - cpu
assert tightrope.report(model).enforced
print(*taken)
"""


class _Row(NamedTuple):
    """What is run: a file, by `tightrope estimate` or by itself, and the seconds it may take."""

    what: str
    text: str
    bar: float
    estimated: bool


_ROWS: Final = (
    _Row("estimate, plain torch", _PLAIN, 15, estimated=True),
    _Row("estimate, transformers", _TRANSFORMERS, 15, estimated=True),
    _Row("first compile and step", _COMPILE, 4, estimated=False),
)


class _Took(NamedTuple):
    """Seconds on the wall, and of processors."""

    wall: float
    cpu: float


def installed(made: Path, folder: Path, interpreter: str = sys.executable) -> Path:
    """Install a wheel in a new environment, with the libraries of another; return its Python."""
    subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    (site,) = (folder / "lib").glob("python*/site-packages")
    # a line that begins with "import" is run: files of the same kind in that folder are followed too
    libraries = str(wheel.torch_of(interpreter).parent)
    (site / "libraries.pth").write_text(f"import site; site.addsitedir({libraries!r})\n")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index"]
    subprocess.run([*pip, "-q", "--no-deps", "--ignore-installed", made], check=True)
    return python


def without_compiler(cache: Path) -> dict[str, str]:
    """Environment variables of a process that finds no compiler and no kept file."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return kept | {"CXX": "/no/compiler", "PATH": "", "TIGHTROPE_CACHE": str(cache)}


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows; 1 where one takes longer than its bar."""
    parser = ArgumentParser(prog="python -m benchmarks first")
    parser.add_argument("--rounds", type=int, default=1, help="of which the median counts")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = wheel.make([prebuilt.torch_folder()], Path("build/libraries").absolute(), folder / "dist")
        python = installed(made, folder / "new")
        console.print(f"wheel: {made.stat().st_size / 1e6:.1f} MB; load: {os.getloadavg()[0]:.1f}")
        console.print(f"{'what':32}{'wall, s':>9}{'CPU, s':>9}{'bar':>6}")
        met = True
        for row in _ROWS:
            (folder / "train.py").write_text(row.text)
            took = [_timed(python, folder, row) for _ in range(options.rounds)]
            wall, cpu = median(one.wall for one in took), median(one.cpu for one in took)
            said = "ok" if wall <= row.bar else "missed"
            console.print(f"{row.what:32}{wall:9.1f}{cpu:9.1f}{row.bar:6.0f}  {said}")
            met = met and wall <= row.bar
    return int(not met)


def _timed(python: Path, folder: Path, row: _Row) -> _Took:
    """Run the file once with an empty cache; time an estimate, and believe what the other file prints."""
    command = ["-m", "tightrope", "estimate", "train.py:build"] if row.estimated else ["train.py"]
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [python, *command],
        cwd=folder, env=without_compiler(Path(tempfile.mkdtemp(dir=folder))), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    wall, after = time.perf_counter() - start, os.times()
    if done.returncode:
        raise SystemExit(done.stderr)
    if row.estimated:
        used = after.children_user + after.children_system
        return _Took(wall, used - before.children_user - before.children_system)
    return _Took(*map(float, done.stdout.split()))
