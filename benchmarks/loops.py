"""Nine loops as users own them, each with a budget that a user would type: ``python -m benchmarks loops``.

    python -m benchmarks loops [--only unet,gan] [--small] [--json FILE]

Each way of a loop runs in a process of its own: as it is, under `torch.compile` (Inductor, with an empty
cache), and under `tightrope.compile` with no prices and no plans known. The budget is four fifths of what the
plain loop was seen to need; where it is refused, the number that the refusal names is typed in.

*tries*: budgets until every step ran, at most two are wanted. *bits*: whether every loss and the weights at
the end are those of the plain loop; ``named`` = they differ, and the report names the op. *first*: seconds up
to the end of the first update, over those under `torch.compile`; at most three are wanted.
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
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook

import tightrope
from benchmarks._measure import HighWater, digest
from benchmarks.zoo.unet import UNet
from tightrope.core import format_bytes
from tightrope.core.cache import own_folder
from tightrope.run.ledger.accounts import accounts

Start = Callable[..., nn.Module]
"""Compiles a model in place, in the way that is asked for."""
_SHARE, _MOST_TRIES, _MOST_FIRST = 0.8, 4, 3.0
_WAYS: Final = ("plain", "compile", "tightrope")


def _trained(model: nn.Module, batches: Iterator[Any], loss: Callable[..., Tensor], **options: Any) -> Any:
    """Yield the loss of each update of a plain loop."""
    every = options.pop("every", 1)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for number, batch in enumerate(batches):
        found = loss(batch) / every
        found.backward()
        if (number + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
            yield float(found.detach())


def _draws(make: Callable[[torch.Generator], Any], count: int) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield make(generator)


def unet(start: Start, small: bool) -> Iterator[float]:
    """A U-Net in bfloat16, with two batches per update."""
    size = 32 if small else 128
    model = UNet(4 if small else 16, depth=3 if small else 4, num_classes=2)
    start(model)

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.cross_entropy(model(batch[0]), batch[1])

    def make(g: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(2, 3, size, size, generator=g), torch.randint(2, (2, size, size), generator=g)

    yield from _trained(model, _draws(make, 8), loss, every=2)
    yield from _weights(model)


def gpt2(start: Start, small: bool) -> Iterator[float]:
    """GPT-2 124M under the Trainer of transformers, evaluated, saved and resumed."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    shape: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 256} if small else {}
    rows = list(_draws(lambda g: torch.randint(256, (64,), generator=g), 8))
    data: Any = [{"input_ids": row, "labels": row} for row in rows]
    found: list[float] = []

    class Noted(TrainerCallback):
        def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
            found.extend(logs[name] for name in ("loss", "eval_loss") if name in logs)

    with tempfile.TemporaryDirectory() as folder:
        model: Any = None
        for steps in (2, 4):
            torch.manual_seed(0)
            model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
            start(model)
            arguments = TrainingArguments(
                folder, max_steps=steps, per_device_train_batch_size=2, eval_strategy="steps", eval_steps=2,
                save_steps=2, logging_steps=1, use_cpu=True, report_to=[], disable_tqdm=True,
            )  # fmt: skip
            shown: Any = {"train_dataset": data, "eval_dataset": data[:2], "callbacks": [Noted()]}
            trainer = Trainer(model, arguments, **shown)
            trainer.train(resume_from_checkpoint=steps > 2)
            yield from found
            found.clear()
        yield from _weights(model)


