"""The search: never above a limit, few trials, as good as trying everything."""

import msgspec
import pytest

from tightrope.core import InfeasibleError, TightropeError
from tightrope_micro.sensor import (
    Choices,
    Dataset,
    Flatten,
    SensorLimits,
    Spectral,
    forecast,
    gesture_dataset,
    lay_out,
    train,
    tune,
)
from tightrope_micro.sensor.pipeline import Pipeline
from tightrope_micro.sensor.train import split

DATA = gesture_dataset(4, seconds=6.0, noise=2.5)
FEW = Choices(
    rows=(62, 125),
    blocks=(Flatten(), Spectral(fft=32, bands=4), Spectral(fft=128, bands=8)),
    hidden=((), (10,), (20, 10)),
)


def test_the_gestures_are_told_apart_within_seconds() -> None:
    found = train(gesture_dataset(8), Pipeline(125, 3, 16.0, Spectral(), (20, 10)))
    assert found.accuracy >= 0.95
    assert found.pipeline.widths == (33, 20, 10, 4)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "limits", [SensorLimits(ram=1000), SensorLimits(rom=4000), SensorLimits(instructions=40_000)]
)
def test_nothing_above_a_limit_is_tried(limits: SensorLimits) -> None:
    every = tune(DATA, limits, choices=FEW, exhaustive=True)
    found = tune(DATA, limits, choices=FEW)
    assert every.num_refused > 0
    assert len(every.trials) == every.num_allowed
    assert len(found.trials) <= max(1, every.num_allowed // 4)
    for trial in (*every.trials, *found.trials):
        pipeline = trial.trained.pipeline
        assert limits.allow(forecast(pipeline, lay_out(pipeline)))
    again = tune(DATA, limits, choices=FEW)
    assert again.best.trained.accuracy == found.best.trained.accuracy


def test_limits_that_nothing_keeps_name_the_least() -> None:
    with pytest.raises(InfeasibleError, match="B of RAM") as caught:
        tune(DATA, SensorLimits(ram=10), choices=FEW)
    assert caught.value.smallest_found is not None
    least = SensorLimits(ram=caught.value.smallest_found)
    assert tune(DATA, least, choices=FEW).best.said.ram <= caught.value.smallest_found


def test_windows_of_one_recording_are_never_on_both_sides() -> None:
    seen, held = split(DATA)
    assert not {one.name for one in seen} & {one.name for one in held}
    assert {one.label for one in seen} == {one.label for one in held} == set(DATA.labels)


def test_too_few_recordings_are_refused() -> None:
    one = Dataset(DATA.sensors, 16.0, DATA.recordings[:4], False)
    with pytest.raises(TightropeError, match="two labels"):
        tune(one, SensorLimits())
    two = Dataset(DATA.sensors, 16.0, DATA.recordings[:5], False)
    with pytest.raises(TightropeError, match="has one recording"):
        tune(two, SensorLimits())


def test_limits_name_what_a_forecast_has() -> None:
    assert set(msgspec.structs.asdict(SensorLimits())) == {"ram", "rom", "instructions"}
