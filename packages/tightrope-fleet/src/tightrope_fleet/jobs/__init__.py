"""Jobs with predicted lifetimes: placement on machines, predictions, and the twin on addresses."""

from tightrope_fleet.jobs.allocator import BEST_FIT, AddressWay, Replayed, choose_way, replay_allocations
from tightrope_fleet.jobs.bound import machine_time_bound
from tightrope_fleet.jobs.exact import best_placement
from tightrope_fleet.jobs.made_up import made_up_jobs
from tightrope_fleet.jobs.place import HedgedPlacer, place_jobs
from tightrope_fleet.jobs.placer import JobPlacer
from tightrope_fleet.jobs.policies import RULES
from tightrope_fleet.jobs.predict import LifePredictor, LifetimeTable, Oracle
from tightrope_fleet.jobs.sizes import JobShape, choose_shape
from tightrope_fleet.jobs.traces import JobTrace, parse_jobs, read_jobs
from tightrope_fleet.jobs.trust import TrustingPlacer

__all__ = [
    "BEST_FIT",
    "RULES",
    "AddressWay",
    "HedgedPlacer",
    "JobPlacer",
    "JobShape",
    "JobTrace",
    "LifePredictor",
    "LifetimeTable",
    "Oracle",
    "Replayed",
    "TrustingPlacer",
    "best_placement",
    "choose_shape",
    "choose_way",
    "machine_time_bound",
    "made_up_jobs",
    "parse_jobs",
    "place_jobs",
    "read_jobs",
    "replay_allocations",
]
