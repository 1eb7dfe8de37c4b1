"""The page in a real browser; skipped, saying so, where there is none."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.view.browser import Opened, browser_path, opened
from tests.view.synthetic import millis, modules_of, trace_of
from tightrope.core import Event, Trace, format_bytes, format_time
from tightrope.core.trace import Doubt, EventPhase, Module, Summary
from tightrope.view import page, sentences

pytest.importorskip("playwright.sync_api", reason="the page is not tested: playwright is not installed")
pytestmark = pytest.mark.skipif(
    not browser_path(), reason="the page is not tested: no chromium here; `make test-page` installs one"
)
GUTTER = 68


def earlier(trace: Trace) -> Trace:
    """The same step when it was slower, had more buffers and kept no plans for other budgets."""
    last = trace.events[-1]
    slower = (*trace.events[:-1], msgspec.structs.replace(last, end=last.end + 1_000_000))
    return msgspec.structs.replace(trace, events=slower)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_of(1000)


@pytest.fixture(scope="module")
def shown(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    file = tmp_path_factory.mktemp("page") / "run.html"
    file.write_text(page(trace, forecast=trace, against=earlier(trace)))
    with opened(file) as found:
        yield found


@pytest.fixture(autouse=True)
def _whole_step(shown: Opened) -> None:
    shown.eval("() => { zoom(0, model.end); openTab('time'); levels.reset(); toPeak(); drawNow(true); }")


def test_one_request_and_no_word_on_the_console(shown: Opened, trace: Trace) -> None:
    assert len(shown.requests) == 1
    assert shown.requests[0].startswith("file:")
    assert shown.messages == []
    for sentence in sentences(trace):
        assert sentence in shown.text("#sentences")


def test_a_selected_buffer_shows_what_python_says(shown: Opened, trace: Trace) -> None:
    for number in (0, 7, len(trace.buffers) - 1):
        buffer = trace.buffers[number]
        shown.eval("number => select('buffer', number)", number)
        assert shown.text("#details-title") == trace.lines[trace.events[buffer.creator].line]
        assert shown.text("#value-bytes") == format_bytes(buffer.size)
        assert shown.text("#value-requested") == f"{buffer.bytes:,} B"
        assert shown.text("#value-address") == f"{buffer.offset:,} B to {buffer.offset + buffer.size:,} B"
        assert trace.reasons[buffer.reason].text in shown.text("#details")


def test_a_click_into_the_map_selects_the_buffer_there(shown: Opened, trace: Trace) -> None:
    number = max(range(len(trace.buffers)), key=lambda k: trace.buffers[k].size)
    buffer = trace.buffers[number]
    box = shown.page.locator("#arena").bounding_box()
    middle = (trace.ticks[buffer.start] + trace.ticks[buffer.end]) / 2
    x = GUTTER + middle / trace.ns * (box["width"] - GUTTER)
    top = 1.02 * trace.summary.arena
    y = box["height"] * (1 - (buffer.offset + buffer.size / 2) / top)
    shown.page.mouse.click(box["x"] + x, box["y"] + y)
    assert shown.text("#details .kicker") == f"buffer {number}"


def test_the_peak_marker_stands_at_its_pixel(shown: Opened, trace: Trace) -> None:
    chart = shown.page.locator("#memory").bounding_box()
    marker = shown.page.locator("#peak-marker").bounding_box()
    right = "leftwards" in (shown.page.get_attribute("#peak-marker", "class") or "")
    x = chart["x"] + GUTTER + trace.ticks[trace.peak_tick] / trace.ns * (chart["width"] - GUTTER)
    total = trace.summary.persistent + trace.peak
    top = 1.1 * max(total, trace.summary.persistent + trace.summary.arena, trace.summary.budget)
    assert abs(marker["x"] + (marker["width"] if right else 0) - x) <= 2
    y = chart["y"] + chart["height"] * (1 - total / top)
    assert abs(marker["y"] + marker["height"] - y) <= 1.5
    assert shown.text("#peak-marker") == f"peak {format_bytes(trace.peak)}"
    probe = """([x, y, dy]) => { const r = charts[0].ratio;
      return [...charts[0].canvas.getContext('2d').getImageData(x * r, (y + dy) * r, 1, 1).data]; }"""
    at = (x - chart["x"] + 1, y - chart["y"])
    assert shown.eval(probe, [*at, 4]) != shown.eval(probe, [*at, -4])


def test_the_curve_of_the_page_is_the_curve_of_python(shown: Opened, trace: Trace) -> None:
    assert shown.eval("() => [...model.live]") == trace.profile()
    assert shown.eval("() => [...model.own]") == trace.self_times()
    script = "k => [...model.byCategory(k, charts[0].now)].reduce((a, b) => a + b)"
    for tick in (0, 63, 64, 200, trace.num_events - 1):
        assert shown.eval(script, tick) == trace.profile()[tick]


def test_children_of_a_box_add_up_to_it_at_every_level(shown: Opened) -> None:
    script = """() => { const wrong = []; let count = 0;
      const walk = node => { const inner = levels.children(node); if (!inner.length) return;
        count += 1; const sum = inner.reduce((s, n) => s + levels.time(n), 0);
        if (sum !== levels.time(node)) wrong.push([node.label, sum, levels.time(node)]);
        inner.forEach(walk); };
      walk(levels.open[0]); return [wrong, count]; }"""
    wrong, count = shown.eval(script)
    assert wrong == []
    assert count > 50


QUESTIONS: list[tuple[str, list[str], str, str]] = [
    ("which stage", ["#ask-time"], "#tab-time", r"Stage: (forward|backward) takes most of the step"),
    ("which layer", ["#ask-time"], "#tab-time", r"Layer: blocks\.\d+\.(up|act|down) takes most"),
    ("compute or memory", ["#ask-time"], "#tab-time", r"(Compute|Memory): \d+\.\d % of the time"),
    ("alive at the peak", ["#ask-peak"], "#tab-peak", r"At the peak \d+ buffers with"),
    ("fit 20 % less", ["#ask-save"], "#tab-save", r"\d+ buffers with .* could go to save .* \(20\.0 %\)"),
    ("what changed", ["#ask-changes"], "#tab-changes", r"first of them step time: .* before, .* now \(-"),
]


@pytest.mark.parametrize(("question", "clicks", "panel", "pattern"), QUESTIONS, ids=[q[0] for q in QUESTIONS])
def test_six_questions_are_answered_in_three_clicks(
    shown: Opened, question: str, clicks: list[str], panel: str, pattern: str
) -> None:
    shown.eval("() => openTab('tables')")
    assert len(clicks) <= 3
    for selector in clicks:
        shown.page.click(selector)
    assert re.search(pattern, shown.text(panel)), shown.text(panel)[:500]


def test_the_answers_are_those_of_python(shown: Opened, trace: Trace) -> None:
    own = trace.self_times()
    spent: dict[str, int] = {}
    for event, time in zip(trace.events, own, strict=True):
        path = trace.modules[event.module].path
        spent[path] = spent.get(path, 0) + time
    assert f"Layer: {max(spent, key=lambda path: spent[path])} takes most" in shown.text("#tab-time")
    alive = [b for b in trace.buffers if b.start <= trace.peak_tick < b.end]
    shown.page.click("#ask-peak")
    assert f"{len(alive)} buffers with {format_bytes(trace.peak)}" in shown.text("#tab-peak")


def test_the_slider_tells_what_another_budget_changes(shown: Opened, trace: Trace) -> None:
    shown.page.click("#ask-budgets")
    shown.page.focus("#budget")
    shown.page.keyboard.press("Home")
    smaller = trace.summary.curve[0]
    text = shown.text("#tab-budgets")
    assert f"With a budget of {format_bytes(smaller.budget)}" in text
    assert "2 storages would be treated differently" in text


def test_the_keyboard_reaches_everything(shown: Opened) -> None:
    shown.page.focus("#search")
    wanted = set(
        shown.eval("""() => [...document.querySelectorAll('button, input, [tabindex="0"]')]
      .filter(e => e.tabIndex >= 0 && !e.disabled && e.offsetParent !== null)
      .map((e, k) => e.dataset.walk = String(k))""")
    )
    reached = {shown.eval("() => document.activeElement.dataset.walk")}
    for _ in range(len(wanted) + 5):
        shown.page.keyboard.press("Tab")
        reached.add(shown.eval("() => document.activeElement.dataset.walk"))
    assert wanted <= reached
    shown.page.focus("#arena")
    shown.page.keyboard.press("Home")
    shown.page.keyboard.press("ArrowRight")
    assert shown.text("#details .kicker") == "buffer 1"
    assert "aten." in shown.page.get_attribute("#arena", "aria-valuetext")
    shown.page.focus("#ops")
    shown.page.keyboard.press("End")
    assert shown.text("#details .kicker") == "op 999"


def test_a_search_finds_a_module_and_its_rows(shown: Opened) -> None:
    shown.page.fill("#search", "blocks.3.up")
    assert "blocks.3.up" in shown.text("#tab-tables tbody tr:first-child")
    shown.page.click("#tab-tables button:text-is('modules')")
    assert "1 module found" in shown.text("#tab-tables caption")
    shown.page.fill("#search", "")


def test_hits_are_listed_while_typing_and_a_key_goes_to_them(shown: Opened, trace: Trace) -> None:
    shown.page.focus("#search")
    assert shown.page.get_attribute("#search", "aria-expanded") == "false"
    shown.page.keyboard.type("blocks.3.")
    assert shown.page.get_attribute("#search", "aria-expanded") == "true"
    options = shown.page.locator("#hits [role=option]")
    assert options.count() == 12
    inside = [k for k, module in enumerate(trace.modules) if module.path.startswith("blocks.3.")]
    ops = [event for event in trace.events if event.module in inside]
    made = [buffer for buffer in trace.buffers if trace.events[buffer.creator] in ops]
    note = f"{len(inside)} modules, {len(ops)} ops, {len(made)} buffers found"
    assert shown.text("#hits-note").startswith(note)
    shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("ArrowDown")
    marked = shown.page.locator("#hits [aria-selected=true]")
    assert marked.count() == 1
    assert shown.page.get_attribute("#search", "aria-activedescendant") == marked.get_attribute("id")
    name = str(marked.locator("b").inner_text())
    shown.page.keyboard.press("Enter")
    assert shown.text("#details-title") == name
    assert not shown.page.is_visible("#hits")
    shown.page.keyboard.press("ArrowUp")
    assert shown.page.is_visible("#hits")
    shown.page.keyboard.press("Escape")
    assert not shown.page.is_visible("#hits")
    assert shown.page.input_value("#search") == "blocks.3."
    shown.page.fill("#search", "gelu")
    row = shown.page.locator("#hits li", has_text="buffer").first
    text = str(row.locator("b").inner_text())
    row.click()
    assert text.startswith(shown.text("#details-title"))
    assert shown.text("#details .kicker").startswith("buffer ")
    shown.page.fill("#search", "no such thing")
    assert shown.text("#hits-note") == "nothing found"
    shown.page.fill("#search", "")
    assert not shown.page.is_visible("#found")


def test_stages_are_the_same_in_every_answer(shown: Opened, trace: Trace) -> None:
    spent: dict[str, int] = {}
    for event, own in zip(trace.events, trace.self_times(), strict=True):
        spent[event.phase.value] = spent.get(event.phase.value, 0) + own
    assert "recompute" in spent
    shown.page.click("#ask-time")
    rows = shown.page.locator("#tab-time table").first.locator("tbody tr")
    seen = {tuple(rows.nth(k).locator("td").all_inner_texts()[:2]) for k in range(rows.count())}
    assert shown.page.locator("#tab-time th").all_inner_texts()[:2] == ["stage", "time (ms)"]
    assert seen == {(stage, millis(ns)) for stage, ns in spent.items()}
    times = shown.text("#times")
    assert f"Step time {format_time(trace.ns)}:" in times
    assert f"Operator time {format_time(trace.operator_ns)}:" in times
    shown.page.click("#ask-changes")
    assert format_time(spent["backward"]) in shown.text("#tab-changes")


def test_groups_can_be_opened_again(shown: Opened) -> None:
    shown.page.click("[data-key='0.0']")
    grouped = shown.page.locator(".level:nth-child(2) .box").count()
    shown.page.click("#grouped")
    alone = shown.page.locator(".level:nth-child(2) .box").count()
    shown.page.click("#grouped")
    assert 1 < grouped < alone
    joined = shown.page.locator(".level:nth-child(2) .box.joined").first
    joined.click()
    assert shown.page.locator(".level:nth-child(2) [aria-expanded=true]").count() == 1
    assert shown.page.locator(".level:nth-child(3) .box").count() > 1


def hostile(name: str) -> Trace:
    modules = (Module(""), Module(name, name, 0))
    events = (Event(0, 7, 0, name, 1, EventPhase.FORWARD), Event(7, 9, 1, name, 1, EventPhase.BACKWARD))
    trace = Trace("observed", (), events, modules=modules, lines=(name,))
    return msgspec.structs.replace(trace, summary=msgspec.structs.replace(trace.summary, name=name))


def test_names_with_markup_run_nothing(tmp_path: Path, shown: Opened) -> None:
    name = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>\"'`${1}"
    file = tmp_path / "evil.html"
    file.write_text(page(hostile(name)))
    with_context = shown.page.context.new_page()
    messages: list[str] = []
    with_context.on("console", lambda message: messages.append(message.text))
    with_context.goto(file.as_uri())
    with_context.wait_for_selector("html[data-ready]")
    for tab in ("peak", "save", "budgets", "changes", "tables"):
        with_context.click(f"#ask-{tab}")
    with_context.click("[data-key='0.0']")
    assert with_context.evaluate("() => window.hacked") is None
    assert with_context.locator("img").count() == 0
    assert name in with_context.inner_text("h1")
    assert messages == []
    with_context.close()


@pytest.mark.parametrize("cut", [0, 40, 1500, 3000])
def test_damaged_data_is_told_and_not_shown(cut: int, tmp_path: Path, shown: Opened) -> None:
    text = page(trace_of(400))
    start = text.index('id="data">') + len('id="data">')
    end = text.index("</script>", start)
    file = tmp_path / "cut.html"
    file.write_text(text[: start + cut] + text[end:])
    broken = shown.page.context.new_page()
    broken.goto(file.as_uri())
    broken.wait_for_selector("html[data-ready='failed']")
    assert "its data is damaged" in broken.inner_text("#failure")
    broken.close()


def violations(shown: Opened, axe: str) -> list[dict[str, Any]]:
    """Run axe-core; the page's own policy forbids foreign scripts, so the driver injects it."""
    shown.eval(axe + ";0")
    found = shown.eval("() => axe.run(document, {resultTypes: ['violations']})")
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    return [{"id": v["id"], "nodes": [n["html"][:120] for n in v["nodes"]][:4]} for v in serious]


