"""Streams with deadlines: scenarios, simulation, scores, plans."""

from tightrope.fleet.streams.exact import best_plan
from tightrope.fleet.streams.frames import HORIZON, StreamCase, expand
from tightrope.fleet.streams.library import StreamLibrary, parse_library, read_library, xrbench
from tightrope.fleet.streams.policies import POLICIES, follow, skipped
from tightrope.fleet.streams.score import ModelScore, StreamScore, score
from tightrope.fleet.streams.search import StreamOptions, plan_streams, run_plan
from tightrope.fleet.streams.simulate import Decide, Measure, Moment, simulate

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
