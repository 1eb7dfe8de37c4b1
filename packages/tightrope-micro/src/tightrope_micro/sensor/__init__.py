"""From recordings of sensors to a classifier as C: read, compute features, search, write, measure."""

from tightrope_micro.sensor.acquisition import (
    Acquisition,
    AcquisitionError,
    Sensor,
    acquisition,
    encoding_of,
    read_acquisition,
    read_acquisition_file,
    write_acquisition,
)
from tightrope_micro.sensor.blocks import Flatten, MelEnergies, Spectral, features
from tightrope_micro.sensor.dataset import (
    Dataset,
    SensorRecording,
    ingest,
    read_dataset,
    windows,
    write_dataset,
)
from tightrope_micro.sensor.forecast import SensorForecast, forecast
from tightrope_micro.sensor.integers import IntegerClassifier, integers_of, scores_of
from tightrope_micro.sensor.library import Library, library, read_sensor_manifest
from tightrope_micro.sensor.measure import SensorBoard, SensorHost, sensor_on_board, sensor_on_host
from tightrope_micro.sensor.pipeline import Layer, Pipeline, lay_out
from tightrope_micro.sensor.synthetic import GESTURES, gesture, gesture_dataset
from tightrope_micro.sensor.train import TrainedClassifier, train
from tightrope_micro.sensor.tune import Choices, SensorLimits, Tuned, tune

__all__ = [
    "GESTURES",
    "Acquisition",
    "AcquisitionError",
    "Choices",
    "Dataset",
    "Flatten",
    "IntegerClassifier",
    "Layer",
    "Library",
    "MelEnergies",
    "Pipeline",
    "Sensor",
    "SensorBoard",
    "SensorForecast",
    "SensorHost",
    "SensorLimits",
    "SensorRecording",
    "Spectral",
    "TrainedClassifier",
    "Tuned",
    "acquisition",
    "encoding_of",
    "features",
    "forecast",
    "gesture",
    "gesture_dataset",
    "ingest",
    "integers_of",
    "lay_out",
    "library",
    "read_acquisition",
    "read_acquisition_file",
    "read_dataset",
    "read_sensor_manifest",
    "scores_of",
    "sensor_on_board",
    "sensor_on_host",
    "train",
    "tune",
    "windows",
    "write_acquisition",
    "write_dataset",
]
