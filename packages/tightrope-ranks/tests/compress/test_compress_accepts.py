"""Models whose gradients cannot be sent are refused at the call, on every rank, before anything runs."""

import math
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tightrope.core import TightropeError
from tightrope_ranks.compress import compress_gradients


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    meet = tmp_path_factory.mktemp("one") / "meet"
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def half() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).to(torch.bfloat16))


def words(*, sparse: bool) -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: words(sparse=True), r"module '0' makes sparse gradients.*sparse=False"),
        (lambda: nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True)), "module '0' makes sparse gradients"),
        (half, r"parameter '1.weight' is torch.bfloat16 on cpu.*torch.autocast"),
        (lambda: nn.Linear(4, 4).half(), "parameter 'weight' is torch.float16"),
        (lambda: nn.Linear(4, 4).double(), "parameter 'weight' is torch.float64"),
        (lambda: nn.Linear(4, 4, dtype=torch.complex64), "parameter 'weight' is torch.complex64"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_the_call(make: Callable[[], nn.Module], says: str) -> None:
    threads = threading.active_count()
    with pytest.raises(TightropeError, match=says):
        compress_gradients(DistributedDataParallel(make()))
    assert threading.active_count() == threads


def test_mixed_precision_of_ddp_is_refused() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    changed: Any = model
    changed.mixed_precision = object()
    with pytest.raises(TightropeError, match="model has mixed_precision="):
        compress_gradients(model)


def test_a_model_that_is_not_wrapped_or_an_error_that_is_none_is_refused() -> None:
    plain: DistributedDataParallel = nn.Linear(4, 4)  # type: ignore[assignment]
    with pytest.raises(TightropeError, match="model is a Linear: wrap it"):
        compress_gradients(plain)
    with pytest.raises(TightropeError, match=r"error=-0\.5: give"):
        compress_gradients(DistributedDataParallel(nn.Linear(4, 4)), error=-0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("error", True),
        ("error", "x"),
        ("error", math.nan),
        ("seconds", math.nan),
        ("seconds", 0),
        ("seconds", -1.5),
        ("sent", -1),
        ("sent", 1.5),
        ("trials", -1),
        ("trials", 1.5),
        ("trials", True),
        ("timeout", -1),
        ("timeout", math.nan),
        ("timeout", math.inf),
        ("timeout", None),
        ("codecs", [["a"]]),
        ("codecs", [None]),
        ("codecs", []),
        ("codecs", 5),
    ],
)
def test_an_argument_out_of_its_range_is_refused_at_the_call(name: str, value: Any) -> None:
    threads = threading.active_count()
    with pytest.raises(TightropeError, match=f"^{re.escape(f'{name}={value!r}')}: "):
        compress_gradients(DistributedDataParallel(nn.Linear(4, 4)), **{name: value})
    assert threading.active_count() == threads


def test_frozen_parts_may_be_of_any_kind() -> None:
    frozen = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 4).double())
    frozen[0].requires_grad_(False)
    frozen[2].requires_grad_(False)
    compress_gradients(DistributedDataParallel(frozen)).close()
