"""Bits of tensors, not values."""

from collections.abc import Callable

import pytest
import torch

from tightrope.core import JudgeError
from tightrope.judge.gradients import compare, compare_digests, digest, digests

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn,
]  # fmt: skip


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(24).reshape(2, 3, 4).remainder(5).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_bits_pass_and_one_changed_element_does_not(dtype: torch.dtype) -> None:
    reference, other = sample(dtype), sample(dtype)
    assert not compare({"w": reference}, {"w": other})
    assert digest(reference) == digest(other)
    other[1, 2, 3] = reference[0, 0, 0]
    (difference,) = compare({"w": reference}, {"w": other})
    assert (difference.aspect, difference.num_elements) == ("bits", 1)
    assert difference.text.startswith("w: 1 of ")
    assert "[1, 2, 3" in difference.text
    assert digest(reference) != digest(other)


def test_sign_of_zero_and_payload_of_nan_count() -> None:
    zero, negative = torch.tensor([0.0]), torch.tensor([-0.0])
    nan, other_nan = (
        torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001)
    )
    assert zero.equal(negative)
    assert compare({"w": zero}, {"w": negative})
    assert compare({"w": nan}, {"w": other_nan})
    assert not compare({"w": nan}, {"w": nan.clone()})
    assert len({digest(zero), digest(negative), digest(nan), digest(other_nan)}) == 4


def test_strides_do_not_count() -> None:
    tensor = torch.randn(4, 6)
    for same in (
        tensor.t().contiguous().t(),
        torch.stack([tensor, tensor], -1)[..., 0],
        tensor.clone().requires_grad_(),
    ):
        assert not compare({"w": tensor}, {"w": same})
        assert digest(tensor) == digest(same)


def test_lazy_conjugates_are_resolved() -> None:
    tensor = torch.randn(3, dtype=torch.complex64)
    assert not compare({"w": tensor.conj()}, {"w": tensor.conj().resolve_conj()})
    assert digest(tensor.conj()) != digest(tensor)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    assert not compare({"w": torch.ones(shape)}, {"w": torch.ones(shape)})
    assert len(digest(torch.ones(shape))) == 32


def test_shape_dtype_and_names_are_told_apart() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(3, 2)
    assert [d.aspect for d in compare({"w": a}, {"w": b})] == ["shape"]
    assert [d.aspect for d in compare({"w": a}, {"w": a.double()})] == ["dtype"]
    assert [(d.name, d.aspect) for d in compare({"w": a, "x": a}, {"w": a, "y": a})] == [
        ("x", "missing"),
        ("y", "extra"),
    ]
    assert len({digest(a), digest(b), digest(a.to(torch.int32))}) == 3


def test_digests_are_compared_by_name() -> None:
    mine, yours = (
        digests({"a": torch.ones(2), "b": torch.ones(2)}),
        digests({"a": torch.ones(2), "c": torch.ones(2)}),
    )
    yours["a"] = "0" * 32
    assert [(d.name, d.aspect) for d in compare_digests(mine, yours)] == [
        ("b", "missing"),
        ("c", "extra"),
        ("a", "bits"),
    ]
    assert not compare_digests(mine, dict(mine))


def allocated(run: Callable[[], object]) -> int:
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
        kept = run()
    del kept
    return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())


def test_reading_allocates_nothing_through_torch() -> None:
    tensor, other = torch.ones(1000, 10), torch.ones(10, 1000).t()
    assert allocated(tensor.clone) == 40_000
    assert allocated(lambda: digest(tensor)) == 0
    assert allocated(lambda: digest(other)) == 0
    assert allocated(lambda: compare({"w": tensor}, {"w": other})) == 0


@pytest.mark.parametrize(
    "odd", [torch.ones(2, device="meta"), torch.eye(2).to_sparse()], ids=["meta", "sparse"]
)
def test_what_has_no_plain_elements_is_refused(odd: torch.Tensor) -> None:
    with pytest.raises(JudgeError, match="no plain elements"):
        digest(odd)
