"""Warn where a compiled model is trained and never called: then nothing of it is planned.

A loop that calls ``model.training_step(batch)``, ``model.forward(x)`` or a part of the model goes past the
one door through which a plan is run. No error is raised there, and the limit holds, so it has to be said.
"""

import warnings
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_waiting: "weakref.WeakKeyDictionary[object, tuple[str, frozenset[int]]]" = weakref.WeakKeyDictionary()
_installed = False


def expect_call(owner: object, name: str, parameters: Iterable[torch.Tensor]) -> None:
    """Warn at the first optimizer step on some of the parameters, unless `note_call` comes first.

    Args:
        owner: what belongs to the compiled model; held weakly.
        name: of the model's class, for the message.
        parameters: of the model.
    """
    global _installed
    if not _installed:
        register_optimizer_step_post_hook(_look)
        _installed = True
    _waiting[owner] = name, frozenset(id(p) for p in parameters if p.requires_grad)


def note_call(owner: object) -> None:
    """Note that a model was called; its parts need no call of their own."""
    if owner in _waiting:
        _, called = _waiting.pop(owner)
        for other in [other for other, (_, ids) in _waiting.items() if ids <= called]:
            del _waiting[other]


def _look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if not _waiting:
        return
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for owner, (name, ids) in list(_waiting.items()):
        if ids & trained:
            del _waiting[owner]
            warnings.warn(
                f"tightrope: nothing of this {name} is planned: it is trained and was never called. A plan "
                "runs when the compiled module itself is called, model(...); forward(), training_step() and "
                "parts of the model run as they are. Compile the module that the loop calls.",
                stacklevel=4,
            )
