"""What a capture changes in torch is as before once the last of several threads is done."""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch._decomp import decomposition_table

from tightrope.capture._eager import eager_kernels
from tightrope.capture._norms import norms_laid_out


def kernels() -> dict[Any, Any]:
    ops = [getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")]
    return {op: dict(op.py_kernels) for op in (*ops, torch.ops.aten.dropout.default)}


@pytest.mark.parametrize("context", [eager_kernels, norms_laid_out])
def test_overlapping_users_leave_torch_as_it_was(
    context: Callable[[], AbstractContextManager[None]],
) -> None:
    with context():
        pass  # loads what it changes
    before, table = kernels(), dict(decomposition_table)
    first, second = context(), context()
    first.__enter__()
    inside = kernels(), dict(decomposition_table)
    assert inside != (before, table)
    second.__enter__()
    first.__exit__(None, None, None)
    assert (kernels(), dict(decomposition_table)) == inside
    second.__exit__(None, None, None)
    assert (kernels(), dict(decomposition_table)) == (before, table)


def test_kernels_are_put_back_though_torch_does_not_list_them(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernels()
    monkeypatch.setattr("torch._dispatch.python.all_py_loaded_overloads", tuple)
    with eager_kernels():
        assert kernels() != before
    assert kernels() == before


def test_an_export_after_a_capture_lists_all_kernels() -> None:
    utils = importlib.import_module("torch._export.utils")
    listed = utils._collect_all_valid_cia_ops_for_aten_namespace
    listed.cache_clear()
    with eager_kernels():
        listed()  # as torch's compiler does within a capture: kernels written in Python are away
    assert torch.ops.aten._upsample_nearest_exact1d.default in listed()
