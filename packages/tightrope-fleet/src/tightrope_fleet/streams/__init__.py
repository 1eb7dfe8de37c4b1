"""Streams with deadlines: scenarios, simulation, scores, plans."""

from tightrope_fleet.streams.exact import best_plan
from tightrope_fleet.streams.frames import HORIZON, StreamCase, expand
from tightrope_fleet.streams.library import StreamLibrary, parse_library, read_library, xrbench
from tightrope_fleet.streams.policies import POLICIES, follow, skipped
from tightrope_fleet.streams.score import ModelScore, StreamScore, score
from tightrope_fleet.streams.search import StreamOptions, plan_streams, run_plan
from tightrope_fleet.streams.simulate import Decide, Measure, Moment, simulate

__all__ = [
    "HORIZON",
    "POLICIES",
    "Decide",
    "Measure",
    "ModelScore",
    "Moment",
    "StreamCase",
    "StreamLibrary",
    "StreamOptions",
    "StreamScore",
    "best_plan",
    "expand",
    "follow",
    "parse_library",
    "plan_streams",
    "read_library",
    "run_plan",
    "score",
    "simulate",
    "skipped",
    "xrbench",
]
