"""Write a net in integers as a .tflite file, and run the interpreter of TensorFlow Lite Micro on it.

Call it as ``PYTHON tflite_file.py NET.npz OUT.tflite SOURCE``, by an interpreter that has tflite-micro and
flatbuffers; the format's classes are those of the checkout SOURCE, as not every wheel has them. NET has
``layers``, a line of JSON, the arrays that it names, and ``inputs``. All units are 1 but those of weights,
which are the ratios that sums are multiplied by. It prints one line of JSON: the outputs of
the wheel's own interpreter, whose products are rounded twice.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

_KINDS = {"conv": "CONV_2D", "depth": "DEPTHWISE_CONV_2D", "linear": "FULLY_CONNECTED", "pool": "MAX_POOL_2D"}


class _Writer:
    def __init__(self, schema: Any) -> None:
        self.s = schema
        self.tensors: list[Any] = []
        self.ops: list[Any] = []
        self.codes: list[int] = []
        self.buffers: list[Any] = [schema.BufferT()]

    def tensor(self, shape: Any, kind: int, data: Any = None, scales: Any = (1.0,), axis: int = 0) -> int:
        import numpy as np

        one = self.s.TensorT()
        one.shape, one.type, one.name = [int(n) for n in shape], kind, f"t{len(self.tensors)}"
        one.quantization = self.s.QuantizationParametersT()
        one.quantization.scale = np.array(scales, np.float32)
        one.quantization.zeroPoint = np.zeros(len(scales), np.int64)
        one.quantization.quantizedDimension = axis
        one.buffer = 0
        if data is not None:
            one.buffer = len(self.buffers)
            self.buffers.append(self.s.BufferT())
            self.buffers[-1].data = np.frombuffer(data.tobytes(), np.uint8)
        self.tensors.append(one)
        return len(self.tensors) - 1

    def op(self, name: str, reads: list[int], makes: int, kind: str, options: Any) -> None:
        code = getattr(self.s.BuiltinOperator, name)
        if code not in self.codes:
            self.codes.append(code)
        one = self.s.OperatorT()
        one.opcodeIndex, one.inputs, one.outputs = self.codes.index(code), reads, [makes]
        one.builtinOptionsType, one.builtinOptions = getattr(self.s.BuiltinOptions, kind), options
        self.ops.append(one)

    def layer(self, layer: Any, arrays: Any, given: int) -> int:
        """Write a layer behind the tensor ``given``; returns its result."""
        s, kind = self.s, layer["kind"]
        relu = s.ActivationFunctionType.RELU if layer.get("relu") else s.ActivationFunctionType.NONE
        made = self.tensor(layer["shape"], s.TensorType.INT8)
        if kind == "pool":
            options = s.Pool2DOptionsT()
            options.padding, (options.strideH, options.strideW) = s.Padding.VALID, layer["stride"]
            options.filterHeight, options.filterWidth = layer["window"]
            self.op("MAX_POOL_2D", [given], made, "Pool2DOptions", options)
            return made
        w, b, ratios = (arrays[layer[name]] for name in ("w", "b", "ratios"))
        axis = 3 if kind == "depth" else 0
        reads = [
            given,
            self.tensor(w.shape, s.TensorType.INT8, w, ratios, axis),
            self.tensor(b.shape, s.TensorType.INT32, b, ratios),
        ]
        if kind == "linear":
            dense = s.FullyConnectedOptionsT()
            dense.fusedActivationFunction = relu
            self.op("FULLY_CONNECTED", reads, made, "FullyConnectedOptions", dense)
            return made
        name = "DepthwiseConv2DOptions" if kind == "depth" else "Conv2DOptions"
        options = getattr(s, f"{name}T")()
        options.padding = s.Padding.SAME if layer["same"] else s.Padding.VALID
        options.strideH, options.strideW = layer["stride"]
        options.dilationHFactor = options.dilationWFactor = 1
        options.fusedActivationFunction = relu
        if kind == "depth":
            options.depthMultiplier = 1
        self.op(_KINDS[kind], reads, made, name, options)
        return made


def _model(writer: _Writer, given: int, made: int) -> Any:
    s = writer.s
    graph, model = s.SubGraphT(), s.ModelT()
    graph.tensors, graph.operators, graph.inputs, graph.outputs = writer.tensors, writer.ops, [given], [made]
    model.version, model.subgraphs, model.buffers = 3, [graph], writer.buffers
    model.operatorCodes = []
    for code in writer.codes:
        one = s.OperatorCodeT()
        one.builtinCode, one.deprecatedBuiltinCode, one.version = code, code, 1
        model.operatorCodes.append(one)
    return model


def main(net_file: str, target: str, source: str) -> None:
    """Write the file, run it."""
    import numpy as np

    builders: Any = importlib.import_module("flatbuffers")
    sys.path.append(str(Path(source) / "tensorflow/lite/python"))
    schema: Any = importlib.import_module("schema_py_generated")
    runtime: Any = importlib.import_module("tflite_micro.python.tflite_micro.runtime")
    arrays = np.load(net_file)
    net = json.loads(str(arrays["layers"]))
    writer = _Writer(schema)
    at = given = writer.tensor(net["shape"], schema.TensorType.INT8)
    for layer in net["layers"]:
        at = writer.layer(layer, arrays, at)
    builder = builders.Builder(1024)
    builder.Finish(_model(writer, given, at).Pack(builder), file_identifier=b"TFL3")
    content = bytes(builder.Output())
    Path(target).write_bytes(content)
    interpreter = runtime.Interpreter.from_bytes(content)
    outputs = []
    for one in arrays["inputs"]:
        interpreter.set_input(one.reshape(net["shape"]), 0)
        interpreter.invoke()
        outputs.append(interpreter.get_output(0).ravel().tolist())
    print(json.dumps({"outputs": outputs, "kinds": sorted({layer["kind"] for layer in net["layers"]})}))


if __name__ == "__main__":
    main(*sys.argv[1:4])
