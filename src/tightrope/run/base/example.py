"""Inputs that a model is planned with before its first step."""

from typing import Any

import torch

from tightrope.core import TightropeError
from tightrope.core.arguments import refuse_argument
from tightrope.core.units import shown
from tightrope.run.base.state import state_of


def check_example(example: object) -> None:
    """Refuse what is neither a tuple of positional nor a dict of keyword arguments."""
    if isinstance(example, dict) and not all(isinstance(name, str) for name in example):
        refuse_argument("example", example, "the names of keyword arguments, each with its value")
    if example is not None and not isinstance(example, dict | tuple | list):
        refuse_argument(
            "example", example, "a tuple of inputs, such as example=(x,), or a dict of them by name"
        )


def plan_ahead(model: torch.nn.Module, example: Any) -> None:
    """Capture and plan without changing anything: buffers and the random state are put back."""
    restore = state_of(model)
    try:
        model(**example) if isinstance(example, dict) else model(*example)
    except (TightropeError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the model raises
        said = (str(error).splitlines() or [""])[0][:200]
        raise TightropeError(
            f"example={shown(example)}: the model raises {type(error).__name__} for it ({said}): "
            "give inputs that it takes."
        ) from error
    finally:
        restore()
