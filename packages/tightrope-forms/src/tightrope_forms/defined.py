"""Ops of this package: defined once, with a kernel and a form without values."""

from typing import Any, Final

import torch

_LIBRARY: Final = torch.library.Library("tightrope_forms", "DEF")  # type: ignore[no-untyped-call]


def define(schema: str, call: Any, fake: Any) -> Any:
    """Define an op by its schema; return it.

    Args:
        schema: such as ``sums(Tensor x) -> Tensor``.
        call: computes its results on any device.
        fake: makes results without values.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, call, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"tightrope_forms::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.tightrope_forms, name).default


def differentiate(op: Any, keep: Any, back: Any) -> None:
    """Give an op its gradient: what it keeps, and what becomes of that."""
    torch.library.register_autograd(op, back, setup_context=keep, lib=_LIBRARY)
