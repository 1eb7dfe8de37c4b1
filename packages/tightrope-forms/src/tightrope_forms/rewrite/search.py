"""Search by one rule after another: the peers of `tightrope_forms.rewrite.agent` and of extraction.

Idea        Greedy substitution takes the edit that saves most. Backtracking keeps a queue of forms, and
            follows those that cost up to ``alpha`` times the best. A restart begins with random edits.
Source      TASO (SOSP 2019): alpha 1.05 and a budget of 100 forms
Guarantee   Never worse than the form that came in.
Complexity  Forms times edits times the size of a form.
"""

import heapq
import math
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tightrope.core import TightropeError
from tightrope.run.base.arguments import REWRITING
from tightrope_forms.rewrite.agent import load_policy, walked
from tightrope_forms.rewrite.substitute import GraphForm

Walk: TypeAlias = Callable[..., GraphForm]
"""Searches from a form, until an ``end`` in time."""


def steepest(form: GraphForm, *, end: float = math.inf) -> GraphForm:
    """Make the edit that saves most, until none saves or a time is over."""
    while time.monotonic() < end:
        nearest = min(form.edits, key=lambda edit: edit.cost, default=None)
        after = form.edited(nearest) if nearest is not None and nearest.cost < form.cost else None
        if after is None or after.cost >= form.cost:
            break
        form = after
    return form


def backtracked(
    form: GraphForm, *, alpha: float = 1.05, budget: int = 100, end: float = math.inf
) -> GraphForm:
    """Follow the cheapest forms first, also those that cost more for a while.

    Args:
        form: where the search begins.
        alpha: forms that cost up to so many times the best are followed.
        budget: of forms that are followed.
        end: in time.
    """
    best, queue, seen = form, [(form.cost, 0, form)], {form.key}
    for _ in range(budget):
        if not queue or time.monotonic() > end:
            break
        _, _, form = heapq.heappop(queue)
        for edit in form.edits:
            after = form.edited(edit) if edit.cost < alpha * best.cost else None
            if after is not None and after.key not in seen:
                seen.add(after.key)
                best = min(best, after, key=lambda one: one.cost)
                heapq.heappush(queue, (after.cost, len(seen), after))
    return best


def restarted(
    form: GraphForm, *, restarts: int = 8, edits: int = 6, seed: int = 0, end: float = math.inf
) -> GraphForm:
    """Begin several times with random edits, and be greedy from there."""
    draw, best = random.Random(seed), steepest(form, end=end)
    for _ in range(restarts):
        one = form
        for _ in range(edits):
            one = (one.edited(draw.choice(one.edits)) if one.edits else None) or one
        best = min(best, steepest(one, end=end), key=lambda one: one.cost)
    return best


def walk_of(method: str, policy: str | Path | None = None) -> Walk | None:
    """Return how a method searches, or None where it extracts.

    Args:
        method: one of `REWRITING`; ``exact`` is extraction from an e-graph.
        policy: a file of `save_policy`, for the agent; without one it learns on each form that it is given.

    Raises:
        TightropeError: there is no such method or policy.
    """
    if method not in REWRITING:
        raise TightropeError(f"method={method!r:.40}: choose from {', '.join(REWRITING)}.")
    if policy is not None and method != "agent":
        raise TightropeError(f"method={method!r} reads no policy={str(policy)!r:.200}: use method='agent'.")
    if method == "exact":
        return None
    walks: dict[str, Walk] = {"backtracking": backtracked, "restarts": restarted, "agent": walked}
    return walks[method] if policy is None else partial(walked, policy=load_policy(policy))