def gan(start: Start, small: bool) -> Iterator[float]:
    """A GAN under Lightning: two optimizers, stepped by hand."""
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset

    width = 64 if small else 512

    def net(first: int, last: int) -> nn.Module:
        layers = [nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(0.2)) for _ in range(4)]
        return nn.Sequential(nn.Linear(first, width), *layers, nn.Linear(width, last))

    class Gan(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.make, self.judge, self.losses = net(16, 64), net(64, 1), list[float]()
            start(self.make)
            start(self.judge)

        def training_step(self, batch: list[Tensor], _: int) -> None:
            optimizers: Any = self.optimizers()
            first, second = optimizers
            noise = torch.randn(len(batch[0]), 16)
            real, made = self.judge(batch[0]), self.judge(self.make(noise).detach())
            loss = functional.softplus(-real).mean() + functional.softplus(made).mean()
            first.zero_grad()
            self.manual_backward(loss)
            first.step()
            fooled = functional.softplus(-self.judge(self.make(noise))).mean()
            second.zero_grad()
            self.manual_backward(fooled)
            second.step()
            self.losses += [float(loss.detach()), float(fooled.detach())]

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.judge, self.make)]

    model = Gan()
    quiet: Any = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    rows = next(_draws(lambda g: torch.randn(4 * 512, 64, generator=g), 1))
    Trainer(accelerator="cpu", max_epochs=1, **quiet).fit(model, DataLoader(TensorDataset(rows), 512))
    yield from model.losses
    yield from _weights(model)


def lora(start: Start, small: bool) -> Iterator[float]:
    """Adapters of PEFT on a Llama, in a loop of one's own."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    wide = 1 if small else 4
    config = LlamaConfig(
        vocab_size=256, hidden_size=64 * wide, intermediate_size=160 * wide, num_hidden_layers=2 * wide,
        num_attention_heads=4, use_cache=False,
    )  # fmt: skip
    wanted = LoraConfig(r=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    net: Any = LlamaForCausalLM(config)
    model: Any = get_peft_model(net, wanted)
    start(model)
    batches = _draws(lambda g: torch.randint(256, (4, 32 * wide), generator=g), 4)
    yield from _trained(model, batches, lambda ids: model(input_ids=ids, labels=ids).loss)
    yield from _weights(model)


class _Language(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(256, width), nn.Linear(width, 256)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(self.embed(ids)))
        return functional.cross_entropy(found[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def lengths(start: Start, small: bool) -> Iterator[float]:
    """Sequences of another length in every step."""
    model = _Language(32 if small else 256, 2 if small else 4)
    start(model, shapes="bucket")
    top = 32 if small else 128

    def make(g: torch.Generator) -> Tensor:
        return torch.randint(256, (8, int(torch.randint(top // 4, top, (), generator=g))), generator=g)

    yield from _trained(model, _draws(make, 8), model)
    yield from _weights(model)


def ddp(start: Start, small: bool) -> Iterator[float]:
    """DistributedDataParallel; the launcher starts two processes."""
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(_Language(32 if small else 256, 2 if small else 4))
    start(model)
    rank = torch.distributed.get_rank()
    shape = (8, 32 if small else 128)
    batches = _draws(lambda g: torch.randint(256, shape, generator=g) * (rank + 1) % 256, 4)
    yield from _trained(model, batches, model)
    yield from _weights(model)


class _Dit(nn.Module):
    """Blocks whose norms are scaled and shifted by the time, as in DiT (Peebles and Xie, 2023)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first, self.last, self.time = nn.Linear(16, width), nn.Linear(width, 16), nn.Linear(1, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2 * depth))
        self.scales = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(depth))
        self.mixes = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(depth))
        self.wides = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x, when = self.first(x), functional.silu(self.time(time))
        for number, (scales, mix, wide) in enumerate(zip(self.scales, self.mixes, self.wides, strict=True)):
            a, b, c, d, e, f = scales(when).unsqueeze(1).chunk(6, -1)
            y = self.norms[2 * number](x) * (1 + a) + b
            x = x + c * mix(y, y, y, need_weights=False)[0]
            x = x + f * wide(self.norms[2 * number + 1](x) * (1 + d) + e)
        out: Tensor = self.last(x)
        return out


