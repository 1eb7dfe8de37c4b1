"""Step time and operator time, matches with the wrong model, and what is said of the op at the peak."""

import json

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tightrope.core import Event, EventPhase, Graph, Module, Op, Storage, Summary, Trace
from tightrope.core.trace import POOR_MATCH
from tightrope.plan import solve
from tightrope_trace import annotate, diff, dump, explain, load, parse_profile, record_eager, tree_of
from tightrope_trace.align import aligned


def mlp(depth: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.ReLU())))


def convolutions(channels: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in zip((3, *channels), channels, strict=False):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class Attending(nn.Module):
    """Self attention of torch, whose ``out_proj`` is never called, and a norm."""

    def __init__(self, *, fused: bool = True) -> None:
        super().__init__()
        self.fused = fused
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.0 if fused else 0.1, batch_first=True)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = self.attention(x, x, x, need_weights=not self.fused)[0]
        out: torch.Tensor = self.head(self.norm(x + attended))
        return out


class Looped(nn.Module):
    """A cell that runs once a token."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = cell = torch.zeros(len(x), 8)
        total = torch.zeros(())
        for _ in range(5):
            hidden, cell = self.cell(x, (hidden, cell))
            total = total + self.head(hidden).sum()
        return total


NETS = {
    "mlp3": (lambda: mlp(3), (4, 8)),
    "mlp5": (lambda: mlp(5), (4, 8)),
    "narrow": (lambda: convolutions((4, 4)), (2, 3, 8, 8)),
    "deep": (lambda: convolutions((4, 4, 8, 8, 8)), (2, 3, 8, 8)),
    "attending": (Attending, (2, 6, 16)),
    "looped": (Looped, (4, 8)),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
        (2, 6, 16),
    ),
}


def profiled(model: nn.Module, shape: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Torch's own profile of one forward and backward."""
    torch.manual_seed(0)
    with profile(activities=[ProfilerActivity.CPU]) as watcher:
        model(torch.randn(shape)).sum().backward()
    file = tmp_path_factory.mktemp("profiles") / "profile.json"
    watcher.export_chrome_trace(str(file))
    return file.read_bytes()


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, tuple[Module, ...]]]:
    """Profiles and module trees of all nets."""
    made = {name: (build(), shape) for name, (build, shape) in NETS.items()}
    return {
        name: (profiled(model, shape, tmp_path_factory), tree_of(model))
        for name, (model, shape) in made.items()
    }


def test_right_models_match_and_wrong_ones_do_not(
    profiles: dict[str, tuple[bytes, tuple[Module, ...]]],
) -> None:
    for ran, (data, _) in profiles.items():
        slices = parse_profile(data)
        for told, (_, tree) in profiles.items():
            trace = annotate(slices, tree)
            match = trace.summary.match
            assert match is not None
            assert (match >= POOR_MATCH) == (ran == told), (ran, told, match)
            assert bool(explain(trace).warning) == (ran != told)


def test_a_match_is_kept_in_the_file_and_nothing_is_said_without_a_model(
    profiles: dict[str, tuple[bytes, tuple[Module, ...]]],
) -> None:
    slices = parse_profile(profiles["deep"][0])
    wrong = annotate(slices, profiles["mlp3"][1])
    assert load(dump(wrong)).summary.match == wrong.summary.match == 0.0
    alone = annotate(slices)
    assert alone.summary.match is None
    assert explain(alone).warning == ""


def test_layers_that_are_missing_or_left_over_count_against_a_match() -> None:
    tree = [Module("", "Sequential"), *(Module(str(k), "Linear", 0) for k in range(4))]
    assert aligned(["aten::linear"] * 4, tree).match == 1.0
    assert aligned(["aten::linear"] * 3, tree).match == 0.75
    assert aligned(["aten::linear"] * 4 + ["aten::conv2d"], tree).match == 0.8
    assert aligned(["aten::add"] * 4, [Module(""), Module("x", "Mine", 0)]).match is None


@pytest.mark.parametrize("fused", [True, False])
def test_ops_of_attention_are_those_of_the_module_that_is_called(
    fused: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = Attending(fused=fused)
    with record_eager(model) as recording:
        model(torch.randn(2, 6, 16)).sum().backward()
    eager = recording.trace
    told = annotate(parse_profile(profiled(model, (2, 6, 16), tmp_path_factory)), tree_of(model))
    for trace in (eager, told):
        paths = {trace.modules[event.module].path for event in trace.events}
        assert paths == {"", "attention", "norm", "head"}
    named = {(event.name, told.modules[event.module].path) for event in told.events}
    assert ("aten::linear", "attention") in named
    assert ("aten::scaled_dot_product_attention" if fused else "aten::softmax", "attention") in named
    assert len([row for row in named if row[0] == "aten::linear"]) == 2  # of the attention, of the head


@pytest.mark.parametrize("before", [False, True])
def test_the_layers_of_torchs_encoder_are_told_apart(
    before: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=before)
    model, shape = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (2, 6, 16)
    trace = annotate(parse_profile(profiled(model, shape, tmp_path_factory)), tree_of(model))
    names = ("aten::dropout", "aten::linear", "aten::layer_norm")
    ran = [
        trace.modules[event.module].path
        for event in trace.events
        if event.phase is EventPhase.FORWARD and event.name in names
    ]
    order = ["self_attn", "dropout1", "norm1", "linear1", "dropout", "linear2", "dropout2", "norm2"]
    if before:
        order = ["norm1", "self_attn", "dropout1", "norm2", "linear1", "dropout", "linear2", "dropout2"]
    assert trace.summary.match == 1.0
    assert list(dict.fromkeys(ran)) == [f"layers.{k}.{name}" for k in range(2) for name in order]


def test_step_time_is_from_the_first_start_to_the_last_end_and_operator_time_the_sum() -> None:
    events = (
        Event(10, 30, 0, "a", phase=EventPhase.FORWARD),
        Event(12, 20, 1, "in a", phase=EventPhase.FORWARD),
        Event(50, 70, 2, "b", phase=EventPhase.BACKWARD),
    )
    trace = Trace("observed", (), events)
    answers = explain(trace)
    assert (trace.ns, trace.operator_ns) == (answers.ns, answers.operator_ns) == (60, 40)
    assert "of 40 ns operator time" in str(answers)
    assert "step time 60 ns" in str(answers)
    changed = diff(Trace("observed", ()), trace)
    assert (changed.ns, changed.operator_ns) == ((0, 60), (0, 40))
    value = json.loads(json.dumps(answers.to_dict()))
    assert (value["ns"], value["operator_ns"]) == (60, 40)


def test_the_op_at_the_peak_is_not_said_to_need_its_own_output() -> None:
    ops = (
        Op(0, "a", "aten.relu", creates=(0,), ns=9),
        Op(1, "b", "aten.gelu", reads=(0,), creates=(1,), ns=9),
        Op(2, "c", "aten.sum", reads=(0, 1), creates=(2,), ns=9),
    )
    graph = Graph(ops, (Storage(0, 640), Storage(1, 6400), Storage(2, 64)))
    text = {reason.storage: reason.text for reason in solve(graph, budget=2**20, planner="given").reasons}
    assert "but aten.sum, which runs at the peak, reads it" in text[0]
    assert "but aten.sum, which runs at the peak, reads it" in text[1]
    assert "but it is the output of aten.sum itself, which runs at the peak" in text[2]


def test_what_a_doubtful_trace_says() -> None:
    assert Summary().warning() == Summary(match=1.0).warning() == ""
    assert "match poorly (40 %)" in Summary(match=0.4).warning()
