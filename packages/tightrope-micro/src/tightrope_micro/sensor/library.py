"""Write a pipeline as a C library, for Arduino too, with what it promises."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tightrope.core import TightropeError
from tightrope_micro.compile import MANIFEST, write_folder
from tightrope_micro.emit import comment, resource
from tightrope_micro.sensor.dataset import Floats
from tightrope_micro.sensor.forecast import SensorForecast, forecast
from tightrope_micro.sensor.integers import IntegerClassifier
from tightrope_micro.sensor.pipeline import WHOLE, Layer, Pipeline, WindowLayout, lay_out, literal, tables

HEADER, SOURCE = "tightrope_sensor.h", "sensor.c"
KERNELS = {
    "sensor_kernels.h": "sensor/kernels.h",
    "sensor_kernels.c": "sensor/kernels.c",
    "support.h": "support.h",
}


class SensorManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a library promises.

    Attributes:
        pipeline: that it computes.
        forecast: bytes and instructions.
        accuracy: fraction of held-out windows that the net names rightly, in Python; None without a net.
        num_windows: in `windows.bin`, which the benches read.
        kind: of manifest.
        schema: version of this layout.
    """

    pipeline: Pipeline
    forecast: SensorForecast
    accuracy: float | None
    num_windows: int
    kind: str = "sensor"
    schema: int = 1


@dataclass(frozen=True)
class Library:
    """A pipeline as C, in memory.

    Attributes:
        manifest: what it promises.
        texts: file name -> content.
    """

    manifest: SensorManifest
    texts: dict[str, bytes]

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write everything to a folder: all of it, or nothing.

        Raises:
            TightropeError: the folder holds something else, or cannot be written.
        """
        return write_folder(Path(folder), self.texts)


def library(
    pipeline: Pipeline,
    layers: Sequence[Layer] | IntegerClassifier,
    samples: Floats,
    *,
    accuracy: float | None = None,
) -> Library:
    """Write a pipeline as C.

    Args:
        pipeline: to write.
        layers: of its net, one per width after the first; none without a net. Of a net in integers, all of
            it, as `integers_of` writes it.
        samples: (windows, rows, axes) to measure with.
        accuracy: of the net.

    Raises:
        TightropeError: a setting is out of range, or layers are not those of the pipeline.
    """
    widths = pipeline.widths
    whole = isinstance(layers, IntegerClassifier)
    dense = layers.layers if isinstance(layers, IntegerClassifier) else layers
    if widths and whole != (pipeline.numbers == "int8"):
        raise TightropeError(f"a net of {pipeline.numbers} has other layers than were given: train it again.")
    shapes = [layer.weight.shape for layer in dense]
    if shapes != list(zip(widths[1:], widths[:-1], strict=False)):
        raise TightropeError(f"layers of {shapes} do not make a net of widths {widths}: train it again.")
    layout = lay_out(pipeline)
    manifest = SensorManifest(pipeline, forecast(pipeline, layout), accuracy, len(samples))
    code = {
        HEADER: _header(pipeline, layout).encode(),
        SOURCE: _source(pipeline, layout, layers).encode(),
        **{name: resource(path).encode() for name, path in KERNELS.items()},
    }
    if whole:
        more = resource("sensor/integers.c") + resource("sensor/dense.c")
        code["sensor_kernels.c"] += more.encode()
    texts = {
        **code,
        "host_main.c": resource("sensor/host_main.c").encode(),
        "windows.bin": samples.astype("<f4").tobytes(),
        MANIFEST: msgspec.json.format(msgspec.json.encode(manifest), indent=1),
        "arduino/library.properties": _PROPERTIES.encode(),
        "arduino/examples/classify/classify.ino": _sketch(pipeline).encode(),
        **{f"arduino/src/{name}": text for name, text in code.items()},
    }
    return Library(manifest, texts)


def read_sensor_manifest(folder: str | os.PathLike[str]) -> SensorManifest | None:
    """Read the manifest of a folder; None where it holds no pipeline.

    Raises:
        TightropeError: it holds a pipeline's manifest that is damaged.
    """
    try:
        data = (Path(folder) / MANIFEST).read_bytes()
        tree = msgspec.json.decode(data)
    except (OSError, msgspec.DecodeError):
        return None
    if not isinstance(tree, dict) or tree.get("kind") != "sensor":
        return None
    try:
        return msgspec.convert(tree, SensorManifest)
    except msgspec.ValidationError as error:
        raise TightropeError(
            f"{str(Path(folder) / MANIFEST)!r} is not a manifest: {error}. Write the library again."
        ) from error


def _header(pipeline: Pipeline, layout: WindowLayout) -> str:
    classes = "\n".join(f"   {k}: {comment(name)}" for k, name in enumerate(pipeline.classes))
    net = f"""
/* Probability per class, after tr_classify:
{classes} */
#define tr_scores ((const float *)(const void *)(tr_sensor_arena + {layout.offsets["scores"]}))