def dit(start: Start, small: bool) -> Iterator[float]:
    """A diffusion transformer whose weights are averaged after every update."""
    model = _Dit(32 if small else 256, 2 if small else 4)
    start(model)
    decay: Any = torch.optim.swa_utils.get_ema_multi_avg_fn
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay(0.99))

    def make(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        shape = (8, 16 if small else 128, 16)
        return torch.randn(shape, generator=g), torch.randn(shape, generator=g), torch.rand(8, 1, generator=g)

    def loss(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, noise, time = batch
        noisy = x * (1 - time[..., None]) + noise * time[..., None]
        return functional.mse_loss(model(noisy, time), noise - x)

    for found in _trained(model, _draws(make, 4), loss):
        average.update_parameters(model)
        yield found
    yield from _weights(average)


def siamese(start: Start, small: bool) -> Iterator[float]:
    """Two views of each row through one net before the backward."""
    width = 32 if small else 512
    layers = [nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(6)]
    model = nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 64))
    start(model)

    def loss(rows: Tensor) -> Tensor:
        one, two = (functional.normalize(model(rows + 0.1 * torch.randn_like(rows))) for _ in range(2))
        return functional.cross_entropy(one @ two.T / 0.1, torch.arange(len(rows)))

    batches = _draws(lambda g: torch.randn(64 if small else 512, 64, generator=g), 4)
    yield from _trained(model, batches, loss)
    yield from _weights(model)


