"""Time against budget on the page: what a share of the bytes costs."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.view.browser import Opened, browser_path, opened
from tests.view.synthetic import trace_of
from tightrope.core import BudgetPoint, Trace, format_bytes, format_time
from tightrope.view import page

pytest.importorskip("playwright.sync_api", reason="the page is not tested: playwright is not installed")
pytestmark = pytest.mark.skipif(
    not browser_path(), reason="the page is not tested: no chromium here; `make test-page` installs one"
)


def curved() -> Trace:
    """A trace with plans at 60, 80 and 100 %, the last one its own."""
    trace = trace_of(400)
    whole, ns = trace.summary.budget, trace.summary.base_ns
    points = tuple(
        BudgetPoint(
            whole * share // 100, whole * share // 100, ns + (100 - share) * ns // 200, again, (), sure
        )
        for share, again, sure in ((60, (0, 1, 2), False), (80, (0,), True), (100, (), True))
    )
    summary = msgspec.structs.replace(trace.summary, curve=points, whole=whole, proved=True)
    return msgspec.structs.replace(trace, summary=summary)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return curved()


@pytest.fixture(scope="module")
def shown(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    file = tmp_path_factory.mktemp("curve") / "run.html"
    file.write_text(page(trace))
    with opened(file) as found:
        yield found


@pytest.mark.slow
def test_one_click_tells_what_80_percent_costs(shown: Opened, trace: Trace) -> None:
    shown.page.click("#ask-budgets")
    point = trace.summary.curve[1]
    extra = format_time(point.ns - trace.summary.base_ns)
    text = shown.text("#tab-budgets")
    assert (
        f"A budget of 80.0 % ({format_bytes(point.budget)}) costs 10.0 % more time than no plan ({extra})"
        in text
    )
    assert "Proved: no plan within this budget is faster." in text
    heads = shown.page.locator("#tab-budgets table").first.locator("th").all_inner_texts()
    assert heads[:4] == ["budget (%)", "budget (MiB)", "taken (MiB)", "step time (ms)"]


def test_other_shares_are_asked_in_the_field_on_the_slider_and_on_the_curve(shown: Opened) -> None:
    shown.page.click("#ask-budgets")
    shown.page.fill("#budget-share", "70")
    assert "A budget of 60.0 %" in shown.text("#tab-budgets")
    assert "Proved" not in shown.text("#tab-budgets .answer >> nth=0")
    shown.page.fill("#budget-share", "50")
    assert re.search(
        r"No plan for 50\.0 % is in this file; the smallest one takes 60\.0 %", shown.text("#tab-budgets")
    )
    shown.page.focus("#budget")
    shown.page.keyboard.press("End")
    assert "A budget of 100.0 %" in shown.text("#tab-budgets")
    box = shown.page.locator("canvas.curve").bounding_box()
    shown.page.click("canvas.curve", position={"x": 84, "y": 60})
    assert box["width"] > 400
    assert "3 storages would be treated differently" in shown.text("#tab-budgets")


def test_fitting_20_percent_less_is_told_by_a_plan_beside_what_could_go(shown: Opened, trace: Trace) -> None:
    shown.page.click("#ask-save")
    point = trace.summary.curve[1]
    taken = format_bytes(point.total)
    text = shown.text("#tab-save")
    assert shown.page.input_value("#save-share") == "20"
    assert (
        f"20.0 % less: the plan for 80.0 % ({format_bytes(point.budget)}) takes {taken} and 10.0 % more"
        in text
    )
    assert "than now. Proved: no plan that small is faster." in text
    assert re.search(r"\d+ buffers with .* could go to save .* \(20\.0 %\); their ops by themselves", text)
    shown.page.fill("#save-share", "45")
    assert "% less: the plan" not in shown.text("#tab-save")


PRICES = {
    "20": "20.0 % less: the plan for 80.0 % ({b80}) takes {b80} and 10.0 % more time ({ns80}) than now. "
    "Proved: no plan that small is faster.",
    "30": "30.0 % less: the plan for 60.0 % ({b60}) takes {b60} and 20.0 % more time ({ns60}) than now. "
    "Proved: it costs at least {ns80}.",
    "40": "takes {b60} and 20.0 % more time ({ns60}) than now. Proved: it costs at least {least}.",
    "45": "45.0 % less: no plan that small is in this file, so what it costs at most is unknown. "
    "Proved: it costs at least {least}.",
    "50": "50.0 % less: not possible. Proved: no plan takes less than {bound}.",
}
"""What the page says by percent to save; of its plans, at 60, 80 and 100 %, the larger two are proved."""


def test_the_price_of_fewer_bytes_is_exact_or_an_interval(tmp_path: Path, shown: Opened) -> None:
    trace = curved()
    small, middle, _ = trace.summary.curve
    now, bound = trace.summary.ns, trace.summary.budget * 11 // 20 - 64
    least = now + (small.ns - now) * 3 // 4
    curve = (msgspec.structs.replace(small, ns_bound=least), *trace.summary.curve[1:])
    summary = msgspec.structs.replace(trace.summary, curve=curve, lower_bound=bound)
    file = tmp_path / "priced.html"
    file.write_text(page(msgspec.structs.replace(trace, summary=summary)))
    other = shown.page.context.new_page()
    other.goto(file.as_uri())
    other.wait_for_selector("html[data-ready]")
    other.click("#ask-save")
    sizes = {"b60": small.budget, "b80": middle.budget, "bound": bound}
    times = {"ns60": small.ns - now, "ns80": middle.ns - now, "least": least - now}
    words = {name: format_bytes(size) for name, size in sizes.items()}
    words |= {name: format_time(ns) for name, ns in times.items()}
    for share, said in PRICES.items():
        other.fill("#save-share", share)
        assert said.format(**words) in other.inner_text("#tab-save"), share
    other.close()


def test_the_amount_starts_at_something_possible(tmp_path: Path, shown: Opened) -> None:
    trace = trace_of(400)
    fixed = tuple(msgspec.structs.replace(one, text="kept: the caller needs it") for one in trace.reasons)
    movable = (*trace.reasons[:2], *fixed[2:])
    few = msgspec.structs.replace(
        trace, reasons=movable, summary=msgspec.structs.replace(trace.summary, curve=())
    )
    file = tmp_path / "few.html"
    file.write_text(page(few))
    other = shown.page.context.new_page()
    other.goto(file.as_uri())
    other.wait_for_selector("html[data-ready]")
    other.click("#ask-save")
    assert 1 <= int(other.input_value("#save-share")) < 20
    assert "could go to save" in other.inner_text("#tab-save") or "All that could go" in other.inner_text(
        "#tab-save"
    )
    other.close()


def test_what_is_proved_comes_first(shown: Opened) -> None:
    assert (
        shown.page.locator("#sentences li").first.inner_text().startswith("Proved: no plan within the budget")
    )


@pytest.mark.parametrize(
    ("chart", "y", "word"),
    [("#memory", 150, "made by the step"), ("#arena", 240, "activation, kept"), ("#ops", 10, "aten.")],
)
def test_every_drawing_says_what_the_pointer_is_on(shown: Opened, chart: str, y: int, word: str) -> None:
    shown.page.mouse.move(1, 1)
    assert not shown.page.is_visible("#tip")
    shown.page.hover(chart, position={"x": 500, "y": y})
    assert word in shown.text("#tip")
    assert "net.py:3" in shown.text("#tip")
    shown.page.hover("h1")
    assert not shown.page.is_visible("#tip")


def test_the_curve_says_what_the_pointer_is_on(shown: Opened) -> None:
    shown.page.click("#ask-budgets")
    shown.page.hover("canvas.curve", position={"x": 90, "y": 60})
    assert "budget 60.0 %" in shown.text("#tip")
    shown.page.hover("h1")
