"""Signs of ReLUs instead of what they made, and steps in which nothing that ops make is paged."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from test_micro_host import needs_cc
from torch import nn
from torch.nn import functional as F

from benchmarks.micro.nets import Block
from benchmarks.micro.trained import samples
from tightrope.cli.machines import find_machine
from tightrope.core import InfeasibleError, Machine
from tightrope.core.plan import PageOut
from tightrope_micro import CompiledStep, MicroStep, capture_step, compile_step, run_on_host
from tightrope_micro.choose import sparse_step
from tightrope_micro.paging.economy import Economy
from tightrope_micro.signs import with_signs

NO_PAGES = Economy(pages=False, reruns=False)


class Small(nn.Module):
    """A block, of which a sparse step updates biases."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.Sequential(Block(4, 4))
        self.fc = nn.Linear(4 * 3 * 3, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.blocks(F.relu(self.stem(x))), 3)
        return F.cross_entropy(self.fc(x.flatten(1)), y)


@pytest.fixture(scope="module")
def biases() -> MicroStep:
    torch.manual_seed(3)
    model = Small()
    step = capture_step(
        model, (torch.randn(1, 1, 9, 9), torch.tensor([1])), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    return sparse_step(step, [name for name, _ in model.named_parameters() if name.endswith("bias")])


def least(step: MicroStep, board: Machine, *, signs: bool = True) -> CompiledStep:
    """The step within the limit that a refusal names."""
    with pytest.raises(InfeasibleError, match="Allow pages, ask for more RAM") as caught:
        compile_step(step, board, ram=2200, economy=NO_PAGES, signs=signs)
    return compile_step(step, board, ram=caught.value.smallest_found or 0, economy=NO_PAGES, signs=signs)


@pytest.fixture(scope="module")
def both(biases: MicroStep) -> tuple[CompiledStep, CompiledStep]:
    """With signs and without."""
    board = find_machine("poet-cortex-m4f")
    return least(biases, board), least(biases, board, signs=False)


@pytest.mark.slow
@needs_cc
def test_signs_leave_the_same_bits_in_fewer_bytes(
    both: tuple[CompiledStep, CompiledStep], tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(4)
    batches = [
        [torch.randn(1, 1, 9, 9, generator=generator), torch.randint(3, (1,), generator=generator)]
        for _ in range(3)
    ]
    with_them, without = both
    assert with_them.manifest.arena < 0.85 * without.manifest.arena
    runs = [run_on_host(one.write(tmp_path / str(k)), samples(one, batches)) for k, one in enumerate(both)]
    assert runs[0].losses == runs[1].losses
    assert runs[0].values == runs[1].values
    assert with_them.image != bytes(len(with_them.image))
    assert runs[0].arena == with_them.manifest.arena


def test_nothing_that_ops_make_is_paged(
    biases: MicroStep, both: tuple[CompiledStep, CompiledStep], board: Machine
) -> None:
    found = both[0].planned
    storages = found.tiled.graph.storages
    outs = [step.storage for step in found.plan.schedule.steps if isinstance(step, PageOut)]
    assert outs
    assert all(storages[one].home for one in outs)
    paged = compile_step(biases, board, ram=both[0].manifest.total - 100, economy=Economy(reruns=False))
    assert paged.manifest.total < both[0].manifest.total


def test_signs_are_taken_only_where_nothing_else_reads_as_late(
    steps: dict[str, MicroStep], biases: MicroStep
) -> None:
    graph = with_signs(biases.graph)
    signs = [op for op in graph.ops if op.target == "micro.signs"]
    assert len(signs) == sum(op.target == "micro.relu" for op in graph.ops) == 3
    assert not any(op.target == "micro.relu_backward" for op in graph.ops)
    dense = steps["dense"].graph  # what a ReLU made is read for the gradient of the next weight
    assert not any(op.target == "micro.signs" for op in with_signs(dense).ops)
    late = biases.graph.ops[-1]
    made = next(op.results[0].view for op in biases.graph.ops if op.target == "micro.relu")
    read = replace(late, id=late.id + 1, name="late", target="micro.add", arguments=(made, made),
                   reads=(made.base,), creates=(), mutates=(), results=())  # fmt: skip
    part = replace(biases.graph.parts[0], end=read.id + 1)
    kept = replace(biases.graph, ops=(*biases.graph.ops, read), parts=(part,))
    assert sum(op.target == "micro.signs" for op in with_signs(kept).ops) == 2