/* Class of a window: features, then the net. */
int tr_classify(const float *window);
""" if pipeline.classes else ""  # fmt: skip
    out = len(pipeline.classes) or pipeline.num_features
    return f"""/* {comment(str(pipeline))}; written by Tightrope.
   RAM: the array of {layout.arena} bytes, and the stack. A window is the caller's: rows of
   {pipeline.axes} numbers, {pipeline.interval_ms:g} ms apart. */
#ifndef TIGHTROPE_SENSOR_H
#define TIGHTROPE_SENSOR_H

#define TR_ARENA_BYTES_SENSOR {layout.arena}u
#ifndef TR_ARENA_BYTES
#define TR_ARENA_BYTES TR_ARENA_BYTES_SENSOR
#endif
#define TR_WINDOW_ROWS {pipeline.rows}
#define TR_WINDOW_AXES {pipeline.axes}
#define TR_NUM_FEATURES {pipeline.num_features}
#define TR_NUM_CLASSES {len(pipeline.classes)}
#define TR_OUT_BYTES {4 * out}u

#ifdef __cplusplus
extern "C" {{
#endif

extern unsigned char tr_sensor_arena[TR_ARENA_BYTES_SENSOR];

/* Features of a window; they last until the next call of this library. */
const float *tr_features(const float *window);
{net}
#ifdef __cplusplus
}}
#endif

#endif
"""


def _source(pipeline: Pipeline, layout: WindowLayout, layers: Sequence[Layer] | IntegerClassifier) -> str:
    constants = [
        _array(kind, name, [literal(one) if kind == "float" else str(one) for one in values])
        for name, (kind, values) in tables(pipeline).items()
    ]
    whole = isinstance(layers, IntegerClassifier)
    if isinstance(layers, IntegerClassifier):
        constants += _integer_constants(layers)
    else:
        constants += _float_constants(layers)
    at = {
        name: f"{'W' if name.startswith(WHOLE) else 'A'}({offset})" for name, offset in layout.offsets.items()
    }
    whole_at = "#define W(at) ((void *)(tr_sensor_arena + (at)))\n" if whole else ""
    lines = [
        f"    "
        f"{'return ' * (call.kernel == 's_softmax')}{call.kernel}({', '.join(call.arguments).format(**at)}); "
        f"/* {comment(call.note)} */"
        for call in layout.calls
    ]
    split = layout.num_block
    classify = f"""
int tr_classify(const float *window)
{{
    tr_features(window);
{chr(10).join(lines[split:])}
}}
""" if pipeline.classes else ""  # fmt: skip
    return f"""#include "{HEADER}"

#include <stdint.h>

#include "sensor_kernels.h"

_Alignas(4) unsigned char tr_sensor_arena[TR_ARENA_BYTES_SENSOR];

#define A(at) ((float *)(void *)(tr_sensor_arena + (at)))
{whole_at}
{chr(10).join(constants)}
const float *tr_features(const float *window)
{{
{chr(10).join(lines[:split])}
    return {at["features"]};
}}
{classify}"""


def _float_constants(layers: Sequence[Layer]) -> list[str]:
    found = []
    for k, layer in enumerate(layers):
        found.append(_array("float", f"weight{k}", [literal(float(one)) for one in layer.weight.ravel()]))
        found.append(_array("float", f"bias{k}", [literal(float(one)) for one in layer.bias]))
    return found


def _integer_constants(net: IntegerClassifier) -> list[str]:
    found = [
        _array("float", name, [literal(float(one)) for one in values])
        for name, values in (("centers", net.center), ("ratios", net.ratio))
    ]
    numbers = []
    for k, layer in enumerate(net.layers):
        for kind, name, values in (
            ("int8_t", "weight", layer.weight.ravel().tolist()),
            ("int32_t", "bias", layer.bias.tolist()),
            ("int32_t", "times", layer.multipliers.tolist()),
        ):
            found.append(_array(kind, f"{name}{k}", [str(one) for one in values]))
        numbers += [f"{name}{k} = {getattr(layer, name)}" for name in ("pre", "shift", "low", "high")]
    found.append(f"static const float unit = {literal(net.unit)};\nenum {{ {', '.join(numbers)} }};\n")
    return found


def _array(kind: str, name: str, values: Sequence[str]) -> str:
    rows = [", ".join(values[k : k + 8]) for k in range(0, len(values), 8)]
    return f"static const {kind} {name}[{len(values)}] = {{\n    " + ",\n    ".join(rows) + ",\n};\n"


_PROPERTIES = """name=TightropeSensor
version=1.0.0
author=Tightrope
maintainer=Tightrope
sentence=Features of sensor windows and a small net.
paragraph=Written by tightrope micro; no heap.
category=Data Processing
url=https://example.org
architectures=*
includes=tightrope_sensor.h
"""


def _sketch(pipeline: Pipeline) -> str:
    call = "int found = tr_classify(window);" if pipeline.classes else "float found = tr_features(window)[0];"
    return f"""// Fill `window` with {pipeline.rows} rows of {pipeline.axes} numbers,
// one row every {pipeline.interval_ms:g} ms.
#include <tightrope_sensor.h>

static float window[TR_WINDOW_ROWS * TR_WINDOW_AXES];

void setup() {{
  Serial.begin(115200);
}}

void loop() {{
  {call}
  Serial.println(found);
}}
"""
