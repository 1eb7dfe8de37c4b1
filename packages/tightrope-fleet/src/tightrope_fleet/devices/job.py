"""Go or no-go: what federated training of a fleet would take, before it is done, and what it took.

The forecast is a run of the same rounds without training: nothing on the clock depends on what is learnt.
What was observed is counted apart from it, by the training: samples that nets saw, bytes of weights that were
added.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tightrope.core.errors import TightropeError
from tightrope.core.units import Bytes
from tightrope_fleet.devices.fleet import Devices
from tightrope_fleet.devices.memory import KindFit, able_share
from tightrope_fleet.devices.rounds import RoundLog, RoundPlan, run_rounds
from tightrope_fleet.values.work import Promise

if TYPE_CHECKING:
    from tightrope_fleet.devices.train import FederatedTraining


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """What the training may take; None = anything.

    Attributes:
        hours: on the virtual clock.
        bytes: both ways, all devices.
        joules: of devices.
        error: share of wrong answers at the end, at most.
        able: share of devices that have room for the step, at least.
    """

    hours: float | None = None
    bytes: Bytes | None = None
    joules: float | None = None
    error: float | None = None
    able: float | None = None

    def __post_init__(self) -> None:
        for name in ("hours", "bytes", "joules", "error", "able"):
            value, most = getattr(self, name), 1.0 if name in ("error", "able") else math.inf
            if value is not None and not 0 <= value <= most:
                raise TightropeError(
                    f"the limit {name} is {value}: give a number of at least 0"
                    + (", at most 1, as it is a share." if most == 1.0 else ".")
                )


@dataclass(frozen=True, slots=True)
class FleetResult:
    """What came of it.

    Attributes:
        log: of the rounds.
        promises: limit, forecast, observed.
        curve: (virtual seconds, share of wrong answers).
    """

    log: RoundLog
    promises: tuple[Promise, ...]
    curve: tuple[tuple[float, float], ...]


def run_fleet(
    devices: Devices,
    samples: Sequence[int],
    plan: RoundPlan,
    limits: FleetLimits,
    *,
    fits: Sequence[KindFit] = (),
    training: "FederatedTraining | None" = None,
) -> FleetResult:
    """Forecast, train where there is something to train, and hold both against the limits.

    Raises:
        TightropeError: no device can take part, weights are no longer finite, or a limit is on what is
            neither planned nor trained here.
    """
    if limits.error is not None and training is None:
        raise TightropeError(
            f"the limit error is {limits.error}, and nothing is trained: add --fashion (training=...), or "
            "leave --error-limit out."
        )
    if limits.able is not None and not fits:
        raise TightropeError(
            f"the limit able is {limits.able}, and no planned step tells which devices fit: "
            "add --step (fits=...), or leave --able-limit out."
        )
    due = run_rounds(devices, samples, plan)
    log = due if training is None else run_rounds(devices, samples, plan, training)
    last = due.steps[-1] / 1000 if due.steps else 0.0
    ran = training is not None
    able = able_share(devices, fits, planned=True) if fits else None  # unknown without a plan
    finished = len(due.steps) == plan.steps
    promises = [
        Promise("steps made", "", plan.steps, len(due.steps), len(log.steps) if ran else None, at_least=True),
        Promise(
            "virtual time",
            "h",
            limits.hours,
            last / 3600,
            log.steps[-1] / 3.6e6 if ran and log.steps else None,
        ),
        Promise("bytes, both ways", "B", limits.bytes, due.down + due.up, log.down + log.up if ran else None),
        Promise("energy of devices", "J", limits.joules, due.joules, log.joules if ran else None),
        Promise("devices with room", "", limits.able, able, None, at_least=True),
    ]
    curve: tuple[tuple[float, float], ...] = ()
    if training is not None:
        curve = tuple((log.steps[v - 1] / 1000, e) for v, e in sorted(training.errors.items()))
        error = training.averaged_error() if finished else 1.0
        promises.append(Promise("wrong answers at the end", "", limits.error, None, error))
    return FleetResult(log, tuple(promises), curve)
