"""Calls whose convolutions work channels-last: what comes out, and how it is laid out, is as in eager."""

import pytest
import torch
from torch import nn

from tightrope.capture.api import capture_program
from tightrope.core import View
from tightrope.lower import lower
from tightrope.plan import base_schedule
from tightrope.run.execute.emit import emit


class Net(nn.Module):
    """A few convolutions with a norm, a pool, a concatenation and a view of images as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.Linear(16 * 16, 4)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = torch.relu(self.norm(self.first(images)))
        both = torch.cat((seen, self.second(seen)), 1)
        pooled = nn.functional.max_pool2d(both, 4)
        return self.last(pooled.flatten(1)).square().mean(), both


def _runs(model: nn.Module, images: torch.Tensor, *, last: bool) -> list[torch.Tensor]:
    program, real = capture_program(model, (images,))
    if last:
        assert program.channels_last is not None
        other = program.channels_last(real, program.start)
        assert other is not None
        program = other
    graph = program.graph
    given, code = [*real, *program.constants], emit(graph, lower(graph, base_schedule(graph)))
    with torch.no_grad():
        results, kept = code.parts[0]([], list(given))
        tangents = [torch.ones_like(result) for result in results[: len(program.ends)]]
        gradients, _ = code.parts[1](kept, tangents)
    return [one for one in (*results, *gradients) if isinstance(one, torch.Tensor)]


def test_results_are_as_in_the_models_layouts() -> None:
    torch.manual_seed(0)
    model, images = Net(), torch.randn(2, 3, 16, 16)
    plain, last = (_runs(model, images, last=last) for last in (False, True))
    assert len(plain) == len(last) > 8
    for one, other in zip(plain, last, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_activations_lie_channels_last() -> None:
    program, real = capture_program(Net(), (torch.randn(2, 3, 16, 16),))
    assert program.channels_last is not None
    other = program.channels_last(real, program.start)
    assert other is not None
    made = [r.view for op in other.graph.ops if "convolution.default" in op.target for r in op.results]
    assert made
    assert all(isinstance(view, View) and view.strides[1] == 1 for view in made)


class Shown(nn.Module):
    """Something else than the convolution reads the images."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Conv2d(3, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (self.only(images) + images).sum()


class Changed(Shown):
    """The images are changed in place, which the caller sees."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images.mul_(2)
        return self.only(images).sum()


@pytest.mark.parametrize("kind", [Shown, Changed])
def test_what_others_read_too_stays_as_it_is(kind: type[nn.Module]) -> None:
    program, real = capture_program(kind(), (torch.randn(2, 3, 8, 8),))
    assert program.channels_last is not None
    assert program.channels_last(real, program.start) is None


def test_what_lies_channels_last_already_stays() -> None:
    images = torch.randn(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    program, real = capture_program(Net(), (images,))
    assert program.channels_last is not None
    assert program.channels_last(real, program.start) is None
