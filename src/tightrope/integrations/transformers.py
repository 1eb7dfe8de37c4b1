"""`Trainer` of Hugging Face, under a budget, with one line.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[TightropeTrainerCallback(budget="8GiB")])

or `enable` for a trainer, or a model, that is there already. Nothing else in the script changes. Tightrope
plans what is computed again, so checkpointing by `transformers` beside it is refused, under either name.
"""

import inspect
from typing import Any, TypeVar

import torch
from transformers import TrainerCallback

from tightrope.core import TightropeError
from tightrope.core.arguments import refuse_argument
from tightrope.run.base.arguments import parse_budget
from tightrope.run.compile import compile

Target = TypeVar("Target")
_ARGUMENTS = ("activation_checkpointing", "gradient_checkpointing")
"""One switch of `TrainingArguments`: the name from transformers 5.23 on, and the one before."""


class TightropeTrainerCallback(TrainerCallback):
    """Hold the training steps of a `Trainer` to a budget.

    Args:
        budget: as in `tightrope.compile`.
        options: further arguments of `tightrope.compile`.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        TypeError: `tightrope.compile` has no such argument.
        TightropeError: when the trainer is made, or begins to train: its own checkpointing is on, or
            ``torch_compile``.

    Example:
        >>> callback = TightropeTrainerCallback(budget="8GiB")  # Trainer(..., callbacks=[callback])
    """

    def __init__(self, *, budget: str | int, **options: Any) -> None:
        inspect.signature(compile).bind(None, budget=budget, **options)
        parse_budget(budget, options.get("machine"))
        self._options = {"budget": budget, **options}

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Refuse arguments that cannot work before any data is loaded."""
        _check_arguments(args)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Compile the model, which stays the same object."""
        _check_arguments(args)
        enable(given["model"], **self._options)


def enable(trainer_or_model: Target, *, budget: str | int, **options: Any) -> Target:
    """Hold the training steps of a `Trainer`, or of a model before it is given to one, to a budget.

    Args:
        trainer_or_model: changed in place.
        budget: as in `tightrope.compile`.
        options: further arguments of `tightrope.compile`.

    Returns:
        ``trainer_or_model``.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        TightropeError: its own checkpointing is on, or ``torch_compile``; or it is neither of the two.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16))
        >>> model = enable(model, budget="64MiB")
    """
    if isinstance(trainer_or_model, torch.nn.Module):
        _check_model(trainer_or_model)
        return compile(trainer_or_model, budget=budget, **options)
    if isinstance(trainer_or_model, type) or not hasattr(trainer_or_model, "add_callback"):
        refuse_argument("trainer_or_model", trainer_or_model, "a transformers.Trainer or a torch.nn.Module")
    callback = TightropeTrainerCallback(budget=budget, **options)
    trainer: Any = trainer_or_model
    _check_arguments(trainer.args)
    trainer.add_callback(callback)
    return trainer_or_model


def _check_arguments(args: Any) -> None:
    for name in _ARGUMENTS:
        if getattr(args, name, False):
            raise TightropeError(
                f"TrainingArguments({name}=True): Tightrope plans what is recomputed under the budget, "
                f"and cannot undo what was checkpointed. Leave out {name}, and keep the budget."
            )
    if getattr(args, "torch_compile", False):
        raise TightropeError(
            "TrainingArguments(torch_compile=True): the model cannot run under another compiler and under a "
            "budget. Leave out torch_compile, torch_compile_backend and torch_compile_mode."
        )


def _check_model(model: torch.nn.Module) -> None:
    on = [name or "the model" for name, part in model.named_modules() if _checkpoints(part)]
    if on:
        raise TightropeError(
            f"checkpointing is on in {on[0]} of this {type(model).__name__}. Tightrope plans what is "
            f"recomputed under the budget, and cannot undo what was checkpointed. {_switch_off(model)}"
        )


def _checkpoints(part: torch.nn.Module) -> bool:
    return getattr(part, "gradient_checkpointing", False) is True


def _switch_off(model: torch.nn.Module) -> str:
    for name in ("activation_checkpointing_disable", "gradient_checkpointing_disable"):
        if hasattr(model, name):
            return f"Call model.{name}() first."
    return "Switch it off there first."
