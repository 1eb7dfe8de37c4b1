"""Training loops as people own them, each for a plain model and for one under a budget."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tightrope
from tests.run.training import Blocks, Seen, batches, built

NUM_STEPS: Final = 20
NUM_MICRO: Final = 2
"""Batches per update where gradients are accumulated."""


class Net(nn.Module):
    """Blocks with their loss, as most loops call it."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.blocks = Blocks(depth=4)
        self.again = again

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = checkpoint(self.blocks, x, use_reentrant=False) if self.again else self.blocks(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def adapted(*, again: bool = False) -> nn.Module:
    """Freeze the net and add LoRA adapters."""
    from peft import LoraConfig, get_peft_model

    wanted = LoraConfig(r=4, target_modules=r".*layers\.\d\.[03]", lora_dropout=0.1)
    return get_peft_model(Net(again=again), wanted)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Task:
    """What one loop is to do.

    Attributes:
        does: the column.
        see: takes what the loop shows.
        folder: for checkpoints.
        budget: in bytes; None = the loop as it is.
        num_steps: updates.
    """

    does: str
    see: Seen
    folder: Path
    budget: int | None
    num_steps: int = NUM_STEPS

    @property
    def num_micro(self) -> int:
        return NUM_MICRO if self.does == "accumulation" else 1

    @property
    def autocast(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if self.does == "bf16 autocast" else nullcontext()

    def data(self) -> list[dict[str, Tensor]]:
        few = [{"x": x, "labels": y} for x, y in batches(4, size=4096)]
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        return [few[(number + rank) % 4] for number in range(self.num_steps * self.num_micro)]

    def build(self) -> nn.Module:
        return built(
            adapted if self.does == "LoRA" else partial(Net, again=self.does == "torch's checkpoint")
        )

    def compile(self, model: nn.Module, *, by_name: bool = False) -> Any:
        if self.budget is None:
            return model
        if by_name:
            options = {"budget": self.budget, "progress": False}
            return torch.compile(model, backend="tightrope", options=options, dynamic=False)
        return tightrope.compile(model, budget=self.budget, progress=False)


def sharded(model: nn.Module, *, blocks: bool) -> nn.Module:
    """Divide a model among the processes, as a whole or block by block."""
    if blocks:
        (layers,) = (module for module in model.modules() if isinstance(module, nn.ModuleList))
        for layer in layers:
            fully_shard(layer)
    return fully_shard(model)


@contextmanager
def gradients_stay(model: Any, *, more: bool) -> Iterator[None]:
    """Leave sums over processes to the last batch of an update."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(not more)
        yield
    else:
        with model.no_sync() if more and hasattr(model, "no_sync") else nullcontext():
            yield


def plain(
    task: Task, *, by_name: bool = False, wrap: Callable[[Any], Any] = lambda model: model
) -> nn.Module:
    model = wrap(task.compile(task.build(), by_name=by_name))
    optimizer = torch.optim.AdamW(model.parameters())
    for number, batch in enumerate(task.data(), 1):
        more = number % task.num_micro > 0
        with gradients_stay(model, more=more):
            with task.autocast:
                loss = model(**batch)["loss"]
            task.see(loss)
            (loss / task.num_micro).backward()
        if more:
            continue
        if task.does == "clipping":
            task.see(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        task.see.gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        if task.does == "evaluation":
            model.eval()
            with torch.no_grad():
                task.see(*model(**batch).values())
            model.train()
        if task.does == "save, resume" and number == task.num_steps // 2:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(kept, task.folder / "kept.pt")
            del model, optimizer, kept
            model = wrap(task.compile(task.build(), by_name=by_name))
            optimizer = torch.optim.AdamW(model.parameters())
            kept = torch.load(task.folder / "kept.pt")
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
            del kept
    return model


def accelerate(task: Task, *, before: bool) -> nn.Module:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    precision = "bf16" if task.does == "bf16 autocast" else "no"
    run = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=task.num_micro)
    model = task.build()
    if before:
        task.compile(model)
    model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters()))
    if not before:
        task.compile(model)
    for number, batch in enumerate(task.data(), 1):
        with run.accumulate(model):
            loss = model(**batch)["loss"]
            task.see(loss)
            run.backward(loss)
            if run.sync_gradients:
                if task.does == "clipping":
                    task.see(run.clip_grad_norm_(model.parameters(), 0.1))
                task.see.gradients(model)
            optimizer.step()
            optimizer.zero_grad()
        if task.does == "evaluation":
            model.eval()
            with torch.no_grad():
                task.see(*model(**batch).values())
            model.train()
        if task.does == "save, resume" and number == task.num_steps // 2:
            run.save_state(str(task.folder))
            run.load_state(str(task.folder))
    return model


def transformers(task: Task) -> nn.Module:
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from tightrope.integrations.transformers import TightropeTrainerCallback

    class Watched(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            loss = super().training_step(*args, **kwargs)
            task.see(loss)
            return loss

        def log(self, logs: dict[str, float], *_: Any, **__: Any) -> None:
            task.see(logs.get("eval_loss"), logs.get("grad_norm"))

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **given: Any) -> None:
            task.see.gradients(given["model"])

    def trainer(num_steps: int) -> Trainer:
        AcceleratorState._reset_state(reset_partial_state=True)
        arguments = TrainingArguments(
            output_dir=str(task.folder),
            max_steps=num_steps,
            per_device_train_batch_size=1,
            per_device_eval_batch_size=1,
            gradient_accumulation_steps=task.num_micro,
            max_grad_norm=0.1 if task.does == "clipping" else 0.0,
            bf16=task.does == "bf16 autocast",
            eval_strategy="steps" if task.does == "evaluation" else "no",
            eval_steps=1,
            save_strategy="steps" if task.does == "save, resume" else "no",
            save_steps=task.num_steps // 2,
            lr_scheduler_type="constant",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        ours = [] if task.budget is None else [TightropeTrainerCallback(budget=task.budget, progress=False)]
        return Watched(
            task.build(),
            arguments,
            data_collator=lambda rows: rows[0],
            train_dataset=task.data(),
            eval_dataset=task.data()[:1],
            callbacks=[Watch(), *ours],
        )

    if task.does == "save, resume":
        trainer(task.num_steps // 2).train()
    last = trainer(task.num_steps)
    last.train(resume_from_checkpoint=task.does == "save, resume")
    return last.model


def lightning(task: Task) -> nn.Module:
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader

    from tightrope.integrations.lightning import TightropeCallback

    class Lit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = task.build()

        def training_step(self, batch: Any, _: int) -> Tensor:
            loss: Tensor = self.net(**batch)["loss"]
            task.see(loss)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            task.see(*self.net(**batch).values())

        def on_before_optimizer_step(self, _: Any) -> None:
            task.see.gradients(self.net)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.net.parameters())

    def fit(num_steps: int, kept: Path | None = None) -> tuple[Trainer, Lit]:
        ours = [] if task.budget is None else [TightropeCallback(budget=task.budget, progress=False)]
        trainer = Trainer(
            accelerator="cpu",
            max_steps=num_steps,
            accumulate_grad_batches=task.num_micro,
            gradient_clip_val=0.1 if task.does == "clipping" else None,
            precision="bf16-mixed" if task.does == "bf16 autocast" else "32-true",
            val_check_interval=1,
            callbacks=ours,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=task.folder,
        )
        module = Lit()
        data = DataLoader(task.data(), batch_size=None)
        held_out = DataLoader(task.data()[:1], batch_size=None) if task.does == "evaluation" else None
        trainer.fit(module, data, held_out, ckpt_path=kept)
        return trainer, module

    if task.does != "save, resume":
        return fit(task.num_steps)[1].net
    kept = task.folder / "kept.ckpt"
    trainer, module = fit(task.num_steps // 2)
    trainer.save_checkpoint(kept)
    del trainer, module
    return fit(task.num_steps, kept)[1].net
