"""Run the command line in this process, or in one of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from tightrope.cli import app as commands

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        layers = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(depth)]
        self.body = torch.nn.ModuleDict({"[batch]": torch.nn.Sequential(*layers)})

    def forward(self, x, scale=1.0):
        return (self.body["[batch]"](x) * scale).square().mean()


def build():
    return Net(4), (torch.ones(64, 16),)


def one():
    return Net(2), torch.ones(64, 16)


def keywords():
    return Net(2), {"x": torch.ones(64, 16), "scale": 2.0}


def meta():
    with torch.device("meta"):
        return Net(4), [torch.ones(64, 16)]


def lossless():
    return torch.nn.Linear(16, 16), torch.ones(64, 16)


def untrained():
    return torch.nn.ReLU(), torch.ones(64, 16)


def fails():
    raise RuntimeError("no such data")


def leaves():
    raise SystemExit(7)


def wrong():
    return Net(2)


def mismatch():
    return Net(2), (torch.ones(64, 17),)


def breaks():
    class Broken(torch.nn.Module):
        def forward(self, x):
            return x * x.sum().item() if x.sum() > 0 else x

    return Broken(), (torch.ones(4, requires_grad=True),)


number = 3
"""


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def run(*arguments: str | Path) -> Outcome:
    """Run ``tightrope`` in this process; an exception that would be a traceback is raised here."""
    runner = CliRunner()
    with runner.isolation() as (out, err, _):
        try:
            commands.main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        return Outcome(code, out.getvalue().decode(), err.getvalue().decode())


def run_process(
    *arguments: str | Path, cwd: Path | None = None, seconds: float = 120, **environment: str
) -> Outcome:
    """Run ``python -m tightrope.cli`` as a user would, for at most so many seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "tightrope.cli", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
