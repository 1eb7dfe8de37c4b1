"""What calls of ever new shapes take: budgets, plans, captures, and the first step of a second process.

    python -m benchmarks shapes [--shapes N] [--nets gpt2,conv] [--rounds N]

Every net trains on random lengths, or image sizes, from 33 to 256, in six declared buckets, at a share of
what the largest needs. A process of its own makes ``--shapes`` steps and compares each with eager, bit for
bit. *Second* processes then take their first steps from what the first one kept on disk, in turn with
processes of ``torch.compile(backend="aot_eager")``, for that shape alone and with ``dynamic=True``, which
takes any shape as we do. *Unknown* ones find prices and plans, but nothing about the call: so does one whose
first shape falls into a bucket that no process met, or after a change of the model. Figures are CPU seconds
of the process from the first call to the end of the first backward, the same with all that the process took
before (imports, building the model), and of the first step of another bucket: median, smallest and largest.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from rich.console import Console
from torch import Tensor, nn

LARGEST: Final = (48, 64, 96, 128, 192, 256)
_PEERS: Final = ("second", "unknown", "aot_eager", "aot_eager dynamic")


class Pictures(nn.Module):
    """A classifier of images of any size."""

    def __init__(self) -> None:
        super().__init__()
        stages = [(3, 16), (16, 32), (32, 32), (32, 32)]
        self.stages = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False) for a, b in stages)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b in stages)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        for stage, norm in zip(self.stages, self.norms, strict=True):
            images = norm(stage(images)).relu()
        return nn.functional.cross_entropy(self.head(images.mean((2, 3))), labels)


def _gpt2() -> tuple[nn.Module, Callable[[int], dict[str, Tensor]], Callable[[int], dict[str, Any]]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=2, vocab_size=500, n_positions=256, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    config._attn_implementation = "eager"

    def inputs(length: int) -> dict[str, Tensor]:
        ids = torch.randint(0, 500, (4, length))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}

    return GPT2LMHeadModel(config), inputs, lambda length: {"input_ids": (4, length)}


def _conv() -> tuple[nn.Module, Callable[[int], dict[str, Tensor]], Callable[[int], dict[str, Any]]]:
    def inputs(size: int) -> dict[str, Tensor]:
        return {"images": torch.randn(8, 3, size, size), "labels": torch.randint(0, 10, (8,))}

    return Pictures(), inputs, lambda size: {"images": (8, 3, size, size)}


_NETS: Final = {"gpt2": _gpt2, "conv": _conv}
_SHARE: Final = {"gpt2": "75%", "conv": "90%"}
"""Budgets; the conv net has no plan below 85 %."""
_STEPS: Final = {"first step": 100, "first step of another bucket": 200}
"""Of a later process: sizes."""
_WITH_IMPORTS: Final = "first step, with imports and the model"


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the figures of every net."""
    parser = ArgumentParser(prog="python -m benchmarks shapes")
    parser.add_argument("--shapes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nets", default=",".join(_NETS))
    parser.add_argument("--part", default="", help="of one process: NET:WHAT, prints JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.part:
        net, _, what = options.part.partition(":")
        with redirect_stdout(sys.stderr):
            found = _many(net, options.shapes) if what == "many" else _first(net, what)
        print(json.dumps(found))
        return 0
    for net in options.nets.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = _process(net, "many", folder, options.shapes)
            console.print(f"{net}: " + ", ".join(f"{name} {value}" for name, value in found.items()))
            times: dict[str, list[dict[str, float]]] = {peer: [] for peer in _PEERS}
            for _ in range(options.rounds):
                for peer in _PEERS:
                    times[peer].append(_later(net, peer, folder, options.shapes))
        for step in times["aot_eager"][0]:
            least = median(one[step] for one in times["aot_eager"])
            for peer in _PEERS:
                every = [one[step] for one in times[peer]]
                console.print(
                    f"{net}: {step}, {peer}: {median(every):.2f} CPU-s, {min(every):.2f}-{max(every):.2f}; "
                    f"{median(every) / least:.2f} of aot_eager"
                )
    return 0


def _later(net: str, peer: str, folder: str, num: int) -> dict[str, float]:
    """The first steps of a process that finds what another one kept, and leaves it as it was."""
    with tempfile.TemporaryDirectory() as copied:
        left_out = shutil.ignore_patterns(*["shapes-*"] * (peer == "unknown"))
        shutil.copytree(folder, copied, ignore=left_out, dirs_exist_ok=True)
        return _process(net, peer, copied, num)


def _process(net: str, what: str, folder: str, num: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", "shapes", "--part", f"{net}:{what}", "--shapes", str(num)]
    done = subprocess.run(
        command, env=os.environ | {"TIGHTROPE_PLANS": str(Path(folder))}, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _many(name: str, num: int) -> dict[str, Any]:
    import tightrope
    from tightrope.run.compile import compiled_of
    from tightrope.run.ledger.accounts import accounts
    from tightrope.run.session.unit import LENT

    torch.manual_seed(0)
    model, inputs, shape = _NETS[name]()
    plain, _, _ = _NETS[name]()
    plain.load_state_dict(model.state_dict())
    tightrope.compile(model, budget=_SHARE[name], shapes=[shape(size) for size in LARGEST], progress=False)
    draw = random.Random(0)
    sizes = draw.sample(range(33, 257), num)
    over = unlike = captures = 0
    seconds: list[float] = []
    for count, size in enumerate(sizes):
        given = inputs(size)
        began = time.perf_counter()
        _step(model, given, size)
        seconds.append(time.perf_counter() - began)
        report = tightrope.report(model)
        over += report.observed_total > report.budget
        with accounts().unlimited():
            _step(plain, given, size)
        unlike += any(
            not torch.equal(_gradient(a), _gradient(b))
            for a, b in zip(model.parameters(), plain.parameters(), strict=True)
        )
        model.zero_grad()
        plain.zero_grad()
        captures = compiled_of(model).num_graphs if count == 0 else captures
    return {
        "shapes": num,
        "buckets": len(report.buckets),
        "budgets exceeded": over,
        "plans": sum(proof.cause != LENT for proof in report.proofs),
        "captures": compiled_of(model).num_graphs,
        "captures after the first call": compiled_of(model).num_graphs - captures,
        "shapes planned by themselves": sum(one.num_alone for one in report.buckets),
        "steps unlike eager": unlike,
        "divergences": report.divergences,
        "seconds of the first step": round(seconds[0], 2),
        "median of a new shape": round(median(seconds[1:]), 2),
    }


def _first(name: str, what: str) -> dict[str, float]:
    torch.manual_seed(0)
    model, inputs, shape = _NETS[name]()
    run = model
    if what in ("second", "unknown"):
        import tightrope

        tightrope.compile(
            model, budget=_SHARE[name], shapes=[shape(size) for size in LARGEST], progress=False
        )
    else:
        dynamic = True if what.endswith("dynamic") else None
        run = torch.compile(model, backend="aot_eager", dynamic=dynamic)  # type: ignore[assignment]
    found = {}
    for step, size in _STEPS.items():
        given = inputs(size)
        began = time.process_time()
        _step(run, given, size)
        found[step] = time.process_time() - began
        found.setdefault(_WITH_IMPORTS, time.process_time())
    return found


def _step(model: nn.Module, given: dict[str, Tensor], seed: int) -> None:
    torch.manual_seed(seed)
    result: Any = model(**given)
    (result if isinstance(result, Tensor) else result.loss).backward()


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
