"""Run it: ``python -m benchmarks micro_workflow [--only E1,E3,E4,E5] [--seeds N]``.

Data are synthetic accelerometer recordings of four gestures in the signed format.

E1: window of 125 rows and 3 axes, spectra of FFT 128 in 8 bands, net 33-20-10-4 of int8, as those figures
are of that it is beside (which count a search for anomalies too), and of float32, on an emulated Cortex-M4F.
Counted as there: static RAM and ROM without the bench and the window; then everything.

E3: pipelines that the table of the forecast was not made with; RAM, ROM and instructions forecast beside
counted.

E4: recordings as JSON and CBOR and back; every byte of a signed one changed in turn; every cut.

E5: the search beside one that tries all, under three limits, on data of several seeds and noises.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from tightrope_micro.emulate import missing_tools
from tightrope_micro.sensor import (
    GESTURES,
    AcquisitionError,
    Flatten,
    Layer,
    MelEnergies,
    Pipeline,
    SensorBoard,
    SensorLimits,
    Spectral,
    features,
    gesture,
    gesture_dataset,
    integers_of,
    library,
    read_acquisition,
    sensor_on_board,
    train,
    tune,
    write_acquisition,
)
from tightrope_micro.sensor.forecast import SensorForecast

_RAM, _ROM, _INSTRUCTIONS = 6_400, 42_500, 1_360_000
_KEY = "benchmark"
_UNSEEN = (
    Pipeline(80, 2, 10.0, Spectral(fft=64, bands=12, filter="low", order=4), (12, 6), GESTURES),
    Pipeline(187, 3, 16.0, Spectral(fft=128, bands=6), (30,), GESTURES),
    Pipeline(200, 4, 16.0, Flatten(), (24, 8), GESTURES),
    Pipeline(512, 1, 1.0, MelEnergies(fft=128, filters=16), (16,), GESTURES),
    Pipeline(400, 2, 5.0, Spectral(fft=256, bands=16, filter="high", order=8)),
    Pipeline(150, 3, 16.0, MelEnergies(fft=64, stride=40, filters=9), (), GESTURES),
    Pipeline(110, 3, 16.0, Spectral(fft=64, bands=7), (18, 9), GESTURES, "int8"),
    Pipeline(95, 2, 12.0, Flatten(), (36,), GESTURES, "int8"),
)


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks micro_workflow")
    parser.add_argument("--only", default="E1,E3,E4,E5", help="bars to run")
    parser.add_argument("--seeds", type=int, default=5, help="seeds per noise of E5")
    asked = parser.parse_args(arguments)
    held = True
    if ("E1" in asked.only or "E3" in asked.only) and missing_tools():
        console.print(f"E1, E3 not run: {missing_tools()}")
        held = False
    else:
        held &= "E1" not in asked.only or _e1(console)
        held &= "E3" not in asked.only or _e3(console)
    held &= "E4" not in asked.only or _e4(console)
    held &= "E5" not in asked.only or _e5(console, asked.seeds)
    return 0 if held else 1


def _e1(console: Console) -> bool:
    asked = Pipeline(125, 3, 16.0, Spectral(fft=128, bands=8), (20, 10))
    held = True
    for numbers in ("int8", "float32"):
        start = time.perf_counter()
        found = train(gesture_dataset(), msgspec.structs.replace(asked, numbers=numbers))
        seconds = time.perf_counter() - start
        made = library(found.pipeline, found.layers, found.samples, accuracy=found.accuracy)
        with tempfile.TemporaryDirectory() as folder:
            board = sensor_on_board(made.write(Path(folder) / "out"))
        good = board.ram <= _RAM and board.rom <= _ROM and board.instructions <= _INSTRUCTIONS
        held &= good
        console.print(
            f"E1 {_word(good)}: {found.pipeline}, net of {numbers}, "
            f"{found.accuracy:.1%} of held-out windows, trained in {seconds:.1f} s: RAM {board.ram} of "
            f"{_RAM} B, ROM {board.rom} of {_ROM} B, {board.instructions:,} of {_INSTRUCTIONS:,} "
            f"instructions; with window, bench and stack ({board.stack} B): RAM {board.everything} B, "
            f"ROM {board.rom_everything} B"
        )
    return held


def _e3(console: Console) -> bool:
    random, held = np.random.default_rng(11), True
    for pipeline in _UNSEEN:
        widths = pipeline.widths
        layers = [
            Layer(
                (random.normal(size=(b, a)) / (3 * a**0.5)).astype(np.float32),
                random.normal(size=b).astype(np.float32),
            )
            for a, b in pairwise(widths)
        ]
        samples = random.normal(1.0, 4.0, (2, pipeline.rows, pipeline.axes))
        whole = pipeline.numbers == "int8"
        net = integers_of(layers, features(pipeline.block, samples, pipeline.rate_hz)) if whole else layers
        made = library(pipeline, net, samples)
        with tempfile.TemporaryDirectory() as folder:
            board = sensor_on_board(made.write(Path(folder) / "out"))
        said = made.manifest.forecast
        rom, spent = _apart(said, board, "rom"), _apart(said, board, "instructions")
        good = said.ram == board.ram and abs(rom) <= 0.02 and abs(spent) <= 0.1
        held &= good
        console.print(
            f"E3 {_word(good)}: {pipeline}: RAM {said.ram} = {board.ram} B; ROM {said.rom}, {board.rom} B "
            f"({rom:+.1%}); instructions {said.instructions:,}, {board.instructions:,} ({spent:+.1%})"
        )
    return held


def _apart(said: SensorForecast, board: SensorBoard, name: str) -> float:
    return float(getattr(said, name) / getattr(board, name) - 1)


def _e4(console: Console) -> bool:
    same = changed = cuts = wrong = 0
    for k, label in enumerate(GESTURES):
        made = gesture(label, seconds=1.0, seed=k)
        as_json = write_acquisition(made, "json", key=_KEY)
        as_cbor = write_acquisition(read_acquisition(as_json, key=_KEY), "cbor", key=_KEY)
        same += write_acquisition(read_acquisition(as_cbor, key=_KEY), "json", key=_KEY) == as_json
        for data in (as_json, as_cbor):
            for at in range(len(data)):
                changed += 1
                wrong += _is_read(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
            for at in range(0, len(data), 7):
                cuts += 1
                wrong += _is_read(data[:at])
    held = same == len(GESTURES) and not wrong
    console.print(
        f"E4 {_word(held)}: {same} of {len(GESTURES)} recordings equal after JSON, CBOR, JSON; of "
        f"{changed} changed "
        f"bytes and {cuts} cuts {wrong} were read"
    )
    return held


def _is_read(data: bytes) -> bool:
    try:
        read_acquisition(data, key=_KEY)
    except AcquisitionError:
        return False
    return True


def _e5(console: Console, num_seeds: int) -> bool:
    held = True
    for noise in (2.0, 4.0, 6.0):
        worst, most, above = 0.0, 0.0, 0
        allowed = 0
        for seed in range(num_seeds):
            data = gesture_dataset(6, seconds=6.0, noise=noise, seed=seed)
            limits = (
                SensorLimits(ram=1_500, rom=10_000),
                SensorLimits(instructions=40_000),
                SensorLimits(ram=2_500, rom=8_000, instructions=100_000),
            )[seed % 3]
            every, found = tune(data, limits, exhaustive=True), tune(data, limits)
            worst = max(worst, every.best.trained.accuracy - found.best.trained.accuracy)
            most = max(most, len(found.trials) / every.num_allowed)
            above += sum(not limits.allow(trial.said) for trial in found.trials)
            allowed += every.num_allowed
        good = worst <= 0.01 and most <= 0.25 and not above
        held &= good
        console.print(
            f"E5 {_word(good)}: noise {noise:g} m/s2, {num_seeds} seeds, {allowed} pipelines within "
            f"limits: worst "
            f"{100 * worst:.1f} points below trying all, with at most {most:.0%} of the trials; {above} "
            f"above a limit"
        )
    return held


def _word(held: bool) -> str:
    return "ok" if held else "MISSED"
