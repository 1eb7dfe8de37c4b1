"""The C of pipelines beside Python, on this computer and on the emulated board; forecasts beside counts."""

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tightrope.core import TightropeError
from tightrope_micro.emulate import missing_tools
from tightrope_micro.host import c_compiler, execute
from tightrope_micro.sensor import (
    Flatten,
    IntegerClassifier,
    Layer,
    MelEnergies,
    Pipeline,
    Spectral,
    features,
    integers_of,
    lay_out,
    library,
    sensor_on_board,
    sensor_on_host,
)
from tightrope_micro.sensor.integers import scores_of as whole_scores
from tightrope_micro.sensor.measure import manifest_of

C4 = ("a", "b*/", "c", "d")
PIPELINES = [
    Pipeline(125, 3, 16.0, Spectral(), (20, 10), C4),
    Pipeline(90, 2, 10.0, Spectral(fft=32, bands=5, filter="high", cutoff_hz=4.0, order=4), (), C4[:2]),
    Pipeline(70, 1, 16.0, Flatten(scale=0.5), (12,), C4),
    Pipeline(100, 2, 16.0, MelEnergies(fft=32, stride=20, filters=6), (8,), C4),
    Pipeline(300, 1, 16.0, Spectral(fft=256, filter="low", cutoff_hz=8.0, order=8)),
]
WHOLE = [
    Pipeline(125, 3, 16.0, Spectral(), (20, 10), C4, "int8"),
    Pipeline(70, 2, 16.0, Flatten(), (), C4, "int8"),
    Pipeline(100, 2, 16.0, MelEnergies(fft=32, stride=20, filters=6), (9,), C4, "int8"),
]
needs_c = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")
needs_board = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "-")


def layers_of(pipeline: Pipeline) -> list[Layer]:
    random = np.random.default_rng(3)
    widths = pipeline.widths
    return [
        Layer(
            (random.normal(size=(b, a)) / (3 * a**0.5)).astype(np.float32),
            random.normal(size=b).astype(np.float32),
        )
        for a, b in pairwise(widths)
    ]


def written(pipeline: Pipeline, folder: Path) -> tuple[np.ndarray, Path]:
    x = np.random.default_rng(5).normal(1.0, 4.0, (2, pipeline.rows, pipeline.axes)).astype(np.float32)
    samples = x.astype(np.float64)
    return samples, library(pipeline, layers_of(pipeline), samples).write(folder / "out")


def scores_of(pipeline: Pipeline, found: np.ndarray) -> np.ndarray:
    x = found
    layers = layers_of(pipeline)
    for layer in layers[:-1]:
        x = np.maximum(x @ layer.weight.T + layer.bias, 0)
    x = x @ layers[-1].weight.T + layers[-1].bias
    made = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(made / made.sum(axis=1, keepdims=True))


@needs_c
@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
def test_c_on_this_computer_is_python(pipeline: Pipeline, tmp_path: Path) -> None:
    samples, folder = written(pipeline, tmp_path)
    found = sensor_on_host(folder)
    wanted = features(pipeline.block, samples, pipeline.rate_hz)
    assert np.abs(found.features - wanted).max() < 1e-4
    assert found.arena == lay_out(pipeline).arena
    if pipeline.classes:
        scores = scores_of(pipeline, wanted)
        assert np.abs(found.scores - scores).max() < 1e-4
        assert found.found == tuple(scores.argmax(axis=1))


@needs_board
@pytest.mark.parametrize("pipeline", PIPELINES[:4], ids=str)
def test_the_board_takes_what_is_forecast(pipeline: Pipeline, tmp_path: Path) -> None:
    samples, folder = written(pipeline, tmp_path)
    said = library(pipeline, layers_of(pipeline), samples).manifest.forecast
    board = sensor_on_board(folder)
    assert board.ram == said.ram
    assert said.rom == pytest.approx(board.rom, rel=0.02)
    assert said.instructions == pytest.approx(board.instructions, rel=0.1)
    wanted = features(pipeline.block, samples, pipeline.rate_hz)
    outputs = scores_of(pipeline, wanted) if pipeline.classes else wanted
    assert np.abs(board.outputs - outputs).max() < 1e-4


