"""The user's own lines on the page: which of them made the peak."""

from collections.abc import Iterator

import pytest

from tests.view.browser import Opened, browser_path, opened
from tests.view.synthetic import trace_of
from tightrope.core import Trace, format_bytes
from tightrope.view import page

pytest.importorskip("playwright.sync_api", reason="the page is not tested: playwright is not installed")
pytestmark = pytest.mark.skipif(
    not browser_path(), reason="the page is not tested: no chromium here; `make test-page` installs one"
)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_of(1000)


@pytest.fixture(scope="module")
def shown(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    file = tmp_path_factory.mktemp("lines") / "run.html"
    file.write_text(page(trace))
    with opened(file) as found:
        yield found


def by_line(trace: Trace) -> dict[str, int]:
    """Bytes alive at the peak by the line that made them, most first."""
    found: dict[str, int] = {}
    for buffer in trace.buffers:
        if buffer.start <= trace.peak_tick < buffer.end:
            line = trace.lines[trace.events[buffer.creator].line]
            found[line] = found.get(line, 0) + buffer.size
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def test_one_click_tells_which_lines_made_the_peak(shown: Opened, trace: Trace) -> None:
    shown.page.click("#ask-peak")
    found = by_line(trace)
    (most, size), *_ = found.items()
    peak = format_bytes(trace.peak)
    assert f"Line: {most} made most of the peak, {format_bytes(size)} of {peak}" in shown.text("#tab-peak")
    table = shown.page.locator("#tab-peak table").first
    assert table.locator("th").all_inner_texts()[:3] == ["your line", "at the peak (MiB)", "share (%)"]
    rows = [row.locator("td").all_inner_texts()[:2] for row in table.locator("tbody tr").all()]
    assert rows == [[line, f"{size / 2**20:.2f}"] for line, size in found.items()]


def test_lines_come_before_ops_in_lists_and_at_the_side(shown: Opened, trace: Trace) -> None:
    shown.page.click("#ask-peak")
    first = shown.page.locator("#tab-peak table").nth(1).locator("tbody tr").first
    line, op = first.locator("td").all_inner_texts()[:2]
    assert line in trace.lines
    assert op.startswith("aten.")
    first.locator("button").click()
    assert shown.text("#details-title") == line
    assert shown.text("#details .under").startswith(op)
    shown.page.click(f"#details button:text-is('{line}')")
    assert shown.text("#details .kicker") == "line of the source"
    assert format_bytes(by_line(trace)[line]) in shown.text("#details")


def test_a_line_says_where_it_was_called_from(shown: Opened, trace: Trace) -> None:
    event = next(k for k, one in enumerate(trace.events) if one.callers == 0)
    shown.page.evaluate(f"select('event', {event})")
    assert "Called from\nnet.py:32, from net.py:33" in shown.text("#details")
    event = next(k for k, one in enumerate(trace.events) if one.callers < 0)
    shown.page.evaluate(f"select('event', {event})")
    assert "Called from" not in shown.text("#details")


def test_a_search_finds_a_line(shown: Opened, trace: Trace) -> None:
    shown.page.fill("#search", "net.py:32")
    ops = sum(event.line == 1 for event in trace.events)
    assert f"{ops} ops" in shown.text("#hits-note")
    shown.page.fill("#search", "")
