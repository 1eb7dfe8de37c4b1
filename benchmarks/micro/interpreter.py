"""E2: the C of an integer net beside TensorFlow Lite Micro's interpreter, on the same 8-bit net.

The net is quantized by us, written as a .tflite file with the same weights, biases and multipliers, and both
are linked for an emulated Cortex-M4F with benches of one kind. *RAM* is static RAM and the most bytes of the
stack; the interpreter's arena is the smallest multiple of 64 B with which it starts. *Flash* is all code and
constants of the image, benches and the .tflite file among them. The interpreter is built with
reference kernels, see `benchmarks.micro.tflm`.
Products are rounded once (``TFLITE_SINGLE_ROUNDING=1``, a switch of its source); outputs that differ
where they are rounded twice, as in its wheel, are counted.
The limit that our plan gets is three quarters of what the interpreter took, its stack included; the plan of
whole maps, without that limit, stands beside it. Instructions are those of a call, counted by the emulator.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from benchmarks.micro.rows import Row
from benchmarks.micro.tflm import Kernels, run_interpreter
from tightrope.cli.machines import find_machine
from tightrope.core import Items, Op, View
from tightrope_micro import run_on_board
from tightrope_micro.emulate import INSTRUCTIONS_PER_TICK
from tightrope_micro.infer import CompiledNet, capture_net, compile_net, ranges_of
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.quantize import quantize
from tightrope_micro.planning import num_macs
from tightrope_micro.translator import whole_numbers

_NUM_SAMPLES: Final = 60
_RAM, _FLASH = 0.75, 0.90
_RESERVE: Final = 1024
"""Bytes of its limit that our plan leaves for the stack."""
_REFERENCE: Final = Kernels(
    {
        "conv": "AddConv2D()", "depth": "AddDepthwiseConv2D()", "linear": "AddFullyConnected()",
        "pool": "AddMaxPool2D()",
    },
    {
        "conv": ("conv", "conv_common"), "depth": ("depthwise_conv", "depthwise_conv_common"),
        "linear": ("fully_connected", "fully_connected_common"), "pool": ("pooling", "pooling_common"),
    },
    flags=("-DTFLITE_SINGLE_ROUNDING=1",),
)  # fmt: skip


def _nets(seed: int) -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(seed)
    dense = nn.Sequential(nn.Linear(33, 20), nn.ReLU(), nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 4))
    plain = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 10),
    )  # fmt: skip
    apart = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU(),
        nn.Conv2d(16, 32, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 64, 10),
    )  # fmt: skip
    return {
        "perceptron 33-20-10-4": (dense, (1, 33)),
        "CNN of 28 x 28": (plain, (1, 1, 28, 28)),
        "depthwise CNN of 16 x 16": (apart, (1, 1, 16, 16)),
    }


def e2(python: str, source: str, seeds: Sequence[int] = (7, 8)) -> list[Row]:
    """Compare RAM, flash and outputs on three nets, drawn with seeds."""
    claim = "RAM >= 25 % and flash >= 10 % below an interpreter's, outputs bit-equal"
    if not shutil.which(python) or not Path(source, "tensorflow/lite/micro").is_dir():
        why = (
            "peer not installed: `apt-get install libstdc++-arm-none-eabi-newlib`, and give --tflm, an "
            "interpreter with `pip install --pre tflite-micro`, and "
            "--tflm-source, a checkout of tflite-micro after `make -f "
            "tensorflow/lite/micro/tools/make/Makefile third_party_downloads`"
        )
        return [Row("E2", claim, "not run", False, why)]
    rows = []
    for seed in seeds:
        for name, (model, shape) in _nets(seed).items():
            rows.append(_row(f"{name}, seed {seed}", claim, (model.eval(), shape, seed), python, source))
    return rows


def _row(
    name: str, claim: str, made: tuple[nn.Module, tuple[int, ...], int], python: str, source: str
) -> Row:
    model, shape, seed = made
    generator = torch.Generator().manual_seed(1000 + seed)
    samples = [(torch.randn(shape, generator=generator),) for _ in range(_NUM_SAMPLES)]
    net = capture_net(model, samples[0])
    whole = quantize(net, ranges_of(net, samples[:40]), narrow=True)
    machine = find_machine("stm32h743")
    plain = compile_net(whole, machine, ram=262_144, pages=False)
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        given = [plain.sample(*one) for one in samples]
        twice = _written(whole, given, here, (python, source))
        peer = run_interpreter(
            here, _REFERENCE, twice["kinds"], [_turned(one, shape) for one in given], Path(source)
        )
        asked = int(_RAM * peer.ram)
        compiled = compile_net(whole, machine, ram=asked, stack=_RESERVE, pages=False)
        beside, ours = (
            run_on_board(one.write(here / folder), given, count=True)
            for one, folder in ((plain, "plain"), (compiled, "out"))
        )
    equal = sum(one == other for one, other in zip(ours.outputs, peer.outputs, strict=True))
    apart = [
        abs(np.frombuffer(one, np.int8).astype(int) - np.array(other))
        for one, other in zip(ours.outputs, twice["outputs"], strict=True)
    ]
    differ, most = sum(int((one > 0).sum()) for one in apart), max(int(one.max()) for one in apart)
    held = ours.ram <= asked and ours.rom <= _FLASH * peer.rom and equal == len(given)
    held = held and ours.outputs == beside.outputs
    calls = INSTRUCTIONS_PER_TICK / len(given)
    text = (
        f"{name}: RAM {ours.ram} B (arena {ours.arena}, stack {ours.stack}), "
        f"{_below(ours.ram, peer.ram)} below; flash {ours.rom} B, {_below(ours.rom, peer.rom)} below; "
        f"{ours.ticks * calls:.0f} instructions; {_order(whole, compiled)}; of whole maps RAM "
        f"{beside.ram} B, {_below(beside.ram, peer.ram)} below, flash {beside.rom} B, "
        f"{beside.ticks * calls:.0f} instructions; outputs of {equal} of {len(given)} inputs bit-equal; "
        f"beside the wheel's interpreter, which rounds twice, {differ} of "
        f"{sum(one.size for one in apart)} numbers differ, by at most {most}"
    )
    their = f"RAM {peer.ram} B (arena {peer.arena}), flash {peer.rom} B, {peer.instructions} instructions"
    return Row("E2", claim, text, held, f"TensorFlow Lite Micro: {their}")


def _below(ours: int, theirs: int) -> str:
    return f"{100 - 100 * ours / theirs:.1f} %"


def _order(whole: IntegerNet, compiled: CompiledNet) -> str:
    """Say whether the plan that was found computes in bands."""
    graph = compiled.planned.tiled.graph
    bands = sum(op.target.startswith("micro.put_rows") for op in graph.ops)
    if not bands:
        return "maps whole"
    more = sum(num_macs(graph, op) for op in graph.ops) / sum(
        num_macs(whole.graph, op) for op in whole.graph.ops
    )
    return f"in {bands} bands, {100 * more - 100:.1f} % more work as modelled"


def _turned(given: bytes, shape: tuple[int, ...]) -> bytes:
    """An input with channels last."""
    array = np.frombuffer(given, np.int8).reshape(shape)
    return array.transpose(0, 2, 3, 1).tobytes() if len(shape) == 4 else given


def _written(whole: IntegerNet, given: Sequence[bytes], here: Path, peer: tuple[str, str]) -> dict[str, Any]:
    """Write the .tflite file by a peer's interpreter and source; returns what the wheel computes."""
    (one,) = whole.graph.parts[0].inputs
    assert one.view is not None
    arrays: dict[str, Any] = {}
    layers = []
    shapes = {r.view.base: r.view.shape for op in whole.graph.ops for r in op.results}
    shapes[one.view.base] = one.view.shape
    for at, op in enumerate(whole.graph.ops):
        layers.append(_layer(whole, op, at, arrays, shapes))
    first = _last(one.view.shape)
    arrays["layers"] = json.dumps({"shape": first, "layers": layers})
    turned = [_turned(one_input, one.view.shape) for one_input in given]
    arrays["inputs"] = np.stack([np.frombuffer(one_input, np.int8) for one_input in turned])
    np.savez(here / "net.npz", **arrays)
    script = str(Path(__file__).with_name("tflite_file.py"))
    python, source = peer
    command = [python, script, str(here / "net.npz"), str(here / "net.tflite"), source]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"writing the .tflite file failed: {done.stderr.strip()[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _last(shape: Sequence[int]) -> list[int]:
    """A shape with channels last."""
    return [shape[0], *shape[2:], shape[1]] if len(shape) == 4 else list(shape)


