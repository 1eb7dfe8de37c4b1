"""Private names of torch for what neither its traces nor its guards see."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


def overlapping(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Positions of tensors of one memory that overlap another one, as AOTAutograd finds them."""
    from torch._C._dynamo.guards import compute_overlapping_tensors

    return compute_overlapping_tensors(list(tensors), symbolic=False)


@contextmanager
def functions_keep_their_derivatives() -> Iterator[None]:
    """Refuse to trace an `autograd.Function` inside of a transform of `torch.func`.

    Dynamo traces the ops of its forward, which the transform then differentiates: its own backward is lost.
    """
    from torch._C._functorch import peek_interpreter_stack
    from torch._dynamo import exc
    from torch._dynamo.variables.misc import AutogradFunctionVariable

    apply = AutogradFunctionVariable.call_apply

    def traced(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if peek_interpreter_stack() is not None:
            raise exc.Unsupported(
                f"{variable.fn_cls.__name__} is a torch.autograd.Function inside of a transform of torch.func "
                "(grad, vmap, jvp ...); a trace would lose its own derivative"
            )
        return apply(variable, tx, args, kwargs)

    with patch.object(AutogradFunctionVariable, "call_apply", traced):
        yield
