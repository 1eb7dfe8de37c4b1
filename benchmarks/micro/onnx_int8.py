"""Quantize a net for digits with ONNX Runtime, statically, and print how many it gets right.

Call it as ``PYTHON onnx_int8.py NAME DATA.npz``, by an interpreter that has torch, onnx, onnxruntime and
onnxscript. DATA has the weights by name, ``calibration``, ``images`` and ``labels``. It prints one line of
JSON: top-1 of the float and of the int8 net in percent, and the ops of the int8 net that compute in float.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

_FREE = {
    "QuantizeLinear", "DequantizeLinear", "Reshape", "Transpose", "Concat", "Squeeze", "Unsqueeze",
    "Identity", "Expand", "Slice", "Gather", "Shape", "Constant", "Flatten", "Split",
}  # fmt: skip


def main(name: str, path: str) -> None:
    """Export, quantize with ranges of the calibration images, run both."""
    import numpy as np
    import torch

    onnx: Any = importlib.import_module("onnx")
    runtime: Any = importlib.import_module("onnxruntime")
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    shapes: Any = importlib.import_module("onnxruntime.quantization.shape_inference")
    sys.path.insert(0, str(Path(__file__).parent))
    nets: Any = importlib.import_module("digit_nets")
    data = np.load(path)
    net = nets.NETS[name][0]()
    skip = ("calibration", "images", "labels")
    net.load_state_dict({key: torch.from_numpy(data[key]) for key in data.files if key not in skip})
    given = torch.from_numpy(data["images"][:1])

    class Rows(quantization.CalibrationDataReader):  # type: ignore[misc]
        rows = iter(data["calibration"])

        def get_next(self) -> Any:
            row = next(self.rows, None)
            return None if row is None else {"x": row[None]}

    with tempfile.TemporaryDirectory() as folder:
        plain, ready, small = (str(Path(folder) / one) for one in ("a.onnx", "b.onnx", "c.onnx"))
        torch.onnx.export(net.eval(), (given,), plain, input_names=["x"], dynamo=True, verbose=False)
        shapes.quant_pre_process(plain, ready)
        quantization.quantize_static(
            ready, small, Rows(), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
            activation_type=quantization.QuantType.QInt8, weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
        found = []
        for file in (plain, small):
            session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
            scores = [session.run(None, {"x": image[None]})[0][0] for image in data["images"]]
            found.append(100 * float((np.argmax(scores, 1) == data["labels"]).mean()))
        options = runtime.SessionOptions()
        options.optimized_model_filepath = str(Path(folder) / "d.onnx")
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        runtime.InferenceSession(small, options, providers=["CPUExecutionProvider"])
        ops = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    floats = sorted(
        op for op in ops if op not in _FREE and not op.startswith(("QLinear", "Q", "MatMulInteger"))
    )
    counts = {op: floats.count(op) for op in sorted(set(floats))}
    print(json.dumps({"float": found[0], "int8": found[1], "float_ops": counts}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