@pytest.mark.skipif(not os.environ.get("TIGHTROPE_AXE"), reason="axe-core is not here; see `make test-page`")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_accessibility_violation(scheme: str, trace: Trace, tmp_path: Path, shown: Opened) -> None:
    axe = Path(os.environ["TIGHTROPE_AXE"]).read_text()
    shown.page.emulate_media(color_scheme=scheme)
    shown.page.click("[data-key='0.0']")
    wrong = {}
    for tab in ("time", "peak", "save", "budgets", "changes", "tables"):
        shown.page.click(f"#ask-{tab}")
        if found := violations(shown, axe):
            wrong[tab] = found
    shown.page.fill("#search", "gelu")
    shown.page.press("#search", "ArrowDown")
    assert shown.page.locator("#hits [aria-selected=true]").count() == 1
    if found := violations(shown, axe):
        wrong["search"] = found
    shown.page.fill("#search", "")
    shown.page.emulate_media(color_scheme="light")
    assert not wrong, json.dumps(wrong, indent=1)


def test_a_profile_told_by_another_model_says_so(tmp_path: Path, trace: Trace, shown: Opened) -> None:
    doubtful = msgspec.structs.replace(trace, summary=msgspec.structs.replace(trace.summary, match=0.4))
    file = tmp_path / "doubtful.html"
    file.write_text(page(doubtful))
    other = shown.page.context.new_page()
    other.goto(file.as_uri())
    other.wait_for_selector("html[data-ready]")
    assert "match poorly (40 %)" in other.inner_text("#note")
    other.close()
    assert "poorly" not in shown.text("#note")


