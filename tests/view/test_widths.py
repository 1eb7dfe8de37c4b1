"""Questions in at most two actions, at three widths, in both themes; nothing overlaps."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.view.browser import Opened, browser_path, opened
from tests.view.layout import OVERLAPS, WHY, asked
from tightrope.view import page

pytest.importorskip("playwright.sync_api", reason="the page is not tested: playwright is not installed")
pytestmark = pytest.mark.skipif(
    not browser_path(), reason="the page is not tested: no chromium here; `make test-page` installs one"
)
LAYOUTS = [(width, scheme) for width in (1440, 1024, 390) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace = asked()
    last = trace.events[-1]
    slower = (*trace.events[:-1], msgspec.structs.replace(last, end=last.end + 1_000_000))
    file = tmp_path_factory.mktemp("widths") / "run.html"
    file.write_text(page(trace, forecast=trace, against=msgspec.structs.replace(trace, events=slower)))
    return file


@pytest.fixture(scope="module", params=LAYOUTS, ids=[f"{width}-{scheme}" for width, scheme in LAYOUTS])
def shown(file: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    width, scheme = request.param
    with opened(file, scheme=scheme, width=width, height=800) as found:
        yield found


def on_the_map(shown: Opened) -> dict[str, Any]:
    """Where the recomputed buffer stands on the map of addresses."""
    script = """() => { const b = [...model.decision].indexOf(2); const map = charts[1];
      const x = (map.x(model.left[b]) + map.x(model.right[b])) / 2;
      return { x, y: map.y(model.offset[b] + model.size[b] / 2) }; }"""
    return dict(shown.eval(script))


QUESTIONS: list[tuple[str, list[str], str, str]] = [
    (
        "which of my lines made the peak",
        ["#ask-peak"],
        "#tab-peak",
        r"Line: net\.py:3\d made most of the peak, [\d.]+ MiB",
    ),
    (
        "what does 80 % cost",
        ["#ask-budgets"],
        "#tab-budgets",
        r"A budget of 80\.0 % \(.*\) costs 10\.0 % more time",
    ),
    ("why is this tensor recomputed", ["#arena"], "#details", re.escape(WHY)),
    (
        "what does block 3 cost",
        ["#ask-modules", "#tab-modules button:has-text('blocks.* x24')"],
        "#tab-modules",
        r"blocks\.3\s+[\d.]+\s+[\d.]+\s+[\d.]+",
    ),
    ("what changed", ["#ask-changes"], "#tab-changes", r"first of them step time: .* before, .* now \(-"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "actions", "panel", "pattern"), QUESTIONS, ids=[q[0] for q in QUESTIONS]
)
def test_each_question_takes_at_most_two_actions_and_nothing_overlaps(
    shown: Opened, question: str, actions: list[str], panel: str, pattern: str
) -> None:
    shown.eval("() => { tree = null; openTab('tables'); toPeak(); scrollTo(0, 0); }")
    assert len(actions) <= 2
    for selector in actions:
        if selector == "#arena":
            shown.page.click(selector, position=on_the_map(shown))
        else:
            shown.page.click(selector)
    assert shown.page.is_visible(panel)
    assert re.search(pattern, shown.text(panel)), shown.text(panel)[:600]
    for share in (0, 0.3, 0.6, 1):
        shown.eval("share => scrollTo(0, share * document.documentElement.scrollHeight)", share)
        assert shown.eval(OVERLAPS) == [], f"{question} at {share}"
    assert shown.messages == []


@pytest.mark.few(3)
@pytest.mark.parametrize("tab", ["time", "save", "tables"])
def test_nothing_overlaps_on_the_other_tabs(shown: Opened, tab: str) -> None:
    shown.page.click(f"#ask-{tab}")
    shown.page.click("[data-key='0.0']")
    assert shown.eval(OVERLAPS) == []


def test_forward_backward_recompute_stand_side_by_side_without_scrolling(shown: Opened) -> None:
    shown.eval("() => { tree = null; }")
    shown.page.click("#ask-modules")
    shown.page.click("#tab-modules button:has-text('blocks.* x24')")
    heads = shown.page.locator("#tab-modules th")
    names = [text.split(" (")[0] for text in heads.all_inner_texts()]
    edge = shown.page.locator("#tab-modules").bounding_box()
    for name in ("forward", "backward", "recompute", "together"):
        box = heads.nth(names.index(name)).bounding_box()
        assert box["x"] + box["width"] <= edge["x"] + edge["width"] + 1, name
