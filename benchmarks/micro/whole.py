"""K5 and K4 of whole nets: a vision transformer and a CNN for digits, quantized after training, as C.

Both are trained in float from one seed, for seconds, and captured; ranges come from 256 training images,
top-1 is that of 540 others. The integer net is compiled, built for this computer and run on all of them; some
are computed with NumPy as well, to the bit. For a Cortex-M3 it is linked and disassembled.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from benchmarks.micro.digits import NUM_RANGES, Images, images, top1, trained
from benchmarks.micro.rows import Row
from tightrope.cli.machines import find_machine
from tightrope.core import JudgeError
from tightrope.judge import judge
from tightrope_micro import run_on_board, run_on_host
from tightrope_micro.disassembly import float_use
from tightrope_micro.emulate import missing_tools
from tightrope_micro.infer import FloatNet, capture_net, compile_net, ranges_of
from tightrope_micro.integer.kernels import i_exp_softmax, plain_layer_norm
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.net_proof import prove_net
from tightrope_micro.integer.net_reference import NetEvaluator
from tightrope_micro.integer.quantize import quantize

_RAM, _CLOSE, _LOST, _NUM_EXACT = 65_536, 0.5, 50.0, 20
_SANITIZER = ("-fsanitize=undefined", "-fno-sanitize-recover")


def k5(console: Console, peer: str) -> list[Row]:
    """Quantize, run and disassemble both nets."""
    data = images()
    return [row for name in ("vit", "cnn") for row in _net(name, trained(name, data), data, peer, console)]


def _net(name: str, model: nn.Module, data: Images, peer: str, console: Console) -> list[Row]:
    net = capture_net(model, (data.test[:1],))
    ranges = ranges_of(net, [[one[None]] for one in data.train[:NUM_RANGES]])
    whole = quantize(net, ranges)
    exact = top1(model(data.test), data.labels)
    machine = find_machine("nrf52840")
    compiled = compile_net(whole, machine, ram=_RAM)
    floats = compile_net(net, machine, ram=_RAM).manifest
    samples = [compiled.sample(one[None]) for one in data.test]
    with tempfile.TemporaryDirectory() as scratch:
        folder = compiled.write(Path(scratch) / "out")
        run = run_on_host(folder, samples, flags=_SANITIZER)
        board, use = None, None
        if not missing_tools():
            board, use = run_on_board(folder, samples[:1], core="cortex-m3", count=True), float_use(folder)
    scores = torch.from_numpy(np.stack([compiled.scores(one) for one in run.outputs]))
    ours = top1(scores, data.labels)
    same = _same(whole, data, run.outputs) and (board is None or board.outputs == run.outputs[:1])
    planned = compiled.planned
    verdict = judge(planned.tiled.graph, planned.executable, planned.plan, machine)
    bytes_agree = run.arena == compiled.manifest.arena == planned.plan.forecast.arena == verdict.arena
    said, near = _peer(name, model, data, peer, ours)
    held = exact - ours <= _CLOSE and near and same and bytes_agree and verdict.ok
    held = held and use is not None and use.instructions == use.calls == 0
    bits = max(one.bits for one in prove_net(whole.graph, whole.constants, whole.programs))
    text = (
        f"{name}: top-1 {ours:.2f} % in integers, {exact:.2f} % in float; C = NumPy to the bit: {same}; "
        f"at most {bits} bits; arena {compiled.manifest.arena} B, linked = forecast = judged: "
        f"{bytes_agree} (in float {floats.arena}), constants {len(whole.constants.data)} B (in float "
        f"{len(net.constants.data)})"
    )
    if board is not None and use is not None:
        text += (
            f"; Cortex-M3: {use.instructions} float instructions, {use.calls} calls for them in {use.all}; "
            f"RAM {board.ram} B, code and constants {board.rom} B"
        )
    else:
        text += f"; not disassembled: {missing_tools()}"
    claim = "top-1 within 0.5 points of float and of ONNX Runtime's static int8, no float op on a Cortex-M3"
    rows = [Row("K5", claim, text, held, said)]
    return [*rows, _controls(net, ranges, whole, data, console=console)] if name == "vit" else rows


def _whole(inputs: torch.Tensor, net: IntegerNet) -> Any:
    return np.clip(np.rint(inputs.numpy() / net.inputs[0].scale), -128, 127).astype(np.int64)


def _same(net: IntegerNet, data: Images, outputs: tuple[bytes, ...]) -> bool:
    run = NetEvaluator(net.graph, net.constants, net.programs)
    pairs = zip(data.test[:_NUM_EXACT], outputs, strict=False)
    return all(
        np.array_equal(run([_whole(one[None], net)]).ravel(), np.frombuffer(out, np.int16))
        for one, out in pairs
    )


def _controls(
    net: FloatNet, ranges: Any, whole: IntegerNet, data: Images, *, console: Console, num: int = 270
) -> Row:
    """K4 of the whole net: what the proof refuses, and what it loses when it is forced into 32 bits."""

    def accuracy(one: IntegerNet, *, wrapped: bool) -> float:
        run = NetEvaluator(one.graph, one.constants, one.programs, wrapped=wrapped)
        scores = np.concatenate([run([_whole(image[None], one)]) for image in data.test[:num]])
        return top1(torch.from_numpy(scores), data.labels[:num])

    kept = accuracy(whole, wrapped=False), accuracy(whole, wrapped=True)
    found, refused, held = [], 0, kept[0] == kept[1]
    controls: dict[str, dict[str, Any]] = {
        "I-BERT's softmax": {"softmax_of": i_exp_softmax},
        "layer norm without shifts": {"norm_of": plain_layer_norm},
    }
    for name, control in controls.items():
        try:
            quantize(net, ranges, **control)
        except JudgeError as error:
            refused += 1
            console.print(f"K4 refused: {error}")
        forced = quantize(net, ranges, **control, prove=False)
        wide, cut = accuracy(forced, wrapped=False), accuracy(forced, wrapped=True)
        held = held and wide - cut > _LOST
        found.append(f"{name} {wide:.2f} % in 64 bits, {cut:.2f} % in 32")
    ours = f"{refused} of 2 refused; proved net {kept[0]:.2f} % in 64 bits, {kept[1]:.2f} % in 32; "
    ours += "; ".join(found)
    claim = "in the whole net: controls refused, and lose > 50 points when forced"
    return Row("K4", claim, f"{ours} (top-1 of {num})", held and refused == 2)


def _peer(name: str, model: nn.Module, data: Images, peer: str, ours: float) -> tuple[str, bool]:
    """Top-1 of ONNX Runtime in an environment of its own, in words, and whether ours is near."""
    if not peer:
        return (
            "ONNX Runtime not run: give --onnx, an interpreter with torch, onnx, onnxruntime, onnxscript",
            True,
        )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "data.npz"
        state = {key: value.numpy() for key, value in model.state_dict().items()}
        calibration = data.train[:NUM_RANGES].numpy()
        np.savez(path, calibration=calibration, images=data.test.numpy(), labels=data.labels.numpy(), **state)
        script = str(Path(__file__).with_name("onnx_int8.py"))
        done = subprocess.run(
            [peer, script, name, str(path)], capture_output=True, text=True, check=False, timeout=600
        )
    if done.returncode:
        return f"ONNX Runtime failed: {done.stderr.strip()[-300:]}", False
    found = json.loads(done.stdout.strip().splitlines()[-1])
    said = f"ONNX Runtime: float {found['float']:.2f} %, static int8 {found['int8']:.2f} %; in float stay "
    said += ", ".join(f"{count} {op}" for op, count in found["float_ops"].items()) or "no ops"
    return said, found["int8"] - ours <= _CLOSE