def test_ops_whose_module_is_in_doubt_say_so(tmp_path: Path, shown: Opened) -> None:
    events = (Event(0, 100, 0, "sure"), Event(100, 130, 0, "guessed", doubt=Doubt.PLACE))
    file = tmp_path / "guessed.html"
    file.write_text(page(Trace("observed", (), events, summary=Summary(match=0.98, place_doubts=1))))
    other = shown.page.context.new_page()
    other.goto(file.as_uri())
    other.wait_for_selector("html[data-ready]")
    assert "Modules: of the events, 1 may belong to a module beside or around" in other.inner_text("#note")
    for number, doubted in ((0, False), (1, True)):
        other.evaluate("number => select('event', number)", number)
        assert ("or one beside or around it" in other.inner_text("#details")) == doubted
    other.close()


def test_nested_events_and_threads_keep_their_self_times(tmp_path: Path, shown: Opened) -> None:
    events = (Event(0, 100, 0, "outer"), Event(10, 30, 1, "in"), Event(20, 60, 2, "other", thread=1))
    trace = Trace("observed", (), (*events, Event(40, 90, 3, "in"), Event(45, 50, 4, "deep")))
    file = tmp_path / "nested.html"
    file.write_text(page(trace))
    nested = shown.page.context.new_page()
    nested.goto(file.as_uri())
    nested.wait_for_selector("html[data-ready]")
    assert nested.evaluate("() => [...model.own]") == trace.self_times()
    assert nested.evaluate("() => [...levels.top]") == [0, 2]
    nested.close()


@pytest.mark.slow
def test_a_million_modules_open(tmp_path: Path, shown: Opened) -> None:
    trace = trace_of(1000)
    file = tmp_path / "modules.html"
    file.write_text(page(msgspec.structs.replace(trace, modules=modules_of(250_000))))
    many = shown.page.context.new_page()
    many.goto(file.as_uri())
    many.wait_for_selector("html[data-ready]", timeout=120_000)
    many.fill("#search", "blocks.249999.up")
    assert "1,000,002" in many.evaluate("() => formatCount(model.numModules)")
    many.click("#tab-tables button:text-is('modules')")
    assert "1 module found" in many.inner_text("#tab-tables caption")
    many.close()
