"""A view of a tensor's memory, and the ops that lead there, give the same elements."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import View
from tightrope.fuse.traced import moved
from tightrope.fuse.views import moves


def view_of(tensor: torch.Tensor) -> View:
    return View(0, "int64", tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())


@st.composite
def pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    whole = torch.arange(int(torch.Size(shape).numel())).reshape(shape)
    root = whole.permute(draw(st.permutations(range(len(shape)))))
    view = whole
    for kind in draw(
        st.lists(st.sampled_from(("permute", "narrow", "select", "unsqueeze", "expand")), max_size=5)
    ):
        axis = draw(st.integers(0, max(view.dim() - 1, 0)))
        if kind == "permute":
            view = view.permute(draw(st.permutations(range(view.dim()))))
        elif kind == "unsqueeze":
            view = view.unsqueeze(axis)
        elif kind == "expand":
            view = view.expand([3 if size == 1 else size for size in view.shape])
        elif view.dim():
            start = draw(st.integers(0, view.shape[axis] - 1))
            length = draw(st.integers(1, view.shape[axis] - start))
            view = view.narrow(axis, start, length) if kind == "narrow" else view.select(axis, start)
    return root, view


@settings(max_examples=400, deadline=None)
@given(pairs())
def test_moves_give_the_elements_of_the_view(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    root, view = pair
    way = moves(view_of(root), view_of(view))
    assert way is not None
    assert torch.equal(moved(root, way), view)


def test_overlapping_windows_have_no_moves() -> None:
    windows = torch.arange(8).unfold(0, 4, 2)
    assert moves(view_of(torch.arange(8)), view_of(windows)) is None


def test_a_view_as_another_dtype_has_no_moves() -> None:
    assert moves(View(0, "float32", (2,), (1,)), View(0, "int32", (2,), (1,))) is None