class _Routed(nn.Module):
    """Layers of experts, each of which sees the rows that chose it; as many layers as the values want."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
        self.gates = nn.ModuleList(nn.Linear(width, 4) for _ in range(depth))
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                for _ in range(4)
            )
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for gate, experts in zip(self.gates, self.experts, strict=True):
            weight, chosen = gate(x).softmax(-1).max(-1)
            made = torch.zeros_like(x)
            assert isinstance(experts, nn.ModuleList)
            for number, expert in enumerate(experts):
                rows = (chosen == number).nonzero().flatten()
                if len(rows):
                    made[rows] = expert(x[rows]) * weight[rows, None]
            x = x + made
            if float(x.detach().norm(dim=-1).mean()) > 40:
                break
        out: Tensor = self.last(x)
        return out


def branches(start: Start, small: bool) -> Iterator[float]:
    """Experts in loops and an early exit: what runs depends on values."""
    model = _Routed(32 if small else 128, 2 if small else 4)
    start(model)
    batches = _draws(lambda g: (torch.randn(256, 64, generator=g), torch.randint(10, (256,), generator=g)), 4)
    yield from _trained(model, batches, lambda given: functional.cross_entropy(model(given[0]), given[1]))
    yield from _weights(model)


def _weights(model: nn.Module) -> Iterator[float]:
    """The weights as a number that differs where they do."""
    yield float(int(digest([p.detach() for p in model.parameters()])[:12], 16))


LOOPS: Final[dict[str, Callable[[Start, bool], Iterator[float]]]] = {
    one.__name__: one for one in (unet, gpt2, gan, lora, lengths, ddp, dit, siamese, branches)
}


def play(name: str, way: str, budget: int, *, small: bool) -> dict[str, Any]:
    """Run one loop in one way; say what it gave, or which budget was named."""
    models: list[nn.Module] = []
    began: list[float] = []
    ended: list[float] = []

    def start(model: nn.Module, **options: Any) -> nn.Module:
        began.append(time.perf_counter())
        models.append(model)
        if way == "compile":
            model.compile()
        elif way == "tightrope":
            tightrope.compile(model, budget=budget, progress=False, **options)
        return model

    register_optimizer_step_post_hook(lambda *_: ended.append(time.perf_counter()))
    native = accounts().allocator
    assert native is not None, "the counts need a C++ compiler"
    torch.manual_seed(0)
    try:
        with HighWater(native) as water:
            values = list(LOOPS[name](start, small))
    except (tightrope.TightropeError, torch.OutOfMemoryError) as error:
        said = re.search(r"budget=(\d+)", str(error))  # the first that is to be tried
        return {"named": int(said[1]) if said else 0, "why": str(error).splitlines()[0]}
    told = {"values": values, "first": ended[0] - began[0], "peak": water.bytes}
    if way == "tightrope":
        reports = [tightrope.report(model) for model in models[-2 if name == "gan" else -1 :]]
        told |= {"level": reports[0].level, "unlike": [op for one in reports for op in one.unlike_eager][:3]}
    return told


def _played(name: str, way: str, budget: int, small: bool, folder: Path) -> dict[str, Any]:
    """Run `play` in a process of its own, or in two."""
    command = [sys.executable, "-m", "benchmarks.loops", name, way, str(budget), str(int(small))]
    caches = {"TORCHINDUCTOR_CACHE_DIR": folder / "inductor", "TIGHTROPE_CACHE": folder / "tightrope"}
    shutil.rmtree(folder, ignore_errors=True)
    caches["TIGHTROPE_CACHE"].mkdir(parents=True, mode=0o700)
    own = own_folder()
    for library in own.path.glob("*.so") if own is not None else ():
        shutil.copy2(library, caches["TIGHTROPE_CACHE"])
    world = 2 if name == "ddp" else 1
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": str(world)}
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {key: str(value) for key, value in caches.items()} | ranks | {"RANK": str(rank)},
        )
        for rank in range(world)
    ]  # fmt: skip
    found: list[dict[str, Any]] = []
    for out, err in [one.communicate() for one in running]:
        found.append(json.loads(out.splitlines()[-1]) if out.strip() else {"failed": err[-2000:]})
    return max(found, key=lambda one: one.get("named", 0))


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows; 1 where a loop misses what is wanted of it."""
    parser = ArgumentParser(prog="python -m benchmarks loops")
    parser.add_argument("--only", default=",".join(LOOPS))
    parser.add_argument("--small", action="store_true", help="small models: bits and tries alone count")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    heads = f"{'loop':10}{'eager':>12}{'tries':>7}{'budget':>12}{'level':>6}{'bits':>8}"
    console.print(f"{heads}{'first, s':>10}{'x':>6}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(","):
            rows.append(found := row(name, Path(folder) / "caches", small=options.small))
            console.print(found["said"], highlight=False, soft_wrap=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(not all(found["met"] for found in rows))


def row(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Play a loop in every way, its caches in a folder; say how many tries it took, and what came of it."""
    plain, compiled = (_played(name, way, 0, small, folder) for way in _WAYS[:2])
    for told in (plain, compiled):
        if "values" not in told:
            return {"loop": name, "met": False, "said": f"{name:10} fails without a budget: {told}"}
    budget, tries = round(_SHARE * plain["peak"]), 1
    told = _played(name, "tightrope", budget, small, folder)
    why = [told.get("why", "")]
    while "values" not in told and told.get("named", 0) > budget and tries < _MOST_TRIES:
        budget, tries = told["named"], tries + 1
        told = _played(name, "tightrope", budget, small, folder)
        why.append(told.get("why", ""))
    if "values" not in told:
        return {"loop": name, "met": False, "said": f"{name:10} does not train: {told}"}
    bits = "equal" if told["values"] == plain["values"] else "named" if told["unlike"] else "DIFFER"
    ratio = told["first"] / compiled["first"]
    said = (
        f"{name:10}{format_bytes(plain['peak']):>12}{tries:>7}{format_bytes(budget):>12}{told['level']:>6}"
        f"{bits:>8}{told['first']:>10.1f}{ratio:>6.2f}"
    )
    met = tries <= 2 and bits != "DIFFER" and (small or ratio <= _MOST_FIRST)
    return {
        "loop": name, "met": met, "said": said, "tries": tries, "budget": budget, "eager": plain["peak"],
        "level": told["level"], "bits": bits, "first": told["first"], "ratio": ratio, "refused": why,
    }  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _name, _way, _budget, _small = sys.argv[1:]
    print(json.dumps(play(_name, _way, int(_budget), small=_small == "1")))