def _layer(
    whole: IntegerNet, op: Op, at: int, arrays: dict[str, Any], shapes: dict[int, Any]
) -> dict[str, Any]:
    """Say what an op is in a .tflite file; its arrays go into ``arrays``."""
    kind = op.target.removeprefix("micro.q_")
    made = shapes[op.creates[0]]
    found: dict[str, Any] = {"shape": _last(made)}
    if kind == "max_pool2d":
        window, stride = whole_numbers(op.arguments[1]), whole_numbers(op.arguments[2])
        assert not any(whole_numbers(op.arguments[3]))
        return {**found, "kind": "pool", "window": window, "stride": stride}
    if kind not in ("conv2d", "linear"):
        raise ValueError(f"{op.target} is not written as a layer of a .tflite file")
    x, weight, bias, times, *rest = op.arguments
    assert isinstance(x, View)
    w, b, m = (whole.constants.read(value) for value in (weight, bias, times) if isinstance(value, View))
    pre, shift, low, _ = (int(value) for value in rest[-4:] if isinstance(value, int))
    assert pre == 0
    ratios = m.astype(np.float64) * 2.0**-shift
    assert np.array_equal(ratios.astype(np.float32).astype(np.float64), ratios)
    names = {key: f"{key}_{at}" for key in ("w", "b", "ratios")}
    found |= {**names, "relu": low == 0}
    if kind == "linear":
        before = shapes[x.base]
        if len(before) == 4:
            w = w.reshape(len(w), *before[1:]).transpose(0, 2, 3, 1).reshape(len(w), -1)
        found |= {"kind": "linear"}
    else:
        steps, padding, groups = rest[:3]
        assert isinstance(steps, Items)
        depth = groups != 1
        w = w.transpose(1, 2, 3, 0) if depth else w.transpose(0, 2, 3, 1)
        found |= {"kind": "depth" if depth else "conv", "stride": whole_numbers(steps)}
        found |= {"same": any(whole_numbers(padding))}
    arrays |= {names["w"]: np.ascontiguousarray(w), names["b"]: b, names["ratios"]: ratios.astype(np.float32)}
    return found
