"""Written files do what was forecast: bytes, ops, gradients; and wrong runs are found."""

import ast
import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from export_nets import Loss, build_conv, build_decoder, build_mlp
from torch import Tensor, nn

from tightrope.core import CaptureError, InfeasibleError, TightropeError
from tightrope_export.choose import ChosenForm, Hints, Search, choose, refusal
from tightrope_export.commands.exporting import written
from tightrope_export.engines import choose_setting
from tightrope_export.judge import findings
from tightrope_export.peak import Walker
from tightrope_export.play import Player, imported, shown
from tightrope_export.record import record_step
from tightrope_export.values.form import AgainRegion, FormPromise, Shown, Target
from tightrope_export.write import check_path, python_file

BUILDS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "mlp": build_mlp, "decoder": build_decoder, "conv": build_conv,
}  # fmt: skip


class Case:
    """A net, its walker, and a player of the plain model."""

    def __init__(self, name: str) -> None:
        self.model, self.inputs = BUILDS[name]()
        self.walker = Walker(record_step(self.model, self.inputs))
        self.plain = Player(self.model, self.inputs)

    def run(self, chosen: ChosenForm, folder: Path) -> Shown:
        """Write a form and run it."""
        path = folder / "recompute.py"
        path.write_text(written(self.walker, chosen, "Loss", "recompute"))
        return shown(self.plain, Player(self.model, self.inputs, None, imported(path).apply))

    def chosen(self, *regions: AgainRegion) -> ChosenForm:
        """A form with its figures."""
        return ChosenForm(regions, self.walker.promise(regions))


