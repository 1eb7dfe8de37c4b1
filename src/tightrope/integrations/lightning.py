"""`Trainer` of Lightning, under a budget, with one line.

    trainer = Trainer(callbacks=[TightropeCallback(budget="8GiB")])

``training_step`` runs as it is. The modules that it calls, ``self(x)``, ``self.net(x)`` or several of
them, are compiled one by one when they are called first: each runs under the budget. What validation
alone calls runs as it is.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tightrope.core import TightropeError
from tightrope.run.base.arguments import parse_budget
from tightrope.run.compile import compile


class TightropeCallback(Callback):
    """Hold the training steps of a `LightningModule` to a budget.

    Args:
        budget: as in `tightrope.compile`.
        options: further arguments of `tightrope.compile`.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        TypeError: `tightrope.compile` has no such argument.
        TightropeError: after the first training step: it called no module that has parameters, so nothing
            is planned.

    Example:
        >>> callback = TightropeCallback(budget="8GiB")  # Trainer(callbacks=[callback])
    """

    def __init__(self, *, budget: str | int, **options: Any) -> None:
        inspect.signature(compile).bind(None, budget=budget, **options)
        parse_budget(budget, options.get("machine"))
        self._options = {"budget": budget, **options}
        self._waiting: dict[torch.nn.Module, Callable[..., Any] | None] = {}
        self._num_compiled = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the first call of every module that has parameters."""
        self._wait_no_more(list(self._waiting))  # of a fit that was left
        self._num_compiled = 0
        for module in pl_module.modules():
            if any(True for _ in module.parameters()):
                self._waiting[module] = module._compiled_call_impl
                module._compiled_call_impl = self._first_call(module, trainer)

    def _first_call(self, module: torch.nn.Module, trainer: Trainer) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not trainer.training:  # part of what is compiled; validation
                return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
            self._wait_no_more(module.modules())
            compile(module, **self._options)
            self._num_compiled += 1
            return module(*args, **kwargs)

        return call

    def _wait_no_more(self, modules: Iterable[torch.nn.Module]) -> None:
        for module in modules:
            if module in self._waiting:
                module._compiled_call_impl = self._waiting.pop(module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Say so if nothing of the first step was planned."""
        if not self._num_compiled:
            raise TightropeError(
                f"nothing of this {type(pl_module).__name__} is planned: its training_step called no module "
                "with parameters. Plans run where a module itself is called, self(x) or self.net(x), not "
                "self.forward(x) or self.net.forward(x), and not under torch.compile."
            )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave modules that were not called yet as they were."""
        self._wait_no_more(list(self._waiting))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave modules that were never called as they were."""
        self._wait_no_more(list(self._waiting))
