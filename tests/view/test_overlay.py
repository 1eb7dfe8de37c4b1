"""Observed times beside those of the forecast on the page: of the step, of stages, of layers, of every op."""

from collections.abc import Iterator

import msgspec
import pytest

from tests.view.browser import Opened, browser_path, opened
from tests.view.synthetic import trace_of
from tightrope.core import Trace, format_time
from tightrope.view import page

pytest.importorskip("playwright.sync_api", reason="the page is not tested: playwright is not installed")
pytestmark = pytest.mark.skipif(
    not browser_path(), reason="the page is not tested: no chromium here; `make test-page` installs one"
)


def slower(trace: Trace, times: int) -> Trace:
    """The same step as observed, every op so many times as slow."""
    events = tuple(
        msgspec.structs.replace(event, start=times * event.start, end=times * event.end)
        for event in trace.events
    )
    ticks = tuple(times * tick for tick in trace.ticks)
    return msgspec.structs.replace(trace, source="observed", events=events, ticks=ticks)


@pytest.fixture(scope="module")
def said() -> Trace:
    return trace_of(400)


@pytest.fixture(scope="module")
def shown(said: Trace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("overlay")
    (folder / "both.html").write_text(page(slower(said, 3), forecast=said))
    (folder / "alone.html").write_text(page(said))
    with opened(folder / "both.html") as found:
        yield found


def test_the_step_its_stages_and_its_layers_have_both_times(shown: Opened, said: Trace) -> None:
    note = shown.text("#times")
    assert f"Forecast operator time {format_time(said.operator_ns)}; observed is 3.00 times that." in note
    for number in (0, 1):
        table = shown.page.locator("#tab-time table").nth(number)
        heads = [head.split(" (")[0] for head in table.locator("th").all_inner_texts()]
        assert heads[1:3] == ["time", "forecast"]
        for row in table.locator("tbody tr").all()[:3]:
            observed, forecast = (float(text) for text in row.locator("td").all_inner_texts()[1:3])
            assert observed == pytest.approx(3 * forecast, abs=0.02)


def test_an_op_has_both_times_at_its_side_and_under_the_pointer(shown: Opened, said: Trace) -> None:
    shown.eval("() => goTo('event', 5)")
    event = said.events[5]
    words = f"{format_time(event.end - event.start)}; observed is 3.00 times that"
    assert shown.text("#value-forecast") == words
    assert f"forecast {words}" in shown.eval("() => eventWords(5).join('|')")
    assert shown.page.is_visible("#ops-ghost-note")
    assert shown.messages == []


def test_without_a_forecast_nothing_is_said_of_one(shown: Opened) -> None:
    other = shown.page.context.new_page()
    other.goto(shown.page.url.partition("#")[0].replace("both", "alone"))
    other.wait_for_selector("html[data-ready]")
    assert "Forecast operator time" not in other.inner_text("#times")
    assert "forecast" not in other.inner_text("#tab-time")
    assert not other.is_visible("#ops-ghost-note")
    other.close()
