"""T2: inference of the residual net in less RAM than ExecuTorch plans for it, in float32 and in integers.

Plain: sums are added in place. Bands: the first layers row band by row band; no activation leaves RAM in
either. Each is the smallest arena that was found by bisection; outputs are those of the plain form to the
bit, which are compared with PyTorch.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.micro.beside import planned_by_peer
from benchmarks.micro.nets import residual_scores
from benchmarks.micro.rows import Row
from tightrope.cli.machines import find_machine
from tightrope.core import Bytes, InfeasibleError
from tightrope_micro import run_on_host
from tightrope_micro.infer import CompiledNet, FloatNet, capture_net, compile_net, ranges_of
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.streams import STREAM_ERROR, quantize_within

_PLANNED, _EQUAL, _CLOSE = 196_608, 1e-5, 0.05
_STEP: Bytes = 1024


def t2(peer: str) -> list[Row]:
    """Plan, run and compare both forms in both kinds of numbers."""
    model, (x,) = residual_scores()
    net = capture_net(model, (x,))
    generator = torch.Generator().manual_seed(3)
    samples = [(torch.randn(x.shape, generator=generator),) for _ in range(40)]
    whole = quantize_within(net, ranges_of(net, samples), samples, STREAM_ERROR)
    said, planned = (
        "not run: give --peer, an interpreter with executorch; its figure elsewhere is used",
        _PLANNED,
    )
    if (asked := planned_by_peer(peer, "residual_scores", infer=True)) is not None:
        planned = asked["planned"]
        said = f"ExecuTorch plans {planned} B in float32"
    with torch.no_grad():
        wanted = np.stack([model(*one).numpy().ravel() for one in samples[:8]])
    rows = []
    forms: tuple[tuple[str, FloatNet | IntegerNet, float], ...]
    forms = (("float32", net, _EQUAL), ("integers", whole, _CLOSE))
    for kind, found, equal in forms:
        plain, banded = _least(found, bands=False), _least(found, bands=True)
        one, other = (_outputs(compiled, samples[:8]) for compiled in (plain, banded))
        apart = float(np.abs(np.stack([plain.scores(out) for out in one]) - wanted).max())
        apart = apart if kind == "float32" else apart / float(np.abs(wanted).max())
        ours = f"{kind}: arena {plain.manifest.arena} B ({planned / plain.manifest.arena:.2f} times below), "
        ours += f"in bands {banded.manifest.arena} B ({planned / banded.manifest.arena:.2f} times below), "
        ours += f"the same bits: {one == other}; apart from PyTorch {apart:.1e}"
        held = plain.manifest.arena <= 0.75 * planned and 2 * banded.manifest.arena <= planned
        held = held and one == other and apart <= equal
        claim = "arena >= 25 % below ExecuTorch's, in patch order >= 2 times below, outputs equal"
        rows.append(Row("T2", claim, ours, held, said))
    return rows


_BOARD = find_machine("stm32h743")


def _least(net: FloatNet | IntegerNet, *, bands: bool) -> CompiledNet:
    """The compilation with the least RAM, to a KiB."""
    best = compile_net(net, _BOARD, ram=_BOARD.tiers[0].bytes, bands=bands, pages=False)
    low, high = 0, best.manifest.total
    while high - low > _STEP:
        middle = (low + high) // 2
        try:
            found = compile_net(net, _BOARD, ram=middle, bands=bands, pages=False)
        except InfeasibleError:
            low = middle
            continue
        best, high = found, min(middle, found.manifest.total)
    return best


def _outputs(compiled: CompiledNet, samples: Sequence[tuple[torch.Tensor, ...]]) -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = compiled.write(Path(scratch) / "out")
        outputs: tuple[bytes, ...] = run_on_host(folder, [compiled.sample(*one) for one in samples]).outputs
    return outputs