@pytest.fixture(scope="module", params=BUILDS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture(scope="module")
def decoder() -> Case:
    return Case("decoder")


def smallest(walker: Walker, target: Target) -> int:
    with pytest.raises(InfeasibleError) as caught:
        choose(walker, target, 1)
    assert caught.value.smallest_found is not None
    return caught.value.smallest_found


@pytest.mark.parametrize("target", ["sac", "hf", "blocks"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_written_file_takes_what_was_forecast_with_equal_bits(
    case: Case, target: Target, share: float, tmp_path: Path
) -> None:
    small, whole = smallest(case.walker, target), case.walker.promise(()).total
    budget = int(small + share * (whole - small))
    chosen = choose(case.walker, target, budget)
    assert chosen.promise.total <= budget < whole
    seen = case.run(chosen, tmp_path)
    assert findings(chosen.promise, seen) == []
    assert abs(chosen.promise.peak - seen.peak) <= 0.003 * seen.peak


def test_the_plain_step_is_forecast_to_the_byte(case: Case, tmp_path: Path) -> None:
    promise = case.walker.promise(())
    assert abs(promise.peak - case.plain.peak()) <= 0.002 * promise.peak
    assert promise.ratio == 1
    assert promise.again == ()
    assert findings(promise, case.run(case.chosen(), tmp_path)) == []


def test_no_form_is_slower_than_checkpointing_every_block_at_its_bytes(case: Case) -> None:
    search = Search(case.walker, 1, Hints())
    for members in search.lists.values():
        blocks = case.walker.promise(tuple(map(AgainRegion, members)))
        for target in ("sac", "blocks", "hf"):
            assert choose(case.walker, target, blocks.total).promise.ns <= blocks.ns


def test_kept_results_are_not_computed_again_and_cost_their_bytes(decoder: Case, tmp_path: Path) -> None:
    products = [
        name for name in decoder.walker.extents[_call(decoder, "net.layers.1")].names if "addmm" in name[0]
    ]
    whole = decoder.chosen(AgainRegion("net.layers.1"))
    kept = decoder.chosen(AgainRegion("net.layers.1", tuple(products)))
    assert dict(whole.promise.again)["aten.addmm.default"] == 4
    assert "aten.addmm.default" not in dict(kept.promise.again)
    assert kept.promise.held > whole.promise.held
    assert kept.promise.ns < whole.promise.ns
    assert findings(kept.promise, decoder.run(kept, tmp_path)) == []


def _call(case: Case, path: str) -> int:
    return case.walker.by_path[path][0]


def test_running_statistics_are_updated_once(tmp_path: Path) -> None:
    case = Case("conv")
    chosen = case.chosen(AgainRegion("net.blocks.0"), AgainRegion("net.blocks.2"))
    path = tmp_path / "recompute.py"
    path.write_text(written(case.walker, chosen, "Loss", "recompute"))
    model, plain = copy.deepcopy(case.model), copy.deepcopy(case.model)
    imported(path).apply(model)
    for one in (model, plain):
        for _ in range(3):
            one(*case.inputs).backward()
    assert int(model.get_buffer("net.blocks.0.bn1.num_batches_tracked")) == 3
    for (name, ours), (_, theirs) in zip(model.named_buffers(), plain.named_buffers(), strict=True):
        assert torch.equal(ours, theirs), name
    bare = tmp_path / "bare.py"
    bare.write_text(
        path.read_text().replace('"net.blocks.0": [\n        ("bn1"', '"no.such": [\n        ("bn1"', 1)
    )
    wrong = shown(case.plain, Player(case.model, case.inputs, None, imported(bare).apply))
    assert any("num_batches_tracked" in one for one in findings(chosen.promise, wrong))


def test_an_applied_file_is_taken_back_and_copied(decoder: Case, tmp_path: Path) -> None:
    path = tmp_path / "recompute.py"
    path.write_text(written(decoder.walker, decoder.chosen(AgainRegion("net.layers.0")), "Loss", "recompute"))
    module, model = imported(path), copy.deepcopy(decoder.model)
    names = [*model.state_dict()]
    module.apply(model)
    assert [*model.state_dict()] == names
    with pytest.raises(ValueError, match=r"net\.layers\.0: its forward was replaced before"):
        module.apply(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
        assert float(other(*decoder.inputs)) != float(model(*decoder.inputs))
    module.remove(model)
    assert "forward" not in vars(model.get_submodule("net.layers.0"))


def test_the_written_file_needs_nothing_but_torch_and_passes_the_linter(case: Case, tmp_path: Path) -> None:
    members = max(Search(case.walker, 1, Hints()).lists.values(), key=len)
    regions = [AgainRegion(path) for path in members]
    name = next(iter(case.walker.extents[_call(case, regions[0].path)].names))
    chosen = case.chosen(regions[0]._replace(saved=(name,)), *regions[1:])
    path = tmp_path / "recompute.py"
    path.write_text(written(case.walker, chosen, "Loss", "recompute"))
    found = {
        (str(node.module) if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert found <= {"functools", "types", "typing", "torch"}
    rules = ["--select", "E,F,W,I,UP,B,RUF,SIM", "--line-length", "110", "--isolated"]
    command = [sys.executable, "-m", "ruff", "check", *rules, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named ruff" in ran.stderr:
        pytest.skip("ruff is not installed")
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    "path", ['a"]\nimport os', "a b", "", "a..b", "os.system('x')", "a.\u0661", "x" * 500, "a\n", "{a}"]
)
def test_names_that_are_no_paths_are_never_written(path: str) -> None:
    with pytest.raises(TightropeError, match="is no path of a module"):
        check_path(path)
    promise = FormPromise(1, 0, 1, 1, ())
    with pytest.raises(TightropeError):
        python_file((AgainRegion(path),), promise, {}, model="Net", stem="recompute")
    with pytest.raises(TightropeError):
        python_file((), promise, {"a": [("b", path)]}, model="Net", stem="recompute")
    with pytest.raises(TightropeError, match="is no name of an op"):
        python_file((AgainRegion("a", ((f"aten.{path}()", 0),)),), promise, {}, model="Net", stem="recompute")


def test_class_and_file_names_are_no_code_either() -> None:
    text = python_file((), FormPromise(1, 0, 1, 1, ()), {}, model='"""\nimport os', stem='"""\nimport os')
    assert "import os" not in text
    compile(text, "recompute.py", "exec")


PROMISE = FormPromise(1000, 0, 12, 10, (("aten.mm.default", 2),), 0, 5)
RAN = Shown(1000, (("aten.mm.default", 2),), 5, ())


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (RAN._replace(peak=1021), "the peak is 1021"),
        (RAN._replace(peak=979), "the peak is 979"),
        (RAN._replace(peak=0), "the peak is 0"),
        (RAN._replace(again=()), "runs 0 times more"),
        (RAN._replace(again=(("aten.mm.default", 3),)), "runs 3 times more"),
        (RAN._replace(again=(*RAN.again, ("aten.add.Tensor", 1))), "and not 0"),
        (RAN._replace(saved=6), "saves 6 tensors"),
        (RAN._replace(differs=("gradient of a",)), "gradient of a has other bits"),
    ],
)
def test_the_judge_finds_wrong_runs(seen: Shown, said: str) -> None:
    assert findings(PROMISE, RAN) == []
    assert any(said in one for one in findings(PROMISE, seen))


def test_the_judge_finds_a_file_that_keeps_or_computes_something_else(decoder: Case, tmp_path: Path) -> None:
    names = [*decoder.walker.extents[_call(decoder, "net.layers.0")].names]
    products = tuple(name for name in names if "addmm" in name[0])
    promised = decoder.chosen(AgainRegion("net.layers.0", products))
    wrong_forms: list[tuple[AgainRegion, ...]] = [
        (), (AgainRegion("net.layers.0"),), (AgainRegion("net.layers.0", products[1:]),)
    ]  # fmt: skip
    for regions in wrong_forms:
        assert findings(promised.promise, decoder.run(decoder.chosen(*regions), tmp_path))


class Kept(nn.Module):
    """Keeps what it made, changes its argument, or reads what is not its argument."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(32, 32)
        self.cache: list[Tensor] = []
        self.other: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        if self.how == "cache":
            self.cache.append(y * 2)
        if self.how == "argument":
            x.mul_(2)
        if self.how == "other" and self.other is not None:
            y = y * self.other
        return torch.tanh(y)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cache", "keeps what it made, such as a cache"),
        ("argument", "has an argument that is changed"),
        ("other", "reads what is not"),
        ("", ""),
    ],
)
def test_modules_that_cannot_run_again_are_left_alone(how: str, said: str) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.kept = nn.Linear(32, 32), Kept(how)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.first(x)) + 1
            self.kept.other = x * 3 if how == "other" else None
            y: Tensor = self.kept(x)
            self.kept.other = None
            return y

    walker = Walker(record_step(Loss(Around()), (torch.randn(8, 32), torch.randint(32, (8,)))))
    assert refusal(walker, "net.kept").startswith(said)
    assert bool(refusal(walker, "net.kept")) == bool(said)
    assert refusal(walker, "") == "is the whole model"
    assert refusal(walker, "no.such") == "was not called"


def test_recording_leaves_the_model_as_it_was() -> None:
    model, inputs = build_conv()
    before, state = torch.get_rng_state(), {name: one.clone() for name, one in model.state_dict().items()}
    record_step(model, inputs)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_recorded_is_said() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(TightropeError, match="returns no scalar loss"):
        record_step(model, (torch.ones(2, 4),))

    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum() if x.sum() > 0 else -x.sum()

    assert record_step(Branch(), (torch.ones(2, requires_grad=True),)).saves == ()
    with pytest.raises(CaptureError, match="Branch cannot be recorded"):
        record_step(Branch(), (torch.ones(2, device="meta", requires_grad=True),))


def test_settings_of_engines_mean_layers_by_number(decoder: Case) -> None:
    whole = decoder.walker.promise(()).total
    layers = [f"net.layers.{number}" for number in range(3)]
    full = decoder.walker.promise(tuple(map(AgainRegion, layers))).total
    assert choose_setting(Search(decoder.walker, whole, Hints()), "torchtitan")[1] == 'mode = "none"\n'
    second = decoder.walker.promise((AgainRegion(layers[1]),)).total
    assert full < second < whole
    chosen, text = choose_setting(Search(decoder.walker, second, Hints()), "torchtitan")
    assert text == 'mode = "selective"\nselective_ac_option = "2"\n'
    assert chosen.form == (AgainRegion(layers[1]),)
    chosen, text = choose_setting(Search(decoder.walker, (whole + full) // 2, Hints()), "megatron")
    assert chosen.form == tuple(map(AgainRegion, layers[: len(chosen.form)]))
    assert text.endswith(f"--recompute-method block --recompute-num-layers {len(chosen.form)}\n")
    with pytest.raises(InfeasibleError):
        choose_setting(Search(decoder.walker, 1, Hints()), "megatron")
