"""Nets in ONNX: read, and compared with the reference evaluator of the onnx package."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

from tightrope.cli.app import app
from tightrope.core import TightropeError, UnsupportedOpError
from tightrope_micro.infer import capture_net, evaluate_net
from tightrope_micro.onnx_net import load_onnx

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")


class Maps(nn.Module):
    """Convolutions with uneven padding, norms, pools, gates, a join, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 8, 3, 2, bias=False), nn.BatchNorm2d(8)
        self.depth, self.gate = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1)
        self.prelu, self.last = nn.PReLU(8), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.first(F.pad(x, (0, 1, 0, 1)))))
        y = F.hardswish(self.depth(x)) * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True)))
        y = torch.cat((F.max_pool2d(self.prelu(y), 2), F.avg_pool2d(F.gelu(x), 2)), 1)
        return self.last(F.interpolate(y, scale_factor=2).mean((2, 3))).softmax(-1)  # type: ignore[no-any-return]


class Steps(nn.Module):
    """A convolution of one dimension, recurrent layers, a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 5, padding=2)
        self.lstm = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)
        self.gru, self.norm, self.last = nn.GRU(12, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lstm(torch.relu(self.conv(x)).transpose(1, 2))[0].transpose(0, 1)
        return self.last(self.norm(self.gru(y)[0][-1])).log_softmax(-1)  # type: ignore[no-any-return]


def exported(net: nn.Module, shape: tuple[int, ...], path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net.eval(), (torch.zeros(shape),), str(path), dynamo=False, opset_version=18)
    return path


@pytest.mark.parametrize(("make", "shape"), [(Maps, (1, 2, 16, 16)), (Steps, (1, 3, 20))])
def test_a_net_gives_what_the_reference_evaluator_gives(
    make: Callable[[], nn.Module], shape: tuple[int, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    path = exported(make(), shape, tmp_path / "net.onnx")
    net, (sample,) = load_onnx(path)
    assert sample.shape == shape
    x = torch.randn(shape)
    (want,) = reference.ReferenceEvaluator(str(path)).run(None, {net.inputs[0]: x.numpy()})
    torch.testing.assert_close(net(x).detach(), torch.from_numpy(want), atol=1e-5, rtol=1e-5)
    found = evaluate_net(capture_net(net, [x]), [x]).reshape(want.shape)
    torch.testing.assert_close(found, torch.from_numpy(want), atol=1e-5, rtol=1e-5)


def test_a_command_compiles_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = exported(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), (1, 4), tmp_path / "net.onnx")
    out, command = tmp_path / "out", ["micro", "compile", str(path), "--ram", "8KiB", "-o"]
    done = CliRunner().invoke(app, [*command, str(out), "--infer"])
    assert done.exit_code == 0, done.output
    assert (out / "net.c").is_file()
    monkeypatch.setattr("tightrope_micro.flash.shutil.which", lambda name: None)
    done = CliRunner().invoke(app, [*command, str(tmp_path / "unlinked"), "--infer"])
    assert done.exit_code == 0, done.output
    assert "the code was not linked" in done.output
    done = CliRunner().invoke(app, [*command, str(tmp_path / "no"), "--integer"])
    assert isinstance(done.exception, TightropeError)
    assert "load_onnx" in str(done.exception)
    done = CliRunner().invoke(app, [*command, str(tmp_path / "no")])
    assert "give --infer" in str(done.exception)


def test_what_is_no_net_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TightropeError, match="no net at"):
        load_onnx(tmp_path / "none.onnx")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\x08\x07not a net")
    with pytest.raises(TightropeError, match="is no net in ONNX"):
        load_onnx(damaged)
    path = exported(nn.ConvTranspose2d(1, 1, 2), (1, 1, 4, 4), tmp_path / "transposed.onnx")
    with pytest.raises(UnsupportedOpError, match=r"ConvTranspose of .* has no kernel"):
        load_onnx(path)
    outside = tmp_path / "outside.onnx"
    net = onnx.load(str(exported(nn.Linear(300, 4), (1, 300), tmp_path / "net.onnx")))
    onnx.save(net, str(outside), save_as_external_data=True, size_threshold=0, location="weights")
    with pytest.raises(TightropeError, match="in other files"):
        load_onnx(outside)
    wrong = onnx.helper.make_node("Reshape", ["x", "s"], ["y"])
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [wrong], "g", [value("x", 1, [2, 3])], [value("y", 1, [7])],
        [onnx.helper.make_tensor("s", 7, [1], [7])],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), str(damaged))
    with pytest.raises(TightropeError, match=r"Reshape of .* fails for the sizes"):
        load_onnx(damaged)