@pytest.mark.parametrize("pipeline", [*PIPELINES, *WHOLE], ids=str)
def test_buffers_that_are_alive_together_do_not_overlap(pipeline: Pipeline) -> None:
    """Play the calls over a map of the arena: what is read has to be what was made."""
    layout = lay_out(pipeline)
    owner = np.full(layout.arena, "", dtype=object)
    for call in layout.calls:
        for name in call.reads:
            at = layout.offsets[name]
            assert (owner[at : at + layout.sizes[name]] == name).all(), f"{name} was overwritten"
        for name in call.makes:
            at = layout.offsets[name]
            owner[at : at + layout.sizes[name]] = name
            if name == "features":
                continue
            assert at % 4 == 0
            assert at + layout.sizes[name] <= layout.arena
    kept = "scores" if pipeline.classes else "features"
    at = layout.offsets[kept]
    assert (owner[at : at + layout.sizes[kept]] == kept).all()


@needs_c
def test_the_arduino_folder_builds_with_cpp(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler (g++ or c++) is installed")
    _, folder = written(PIPELINES[0], tmp_path)
    sketch = (folder / "arduino" / "examples" / "classify" / "classify.ino").read_text()
    stand_in = "struct { void begin(long) {} template <class T> void println(T) {} } Serial;\n"
    (tmp_path / "sketch.cpp").write_text(stand_in + sketch + "\nint main() { setup(); loop(); }\n")
    c = c_compiler()
    assert c is not None
    source = folder / "arduino" / "src"
    for name in ("sensor", "sensor_kernels"):
        execute(
            [c, "-std=c11", "-c", "-o", str(tmp_path / f"{name}.o"), str(source / f"{name}.c")], "building"
        )
    parts = [str(tmp_path / name) for name in ("sketch.cpp", "sensor.o", "sensor_kernels.o")]
    execute([compiler, f"-I{source}", "-o", str(tmp_path / "sketch"), *parts], "building")
    execute([str(tmp_path / "sketch")], "running")
    assert "includes=tightrope_sensor.h" in (folder / "arduino" / "library.properties").read_text()


def test_layers_of_another_net_are_refused() -> None:
    with pytest.raises(TightropeError, match="do not make a net of widths"):
        library(PIPELINES[0], layers_of(PIPELINES[2]), np.zeros((1, 125, 3)))


def written_whole(pipeline: Pipeline, folder: Path) -> tuple[IntegerClassifier, Path]:
    x = np.random.default_rng(5).normal(1.0, 4.0, (16, pipeline.rows, pipeline.axes)).astype(np.float32)
    samples = x.astype(np.float64)
    net = integers_of(layers_of(pipeline), features(pipeline.block, samples, pipeline.rate_hz))
    return net, library(pipeline, net, samples[:8]).write(folder / "out")


@needs_c
@pytest.mark.parametrize("pipeline", WHOLE, ids=str)
def test_a_net_in_integers_is_that_of_numpy_and_close_to_the_float_one(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    net, folder = written_whole(pipeline, tmp_path)
    found = sensor_on_host(folder)
    scores = net.unit * whole_scores(net, found.features)  # from the very features of the C
    made = np.exp(scores - scores.max(axis=1, keepdims=True))
    assert np.abs(found.scores - made / made.sum(axis=1, keepdims=True)).max() < 1e-6
    assert found.found == tuple(scores.argmax(axis=1))
    x = found.features
    for layer in layers_of(pipeline)[:-1]:
        x = np.maximum(x @ layer.weight.T + layer.bias, 0)
    last = layers_of(pipeline)[-1]
    wanted = x @ last.weight.T + last.bias
    assert np.abs(scores - wanted).max() < 0.05 * np.abs(wanted).max()


@needs_board
@pytest.mark.parametrize("pipeline", WHOLE, ids=str)
def test_the_board_takes_what_is_forecast_of_integers(pipeline: Pipeline, tmp_path: Path) -> None:
    _, folder = written_whole(pipeline, tmp_path)
    said, board = manifest_of(folder).forecast, sensor_on_board(folder)
    assert board.ram == said.ram
    assert said.rom == pytest.approx(board.rom, rel=0.02)
    assert said.instructions == pytest.approx(board.instructions, rel=0.1)


def test_features_far_outside_saturate() -> None:
    pipeline = WHOLE[1]
    few = np.random.default_rng(1).normal(size=(8, pipeline.num_features))
    net = integers_of(layers_of(pipeline), few)
    far, farther = (whole_scores(net, np.full((1, pipeline.num_features), size)) for size in (1e6, 1e9))
    assert (far == farther).all()


def test_layers_of_other_numbers_are_refused() -> None:
    with pytest.raises(TightropeError, match="a net of int8 has other layers"):
        library(WHOLE[0], layers_of(WHOLE[0]), np.zeros((1, 125, 3)))
