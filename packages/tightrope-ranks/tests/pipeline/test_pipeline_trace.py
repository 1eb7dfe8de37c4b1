"""The forecast of all ranks as a trace, and the page that is drawn from it."""

from collections.abc import Callable
from html.parser import HTMLParser

import msgspec
import pytest

from benchmarks.ranks import units
from tightrope.core import EventPhase, TightropeError, Trace
from tightrope.core.trace_check import check_trace
from tightrope_ranks.pipeline import breadth_first, folded, gpipe, interleaved, looped, lower, with_wires
from tightrope_ranks.pipeline.language import Orders
from tightrope_ranks.pipeline.listing import ListRule, list_orders
from tightrope_ranks.pipeline.trace import ranks_trace
from tightrope_ranks.values.ranks import JointPlan
from tightrope_ranks.view import ranks_page


def made(
    order: Callable[[], Orders], owners: tuple[int, ...], *, sharded: bool = False, again: bool = False
) -> JointPlan:
    work = units.work(owners, 8, 6, gather=1, reduce=1, replicas=2 if sharded else 1, sharded=sharded)
    chosen = frozenset((stage, 1) for stage in range(len(owners))) if again else frozenset()
    machine = units.machine(0.25)
    return lower(
        work, machine, with_wires(work, order()), again=chosen, limits=(40_000,) * 4, method="by <hand>"
    )


def zero_bubble() -> Orders:
    work = units.work(folded(4), 8, 6)
    found = list_orders(work, units.machine(0.25), ListRule(4, split=True))
    assert found is not None
    return found


PLANS = {
    "GPipe": lambda: made(lambda: gpipe(4, 6), looped(4, 1)),
    "again": lambda: made(lambda: interleaved(4, 2, 6), looped(4, 2), again=True),
    "divided": lambda: made(lambda: breadth_first(4, 2, 6), looped(4, 2), sharded=True),
    "folded halves": lambda: made(zero_bubble, folded(4)),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_trace_says_what_the_plan_forecasts(name: str) -> None:
    plan = PLANS[name]()
    trace = ranks_trace(plan, name="net")
    check_trace(trace)
    assert trace.summary.ns == plan.ns == max(event.end for event in trace.events)
    assert [max(counter.values) for counter in trace.counters] == [rank.peak for rank in plan.ranks]
    for counter in trace.counters:
        assert list(counter.times) == sorted(counter.times)
    again = [event for event in trace.events if event.phase == EventPhase.RECOMPUTE]
    assert bool(again) == (name == "again")
    copies = [event.name for event in trace.events if event.phase == EventPhase.COPY]
    assert any("UNSHARD" in one for one in copies) == (name == "divided")
    busy = sum(event.duration for event in trace.events if event.phase != EventPhase.COPY)
    assert busy == 8 * 6 * 3 * units.UNIT + sum(event.duration for event in again)


class _Rows(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = []
        self.asks: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "g":
            self.rows.append(known.get("data-rank") or "")
        if tag in ("script", "link", "img", "iframe", "object"):
            self.asks.append(tag)
        self.asks += [key for key in known if key in ("src", "href") or key.startswith("on")]


@pytest.mark.parametrize("name", PLANS)
def test_the_page_has_one_row_per_rank_and_asks_for_nothing(name: str) -> None:
    page = ranks_page(ranks_trace(PLANS[name](), name="net"))
    read = _Rows()
    read.feed(page)
    assert read.rows == ["0", "1", "2", "3"]
    assert read.asks == []
    assert "default-src 'none'" in page
    assert "by &lt;hand&gt;" in page
    assert "by <hand>" not in page


def test_a_page_of_too_many_events_draws_the_ranks_that_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope_ranks.view._MOST", 50)
    page = ranks_page(ranks_trace(PLANS["GPipe"]()))
    read = _Rows()
    read.feed(page)
    assert read.rows == ["0", "1"]
    assert "ranks 0 to 1 are drawn" in page


def test_what_is_no_trace_of_ranks_is_refused() -> None:
    with pytest.raises(TightropeError, match="none of ranks"):
        ranks_page(Trace("forecast", ()))


def test_a_trace_is_saved_and_read() -> None:
    trace = ranks_trace(PLANS["again"]())
    assert msgspec.json.decode(msgspec.json.encode(trace), type=Trace) == trace
