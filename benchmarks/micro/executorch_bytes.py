"""Print the bytes of the buffers that ExecuTorch plans for a net.

Call it as ``PYTHON executorch_bytes.py NAME [infer]``, by an interpreter that has torch and executorch.
It prints one line of JSON: planned bytes, and those of the parameters.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def main(name: str, *, infer: bool) -> None:
    """Export a net, with its backward where it is trained, and let ExecuTorch plan it."""
    import torch

    exir: Any = importlib.import_module("executorch.exir")
    experimental: Any = importlib.import_module("torch.export.experimental")
    spec = importlib.util.spec_from_file_location("nets", Path(__file__).with_name("nets.py"))
    assert spec is not None
    assert spec.loader is not None
    nets = importlib.util.module_from_spec(spec)
    sys.modules["nets"] = nets
    spec.loader.exec_module(nets)
    made = getattr(nets, name)()
    model, args = made[0], made[1]
    program: Any = torch.export.export(model.eval() if infer else model, args, strict=True)
    if not infer:
        program = experimental._export_forward_backward(program)
    config = exir.EdgeCompileConfig(_check_ir_validity=False)
    plan = exir.to_edge(program, compile_config=config).to_executorch().executorch_program.execution_plan[0]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    print(json.dumps({"planned": sum(plan.non_const_buffer_sizes), "weights": weights}))


if __name__ == "__main__":
    main(sys.argv[1], infer=sys.argv[2:] == ["infer"])
