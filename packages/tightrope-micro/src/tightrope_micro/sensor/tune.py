"""Search for a pipeline under limits on RAM, ROM and instructions.

Idea        Forecasts are free, so what is above a limit is never tried. Of the rest, one setting after the
            other is varied with the others as in the best so far, until a round finds nothing better or the
            trials are spent.
Source      Coordinate search; the settings act nearly independently of each other
Guarantee   No proposal is above a limit by its forecast. At most a quarter of what is allowed is trained
            (one at least). The same data and seed give the same answer.
Complexity  One training of a small net per trial.
Gaps        A local optimum may be missed; ties go to the one with fewer instructions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

import msgspec

from tightrope.core import Bytes, InfeasibleError
from tightrope_micro.sensor.blocks import Block, Flatten, Spectral
from tightrope_micro.sensor.dataset import Dataset
from tightrope_micro.sensor.forecast import SensorForecast, forecast
from tightrope_micro.sensor.pipeline import Pipeline, lay_out
from tightrope_micro.sensor.train import TrainedClassifier, split, train

Tick = Callable[[int, int, str], None]
_FILTERS: Final[tuple[Literal["none", "low"], ...]] = ("none", "low")
SHARE: Final = 4
"""One in this many allowed pipelines is tried at most."""


class SensorLimits(msgspec.Struct, frozen=True):
    """What a pipeline may take; None = as much as it likes.

    Attributes:
        ram: bytes of static RAM.
        rom: bytes of code and constants.
        instructions: of one window.
    """

    ram: Bytes | None = None
    rom: Bytes | None = None
    instructions: int | None = None

    def allow(self, said: SensorForecast) -> bool:
        """Whether a forecast is within all limits."""
        return all(
            most is None or getattr(said, name) <= most for name, most in msgspec.structs.asdict(self).items()
        )


@dataclass(frozen=True)
class Choices:
    """What is varied, a setting per field.

    Attributes:
        rows: of a window.
        blocks: that compute features.
        hidden: widths of hidden layers.
        numbers: of the net, of every pipeline.
    """

    rows: tuple[int, ...] = (62, 125, 187)
    blocks: tuple[Block, ...] = (
        Flatten(),
        *(
            Spectral(fft=fft, bands=bands, filter=way, cutoff_hz=8.0, order=2)
            for fft, bands, way in product((32, 64, 128), (4, 8), _FILTERS)
        ),
    )
    hidden: tuple[tuple[int, ...], ...] = ((), (10,), (20, 10), (40, 20))
    numbers: Literal["float32", "int8"] = "float32"


@dataclass(frozen=True)
class Trial:
    """A pipeline, its forecast and how well it does."""

    trained: TrainedClassifier
    said: SensorForecast


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        best: of all trials.
        trials: in the order in which they were made.
        num_allowed: pipelines within the limits.
        num_refused: pipelines above one.
    """

    best: Trial
    trials: tuple[Trial, ...]
    num_allowed: int
    num_refused: int


Key = tuple[int, int, int]


def tune(
    dataset: Dataset,
    limits: SensorLimits,
    *,
    choices: Choices | None = None,
    exhaustive: bool = False,
    seed: int = 0,
    tick: Tick | None = None,
) -> Tuned:
    """Find the pipeline that names held-out windows best within limits.

    Args:
        dataset: recordings.
        limits: on every pipeline.
        choices: what is varied.
        exhaustive: try all that is allowed, to compare with.
        seed: of training.
        tick: called after every trial with (trials, most trials, pipeline).

    Raises:
        InfeasibleError: no pipeline is within the limits; names the least of each.
    """
    split(dataset)  # data that cannot be trained on is refused before anything is searched
    choices = choices or Choices()
    allowed, refused = _sorted_out(dataset, limits, choices)
    most = len(allowed) if exhaustive else max(1, len(allowed) // SHARE)
    tried: dict[Key, Trial] = {}

    def run(key: Key) -> None:
        pipeline, said = allowed[key]
        tried[key] = Trial(train(dataset, pipeline, seed=seed), said)
        if tick is not None:
            tick(len(tried), most, str(tried[key].trained.pipeline))

    for key in allowed if exhaustive else _walk(list(allowed), tried):
        if len(tried) >= most:
            break
        run(key)
    best = max(tried.values(), key=_worth)
    return Tuned(best, tuple(tried.values()), len(allowed), refused)


def _worth(trial: Trial) -> tuple[float, int]:
    return trial.trained.accuracy, -trial.said.instructions


def _walk(allowed: Sequence[Key], tried: dict[Key, Trial]) -> Iterator[Key]:
    """Say what to try next: neighbours of the best so far that differ in one setting, then anything left."""
    yield allowed[len(allowed) // 2]
    while True:
        before = len(tried)
        for place in (1, 0, 2):
            best = max(tried, key=lambda key: _worth(tried[key]))
            line = [k for k in allowed if all(k[i] == best[i] for i in range(3) if i != place)]
            for key in line:
                if key not in tried:
                    yield key
        if len(tried) == before:
            break
    yield from (key for key in allowed if key not in tried)


def _sorted_out(
    dataset: Dataset, limits: SensorLimits, choices: Choices
) -> tuple[dict[Key, tuple[Pipeline, SensorForecast]], int]:
    longest = min(len(one.values) for one in dataset.recordings)
    allowed: dict[Key, tuple[Pipeline, SensorForecast]] = {}
    every: list[SensorForecast] = []
    for key in product(range(len(choices.rows)), range(len(choices.blocks)), range(len(choices.hidden))):
        rows, block, hidden = choices.rows[key[0]], choices.blocks[key[1]], choices.hidden[key[2]]
        if rows > longest:
            continue
        if isinstance(block, Spectral) and block.cutoff_hz >= 500 / dataset.interval_ms:
            block = msgspec.structs.replace(block, cutoff_hz=200 / dataset.interval_ms)
        pipeline = Pipeline(
            rows, len(dataset.sensors), dataset.interval_ms, block, hidden, dataset.labels, choices.numbers
        )
        every.append(forecast(pipeline, lay_out(pipeline)))
        if limits.allow(every[-1]):
            allowed[key] = (pipeline, every[-1])
    if not allowed:
        least = {
            name: min((getattr(one, name) for one in every), default=0)
            for name in SensorForecast.__struct_fields__
        }
        raise InfeasibleError(
            f"no pipeline of {len(every)} is within the limits. The smallest needs, not all of one pipeline, "
            f"are {least['ram']} B of RAM, {least['rom']} B of ROM and {least['instructions']} instructions. "
            "Ask for more, or record windows of at least 62 rows.",
            asked=limits.ram or 0,
            smallest_found=least["ram"],
        )
    return allowed, len(every) - len(allowed)
