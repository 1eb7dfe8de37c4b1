"""What is refused: by name, with the next step, and without a half-written folder."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.micro.nets import NETS, Residual
from tightrope.core import CaptureError, InfeasibleError, Machine, PageIn, TightropeError, UnsupportedOpError
from tightrope.plan import whole_bytes
from tightrope_micro import MicroStep, capture_step, compile_step
from tightrope_micro.infer import capture_net
from tightrope_micro.paging.economy import Economy
from tightrope_micro.paging.resident import floor_bytes
from tightrope_micro.planning import STACK_RESERVE, STATIC_BYTES


class Smooth(nn.Module):
    """A layer that has no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(4, 4), nn.Softplus())
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.fc(self.hidden(x)), y)


class Tied(nn.Module):
    """One weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.fc(F.relu(self.fc(x))), y)


def refused(model: nn.Module, *args: torch.Tensor) -> UnsupportedOpError:
    with pytest.raises(UnsupportedOpError) as caught:
        capture_step(model, args, torch.optim.SGD(model.parameters(), lr=0.1))
    return caught.value


BATCH = torch.ones(3, 4), torch.tensor([0, 1, 1])


def test_an_op_without_a_kernel_is_named_with_module_and_line() -> None:
    error = refused(Smooth(), *BATCH)
    assert re.search(r"aten\.softplus\.default in hidden\.1 \(test_micro_refusals\.py:\d+\)", str(error))
    assert re.search(r"aten\.softplus\.default in hidden\.1 \(test_micro_refusals\.py:\d+\)", error.op)
    assert "Replace the op in the model" in str(error)


def test_a_weight_that_is_used_twice_is_refused() -> None:
    assert "gradient of a parameter for more than its update" in str(refused(Tied(), *BATCH))


def test_classes_and_rows_that_there_are_not_are_refused() -> None:
    model = nn.Linear(4, 3)

    class Loss(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.inner(x), y)

    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong in (3, -1, -100):
        with pytest.raises(TightropeError, match=f"gets the number {wrong}, of 3 classes counted from 0"):
            capture_step(Loss(model), (torch.ones(2, 4), torch.tensor([2, wrong])), rule)
    words, args, rule = NETS["sentences"]()
    with pytest.raises(TightropeError, match=r"embedding.* gets the number 12, of 12 rows counted from 0"):
        capture_step(words, (torch.full_like(args[0], 12), args[1]), rule)


def test_a_forward_that_computes_nothing_is_refused() -> None:
    for model in (nn.Identity(), nn.Sequential()):
        with pytest.raises(CaptureError, match="computes nothing"):
            capture_net(model, (torch.ones(1, 4),))


def test_a_norm_with_running_statistics_is_refused() -> None:
    model = Residual((4,), normed=True).eval()
    error = refused(model, torch.ones(2, 3, 8, 8), torch.tensor([0, 1]))
    assert "aten._native_batch_norm_legit_no_training.default in blocks.0.norm" in str(error)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.Adagrad])
def test_another_optimizer_is_refused(make: type[torch.optim.Optimizer]) -> None:
    model, args, _ = NETS["pooled"]()
    with pytest.raises(TightropeError, match=f"{make.__name__} has no kernel in C: use torch.optim.SGD"):
        capture_step(model, args, make(model.parameters(), lr=0.1))


def test_dampening_is_refused() -> None:
    model, args, _ = NETS["pooled"]()
    rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
    with pytest.raises(TightropeError, match="dampening"):
        capture_step(model, args, rule)


def test_an_optimizer_of_another_model_is_refused() -> None:
    model, args, _ = NETS["pooled"]()
    _, _, other = NETS["normed"]()
    with pytest.raises(TightropeError, match="no parameter of the model"):
        capture_step(model, args, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_the_limit_that_a_refusal_names_works(name: str, steps: dict[str, MicroStep], board: Machine) -> None:
    floor, witness = floor_bytes(steps[name].graph)
    with pytest.raises(InfeasibleError) as caught:
        compile_step(steps[name], board, ram=floor // 2, tiles=False)
    error, op = caught.value, steps[name].graph.ops[witness]
    assert op.describe() in str(error)
    assert f"alone needs {floor} B at once" in str(error)
    assert error.lower_bound == floor + STACK_RESERVE + STATIC_BYTES
    assert error.smallest_found is not None
    short = Economy(walks=20)
    compiled = compile_step(steps[name], board, ram=error.smallest_found, tiles=False, economy=short)
    assert compiled.manifest.total <= error.smallest_found
    with pytest.raises(InfeasibleError) as caught:
        compile_step(steps[name], board, ram=STACK_RESERVE)
    named = caught.value.smallest_found
    assert named is not None
    assert caught.value.lower_bound <= named <= error.smallest_found
    assert compile_step(steps[name], board, ram=named, economy=short).manifest.total <= named


@pytest.mark.parametrize("name", ["dense", "pooled", "normed", "sentences"])
def test_without_pages_the_limit_named_works_and_reruns_never_need_more(
    name: str, steps: dict[str, MicroStep], board: Machine
) -> None:
    least = {}
    for reruns in (False, True):
        economy = Economy(pages=False, reruns=reruns, walks=20)
        with pytest.raises(InfeasibleError) as caught:
            compile_step(steps[name], board, ram=2300, economy=economy)
        least[reruns] = caught.value.smallest_found or 0
        compiled = compile_step(steps[name], board, ram=least[reruns], economy=economy)
        assert compiled.manifest.total <= least[reruns]
        storages = compiled.planned.tiled.graph.storages
        pages = [one for one in compiled.planned.plan.schedule.steps if isinstance(one, PageIn)]
        assert pages
        assert all(storages[one.storage].home for one in pages)
    assert least[True] <= least[False]


@pytest.mark.parametrize("name", ["dense", "normed"])
def test_the_limit_that_is_named_is_the_same_from_every_smaller_one(
    name: str, steps: dict[str, MicroStep], board: Machine
) -> None:
    named = set()
    for ram in (2300, 3200, 4100):
        with pytest.raises(InfeasibleError) as caught:
            compile_step(steps[name], board, ram=ram)
        named.add(caught.value.smallest_found)
    assert len(named) == 1


def test_a_limit_above_the_machine_is_refused(steps: dict[str, MicroStep], board: Machine) -> None:
    with pytest.raises(TightropeError, match="has 1073741824 B"):
        compile_step(steps["pooled"], board, ram=2**31)


def test_a_slower_tier_that_is_too_small_is_refused(steps: dict[str, MicroStep]) -> None:
    tiers = 'tiers = [{name="ram", bytes=65536, alignment=4}, {name="flash", bytes=1024, alignment=512}]'
    with pytest.raises(TightropeError, match="weights, state and inputs; flash of 'tiny' has 1024 B"):
        compile_step(steps["pooled"], Machine.parse(f'name = "tiny"\n{tiers}'), ram=60_000)


def test_a_machine_without_a_slower_tier_is_refused(steps: dict[str, MicroStep]) -> None:
    machine = Machine.parse('name = "flat"\ntiers = [{name="ram", bytes=65536, alignment=4}]')
    with pytest.raises(TightropeError, match="no slower tier"):
        compile_step(steps["pooled"], machine, ram=60_000)


@pytest.mark.slow
def test_a_folder_that_is_not_ours_is_left_alone(
    steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    compiled = compile_step(steps["pooled"], board, ram=20_000)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years of work")
    with pytest.raises(TightropeError, match="did not write it"):
        compiled.write(theirs)
    assert [file.name for file in theirs.iterdir()] == ["thesis.tex"]
    mine = compiled.write(tmp_path / "mine")
    before = sorted(file.name for file in mine.iterdir())
    assert compiled.write(mine) == mine
    assert sorted(file.name for file in mine.iterdir()) == before
    with pytest.raises(TightropeError, match="no folder"):
        compiled.write(tmp_path / "absent" / "folder")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine", "theirs"]


def test_other_planners_refuse_a_graph_with_weights_in_a_slower_tier(steps: dict[str, MicroStep]) -> None:
    with pytest.raises(TightropeError, match="tightrope micro compile plans such steps"):
        whole_bytes(steps["pooled"].graph)


def test_energy_on_a_machine_that_does_not_tell_its_power_is_refused(steps: dict[str, MicroStep]) -> None:
    unknown = Machine.parse(
        'name = "unknown"\ntiers = [{name="ram", bytes=1048576, alignment=4}, '
        '{name="card", bytes=8388608, alignment=4, engines=0}]'
    )
    for asked in (Economy(objective="joules"), Economy(joules=1.0)):
        with pytest.raises(TightropeError, match=r"'unknown' does not tell its power \(watts\)"):
            compile_step(steps["residual"], unknown, ram=300_000, economy=asked)
