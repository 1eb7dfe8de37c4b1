"""Maps in groups of channels: less RAM, the same bits."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from test_micro_host import NUM_STEPS, check_bytes, needs_cc
from torch import nn
from torch.nn import functional as F

from benchmarks.micro.nets import Made, Sided
from benchmarks.micro.trained import samples, train, worst
from tightrope.core import InfeasibleError, Machine
from tightrope_micro import MicroStep, capture_step, compile_step, run_on_host
from tightrope_micro.maps import finer_maps, with_maps_cut
from tightrope_micro.paging.economy import Economy
from tightrope_micro.planning import num_macs


class Wide(nn.Module):
    """Blocks with batch norms and three convolutions each, one of them of stride 2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Sided(8, 8), Sided(8, 12))
        self.fc = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.stem(x)))
        return F.cross_entropy(self.fc(F.avg_pool2d(x, x.shape[-1]).flatten(1)), y)


def wide() -> Made:
    torch.manual_seed(6)
    model = Wide()
    data = torch.randn(1, 3, 8, 8), torch.tensor([4])
    return model, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@pytest.fixture(scope="module")
def step() -> MicroStep:
    return capture_step(*wide())


@pytest.mark.slow
@needs_cc
def test_groups_take_less_and_leave_the_same_bits(step: MicroStep, board: Machine, tmp_path: Path) -> None:
    _, state, batches = train(wide, NUM_STEPS)
    with pytest.raises(InfeasibleError) as caught:
        compile_step(step, board, ram=2300, maps=False)
    limit = caught.value.smallest_found or 0
    short = Economy(walks=20)
    whole = compile_step(step, board, ram=limit, economy=short)
    with pytest.raises(InfeasibleError) as caught:
        compile_step(step, board, ram=2300)
    least = caught.value.smallest_found or 0
    assert least - 2112 < 0.8 * (limit - 2112)  # arenas
    cut = compile_step(step, board, ram=least, economy=short)
    assert cut.manifest.total <= least
    runs = [
        run_on_host(one.write(tmp_path / str(k)), samples(one, batches)) for k, one in enumerate((whole, cut))
    ]
    check_bytes(cut, runs[1], board)
    assert runs[0].losses == runs[1].losses
    source = tmp_path / "1" / "step.c"
    text = source.read_text()
    call = next(one for one in re.findall(r"k_conv2d_weight_sgd\(.*\);", text) if ", 4, 8, (tr_rule)" in one)
    source.write_text(text.replace(call, call.replace(", 4, 8, (tr_rule)", ", 2, 8, (tr_rule)")))
    assert run_on_host(tmp_path / "1", samples(cut, batches)).values != runs[0].values  # another group's row
    assert runs[0].values == runs[1].values
    assert worst(runs[1], cut, state) <= 1e-6


def test_a_convolution_becomes_one_op_per_pair_of_groups_and_as_much_work(step: MicroStep) -> None:
    cut = with_maps_cut(step.graph, {(8, 8, 8): 4})
    convolutions = [op for op in cut.ops if "conv2d" in op.target and op.module == "blocks.0.first"]
    assert len(convolutions) == 3 * 16
    stem = [op for op in cut.ops if op.target.startswith("micro.conv2d") and op.module == "stem"]
    assert len([op for op in stem if op.phase == "forward"]) == 4
    before, after = (
        sum(num_macs(graph, op) for op in graph.ops if "conv2d" in op.target) for graph in (step.graph, cut)
    )
    assert before == after


class Given(nn.Module):
    """Maps of the caller, inputs and a parameter, among maps that convolutions make."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.place = nn.Parameter(torch.randn(1, 8, 8, 8))
        self.second, self.third = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, padding=1)
        self.fc = nn.Linear(8, 10)

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        match self.kind:
            case "sum":
                return F.relu(self.first(x)) + x
            case "sum turned":
                return x + F.relu(self.first(x))
            case "place":
                return F.relu(self.first(x) + self.place)
            case "place first":
                return F.relu(self.first(x + self.place))
            case "norm":
                return F.relu(self.first(self.norm(x)))
            case "relu":
                return F.relu(self.first(F.relu(x))) + F.relu(x)
        return F.relu(self.second(F.relu(self.first(x)).view(1, 8, 4, 16))).view(1, 8, 8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.third(self.mixed(x)))
        return F.cross_entropy(self.fc(F.avg_pool2d(x, 4).flatten(1)), y)


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("adamw", [False, True])
@pytest.mark.parametrize("kind", ["sum", "sum turned", "place", "place first", "norm", "relu", "viewed"])
def test_maps_of_the_caller_are_read_and_updated_as_in_pytorch(
    kind: str, adamw: bool, board: Machine, tmp_path: Path
) -> None:
    def make() -> Made:
        torch.manual_seed(3)
        model = Given(kind)
        if adamw:
            rule: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
        else:
            rule = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return model, (torch.randn(1, 8, 8, 8), torch.tensor([4])), rule

    step = capture_step(*make())
    _, state, batches = train(make, NUM_STEPS)
    with pytest.raises(InfeasibleError) as caught:
        compile_step(step, board, ram=2300)
    least = caught.value.smallest_found or 0
    cut = compile_step(step, board, ram=least, economy=Economy(walks=20))
    grouped = any("group 1 of" in one.label for one in cut.planned.tiled.graph.storages)
    assert grouped == (kind != "viewed")  # no form: seen as of another shape
    whole = compile_step(step, board, ram=60_000, signs=False, economy=Economy(walks=1))
    found, other = (
        run_on_host(one.write(tmp_path / str(k)), samples(one, batches)) for k, one in enumerate((cut, whole))
    )
    assert found.values == other.values
    known = [name for name in state if name in found.values]
    apart = [np.abs(np.frombuffer(found.values[name], np.float32) - state[name]).max() for name in known]
    assert max(apart) <= (5e-5 if adamw else 1e-6)  # a first step of AdamW divides a gradient by itself
    assert {"first.weight", "third.weight", "fc.bias"} <= set(known)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["place", "place first", "relu"])
def test_signs_never_need_more(kind: str, board: Machine) -> None:
    torch.manual_seed(3)
    model = Given(kind)
    rule = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = capture_step(model, (torch.randn(1, 8, 8, 8), torch.tensor([4])), rule)
    least = []
    for signs in (True, False):
        with pytest.raises(InfeasibleError) as caught:
            compile_step(step, board, ram=2300, signs=signs)
        least.append(caught.value.smallest_found or 0)
    assert least[0] <= least[1]
    found = compile_step(step, board, ram=least[0], economy=Economy(walks=20))
    assert found.manifest.total <= least[0]


def test_maps_that_others_look_at_stay_whole(steps: dict[str, MicroStep]) -> None:
    for name in ("normed", "pooled"):  # three images; pools and groups
        graph = steps[name].graph
        assert all(finer_maps(graph, op, {}) is None for op in graph.ops)
