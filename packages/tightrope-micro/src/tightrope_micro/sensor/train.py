"""Train the net of a pipeline on windows of recordings."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tightrope.core import TightropeError
from tightrope_micro.sensor.blocks import features
from tightrope_micro.sensor.dataset import Dataset, Floats, SensorRecording, windows
from tightrope_micro.sensor.integers import IntegerClassifier, integers_of, scores_of
from tightrope_micro.sensor.pipeline import Layer, Pipeline

HELD_OUT = 4
"""One recording of each label in this many is never trained on."""


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained net.

    Attributes:
        pipeline: with the classes of the data.
        layers: that take features as they are; how they were scaled is part of the first. Of a pipeline
            whose net computes in integers, that net.
        accuracy: fraction of the windows of held-out recordings that are named rightly.
        samples: some windows of held-out recordings, to measure with.
    """

    pipeline: Pipeline
    layers: tuple[Layer, ...] | IntegerClassifier
    accuracy: float
    samples: Floats


def split(dataset: Dataset) -> tuple[list[SensorRecording], list[SensorRecording]]:
    """Part recordings into those to train on and those held out; windows of one are never in both.

    Raises:
        TightropeError: a label has fewer than two recordings, or there is one label only.
    """
    if len(dataset.labels) < 2:
        raise TightropeError("a classifier needs two labels or more: name files LABEL.ANYTHING.json.")
    train, held = [], []
    for label in dataset.labels:
        of_label = [one for one in dataset.recordings if one.label == label]
        if len(of_label) < 2:
            raise TightropeError(f"label {label!r} has one recording: one to train on and one to hold out.")
        num = max(1, len(of_label) // HELD_OUT)
        train += of_label[:-num]
        held += of_label[-num:]
    return train, held


def train(dataset: Dataset, pipeline: Pipeline, *, epochs: int = 150, seed: int = 0) -> TrainedClassifier:
    """Train the net of a pipeline; the same seed gives the same net.

    Args:
        dataset: recordings.
        pipeline: its window, features and hidden layers.
        epochs: passes over all windows.
        seed: of the weights that it begins from.

    Raises:
        TightropeError: there are too few recordings, or windows are longer than they; or no shifts keep a
            layer of integers in 32 bits.
    """
    seen, held = split(dataset)
    stride = max(1, pipeline.rows // 2)
    x_seen, y_seen = windows(seen, pipeline.rows, stride)
    x_held, y_held = windows(held, pipeline.rows, stride)
    labels = dataset.labels
    known = Pipeline(
        pipeline.rows, len(dataset.sensors), dataset.interval_ms, pipeline.block, pipeline.hidden, labels,
        pipeline.numbers,
    )  # fmt: skip
    known.check()
    f_seen, f_held = (features(known.block, x, known.rate_hz) for x in (x_seen, x_held))
    fitted = _fit(f_seen, [labels.index(one) for one in y_seen], known.widths, epochs, seed)
    layers = fitted if known.numbers == "float32" else integers_of(fitted, f_seen)
    right = classify(layers, f_held) == np.array([labels.index(one) for one in y_held])
    return TrainedClassifier(known, layers, float(right.mean()), x_held[:: max(1, len(x_held) // 4)][:4])


def classify(
    layers: Sequence[Layer] | IntegerClassifier, found: Floats
) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Class per row of features, as the C does it."""
    if isinstance(layers, IntegerClassifier):
        return np.asarray(scores_of(layers, found).argmax(axis=1)).reshape(-1)
    x = found
    for layer in layers[:-1]:
        x = np.maximum(x @ layer.weight.T.astype(np.float64) + layer.bias, 0.0)
    scores = x @ layers[-1].weight.T.astype(np.float64) + layers[-1].bias
    return np.asarray(scores.argmax(axis=1)).reshape(-1)


def _fit(
    found: Floats, labels: Sequence[int], widths: Sequence[int], epochs: int, seed: int
) -> tuple[Layer, ...]:
    import torch

    mean, deviation = found.mean(axis=0), found.std(axis=0) + 1e-3
    x = torch.tensor((found - mean) / deviation, dtype=torch.float32)
    y = torch.tensor(labels)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        dense = [torch.nn.Linear(a, b) for a, b in pairwise(widths)]
        parts = [part for layer in dense for part in (layer, torch.nn.ReLU())][:-1]
        net = torch.nn.Sequential(*parts)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.01)
        for _ in range(epochs):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    weights = [layer.weight.detach().double().numpy() for layer in dense]
    biases = [layer.bias.detach().double().numpy() for layer in dense]
    biases[0] = biases[0] - weights[0] @ (mean / deviation)
    weights[0] = weights[0] / deviation
    return tuple(
        Layer(w.astype(np.float32), b.astype(np.float32)) for w, b in zip(weights, biases, strict=True)
    )
