"""The hook for plug-ins that find equal forms of a captured call: `tightrope.compile(..., rewrite=True)`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, cast

from tightrope.capture.program import Program
from tightrope.core import Bytes, Plan
from tightrope.core.plugins import absent, installed, loaded
from tightrope.run.session.calls import Calls
from tightrope.run.session.captured import Captured, Rewritten
from tightrope.run.session.unit import Unit

GROUP: Final = "tightrope.forms"  # of entry points: functions as `ChooseForm`
PlanForm: TypeAlias = Callable[[Program, Bytes], Plan]  # in at most so many total bytes; 0 = in the budget
ChooseForm: TypeAlias = Callable[[Program, Sequence[Any], PlanForm], tuple[Program, str, Bytes]]
"""Chooses, given a call and its inputs: the call or an equal form, what to say of it, and its most bytes."""


def finder(what: str = "rewrite=True", *, method: str | bool = True) -> ChooseForm:
    """Load what finds forms, by a method of its own or by the first.

    Raises:
        TightropeError: nothing that is installed does, or it does not load.
    """
    for name, entries in installed(GROUP).items():
        choose = loaded(f"rewriting by {name}", entries)
        return cast(ChooseForm, choose if method is True else partial(choose, method=method))
    raise absent(what, "forms")


def equal_form(calls: Calls, program: Program, real: Sequence[Any]) -> tuple[Program, Bytes]:
    """Choose among a call as captured and its forms, each planned as it would be; return its most bytes."""
    settings = calls.settings
    if settings.rewrite is None or program.call is None:
        return program, 0

    def planned(one: Program, most: Bytes) -> Plan:
        allocator, check = calls.accounts.allocator, settings.pages is not None
        made = Captured.of(one, real, allocator, calls.status, writes=settings.writes, check=check)
        if one is program:  # a share is one of what the call as captured needs
            calls.prospects.raise_share([made], waiting=False)
        unit = Unit(
            made.graph, replace(settings, fuse=False), calls.accounts, calls.status, headroom=made.headroom
        )
        unit.rewritten = Rewritten(program.graph, most=most)
        return unit.suit(calls.prospects.room(unit, calls.accounts.charged()), calls.prospects.expected).plan

    calls.accounts.note_tensors(real)
    form, said, most = settings.rewrite(program, real, planned)
    form.call.form = said
    return form, most


def form_of(calls: Calls) -> str:
    """Say which forms ran last, or why none did; empty where none was asked for."""
    if calls.settings.rewrite is None:
        return ""
    ran = (calls.captured[turn.graph].program.call for running in calls.recent for turn in running.turns)
    forms = dict.fromkeys(call.form for call in ran if call is not None and call.form)
    return "; ".join(forms) or "not rewritten: no training graph of fixed sizes ran"
