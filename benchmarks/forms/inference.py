"""Inference of branches that were merged, against what compilers make of the branches (R4)."""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.forms.branches import BranchedBlock
from benchmarks.forms.hypergraphs import _over
from benchmarks.forms.search import walks
from tightrope_forms.compiled import rewritten_for_inference


def merged(_: Path | None, console: Console, pairs: int) -> list[dict[str, Any]]:
    """R4: print the time of a net of branches, by compilers, over that of its form; and searches."""
    import torch._inductor.config as inductor

    torch.manual_seed(0)
    model, x = nn.Sequential(*(BranchedBlock(64) for _ in range(4))).eval(), torch.randn(1, 64, 56, 56)
    form, rules = rewritten_for_inference(model, x)
    rows = walks(console)
    with torch.no_grad(), inductor.patch(freezing=True):
        right, made = model(x), list[dict[str, Callable[[], Any]]]()
        for one in (model, form):
            made.append(
                {"eager": partial(one, x), "torch.compile with freezing": partial(torch.compile(one), x)}
            )
            try:
                made[-1]["onnxruntime, all optimisations"] = _onnx(one, x)
            except ImportError as error:
                console.print(f"onnxruntime is missing ({error}): pip install onnx onnxscript onnxruntime")
        peers, ours = made
        off = max(
            float((torch.as_tensor(own()) - right).abs().max() / right.abs().max()) for own in ours.values()
        )
        for (name, peer), (by, own) in product(peers.items(), list(ours.items())[1:]):
            rows.append({"net": name, "form": by, "ratio": _over(peer, own, 0, pairs), "off": off})
            console.print(f"net by {name:<31} over form by {by:<31}{rows[-1]['ratio']:.3f}x", soft_wrap=True)
    console.print(f"off by {off:.0e}; {', '.join(rules)}", markup=False, soft_wrap=True)
    return rows


def _onnx(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    """Run a model in one thread of onnxruntime, with all of its optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with TemporaryDirectory() as folder:
        torch.onnx.export(  # type: ignore[no-untyped-call]
            model, (x,), f"{folder}/model.onnx", dynamo=True, verbose=False
        )
        session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options, ["CPUExecutionProvider"])
    name, given = session.get_inputs()[0].name, x.numpy()
    return lambda: session.run(None, {name: given})[0]
