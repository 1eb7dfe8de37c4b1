"""`Trainer` of transformers with a language model of its own, and what is refused beside a budget."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import tightrope
from tightrope.core import BudgetSyntaxError, TightropeError
from tightrope.integrations.transformers import TightropeTrainerCallback, enable

pytest.importorskip("accelerate", reason="Trainer needs accelerate")


def llama() -> LlamaForCausalLM:
    torch.manual_seed(3)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=1, attention_dropout=0.1, **shape))


def trainer(folder: Path, model: nn.Module, callbacks: Any = None, **options: Any) -> Trainer:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(64, (32,), generator=generator) for _ in range(8)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=3, use_cpu=True, report_to=[], disable_tqdm=True, **options
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    return Trainer(model, arguments, train_dataset=data, callbacks=callbacks)


@pytest.mark.slow
def test_one_line_before_train_holds_a_language_model_to_the_budget(tmp_path: Path) -> None:
    plain = trainer(tmp_path, llama())
    plain.train()
    planned = enable(trainer(tmp_path, llama()), budget="1GiB", progress=False)
    planned.train()
    assert [one["loss"] for one in plain.state.log_history if "loss" in one] == [
        one["loss"] for one in planned.state.log_history if "loss" in one
    ]
    for wanted, found in zip(plain.model.parameters(), planned.model.parameters(), strict=True):
        assert torch.equal(wanted, found)
    report = tightrope.report(planned.model)
    assert (report.level, report.budget) == ("L1", 1 << 30)
    assert 0 < report.observed_total <= report.budget
    assert len(report.proofs) == 1


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning")
def test_checkpointing_of_the_trainer_is_refused_under_both_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        TightropeError, match=r"TrainingArguments\(activation_checkpointing=True\).*Leave out"
    ):
        trainer(tmp_path, llama(), [TightropeTrainerCallback(budget="1GiB")], **{name: True})
    with pytest.raises(TightropeError, match="Leave out activation_checkpointing"):
        enable(trainer(tmp_path, llama(), **{name: True}), budget="1GiB")


@pytest.mark.parametrize("name", ["gradient_checkpointing_enable", "activation_checkpointing_enable"])
@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning")
def test_checkpointing_of_the_model_is_refused_under_both_names(name: str, tmp_path: Path) -> None:
    model = llama()
    getattr(model, name)()
    with pytest.raises(
        TightropeError, match=r"is on in model.* Call model\.activation_checkpointing_disable\(\)"
    ):
        enable(model, budget="1GiB")
    with pytest.raises(TightropeError, match="checkpointing is on in model"):
        trainer(tmp_path, model, [TightropeTrainerCallback(budget="1GiB")]).train()
    model.activation_checkpointing_disable()
    assert enable(model, budget="1GiB") is model


def test_another_compiler_and_wrong_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TightropeError, match=r"torch_compile=True.*Leave out torch_compile"):
        trainer(tmp_path, llama(), [TightropeTrainerCallback(budget="1GiB")], torch_compile=True)
    with pytest.raises(BudgetSyntaxError, match="8 apples"):
        TightropeTrainerCallback(budget="8 apples")
    with pytest.raises(TightropeError, match="trainer_or_model=3: give a transformers"):
        enable(3, budget="1GiB")
    with pytest.raises(TightropeError, match=r"trainer_or_model=.*Trainer.*give"):
        enable(Trainer, budget="1GiB")
