"""The module tree in a real browser: sums per module, repeated layers folded."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.view.browser import Opened, browser_path, opened
from tests.view.synthetic import millis, trace_of
from tightrope.core import Trace
from tightrope.core.trace import Module
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
    file = tmp_path_factory.mktemp("tree") / "run.html"
    file.write_text(page(trace))
    with opened(file) as found:
        yield found


def row(shown: Opened, name: str) -> dict[str, str]:
    """The cells of the tree's row of a module, by the text of their heads."""
    heads = shown.page.locator("#tab-modules th").all_inner_texts()
    for line in shown.page.locator("#tab-modules tbody tr").all():
        cells = line.locator("td").all_inner_texts()
        if cells[0].removeprefix("▸").removeprefix("▾").strip() == name:
            return dict(zip(heads, cells, strict=True))
    raise AssertionError(f"no row {name!r} in {shown.text('#tab-modules')[:400]}")


def spent(trace: Trace, path: str) -> dict[str, int]:
    """Time by phase of a module with all that is inside it."""
    found: dict[str, int] = {}
    for event, own in zip(trace.events, trace.self_times(), strict=True):
        name = trace.modules[event.module].path
        if not path or name == path or name.startswith(f"{path}."):
            found[event.phase.value] = found.get(event.phase.value, 0) + own
    return found


def test_what_block_3_costs_takes_two_clicks(shown: Opened, trace: Trace) -> None:
    shown.page.click("#ask-modules")
    shown.page.click("#tab-modules button:has-text('blocks.* x24')")
    cells = row(shown, "blocks.3")
    times = spent(trace, "blocks.3")
    assert set(times) == {"forward", "backward", "recompute"}
    for phase, ns in times.items():
        assert cells[f"{phase} (ms)"] == millis(ns)
    assert cells["together (ms)"] == millis(sum(times.values()))
    alive = [b for b in trace.buffers if b.start <= trace.peak_tick < b.end]
    inside = [b for b in alive if trace.modules[trace.events[b.creator].module].path.startswith("blocks.3.")]
    assert cells["at the peak (MiB)"] == f"{sum(b.size for b in inside) / 2**20:.2f}"


def test_the_fold_is_the_sum_of_its_layers_and_folds_again(shown: Opened, trace: Trace) -> None:
    shown.eval("() => { tree = null; openTab('modules'); }")
    closed = row(shown, "blocks.* x24")
    assert closed["together (ms)"] == millis(trace.operator_ns)
    fold = "#tab-modules button:has-text('blocks.* x24')"
    assert shown.page.get_attribute(fold, "aria-expanded") == "false"
    shown.page.click(fold)
    assert shown.page.get_attribute(fold, "aria-expanded") == "true"
    assert shown.eval("() => document.activeElement.textContent").endswith("blocks.* x24")
    shown.page.keyboard.press("Enter")
    assert shown.page.locator("#tab-modules tbody tr").count() == 2


def test_layers_of_another_shape_are_not_folded_with_the_rest(tmp_path: Path, shown: Opened) -> None:
    trace = trace_of(400, num_blocks=6)
    other = tuple(
        msgspec.structs.replace(m, kind="Other") if m.path == "blocks.2" else m for m in trace.modules
    )
    file = tmp_path / "mixed.html"
    file.write_text(page(msgspec.structs.replace(trace, modules=(*other, Module("head", "Linear", 0)))))
    mixed = shown.page.context.new_page()
    mixed.goto(file.as_uri())
    mixed.wait_for_selector("html[data-ready]")
    mixed.click("#ask-modules")
    mixed.click("#tab-modules button[aria-label='inside blocks']")
    names = [
        text.strip(" ▸▾\n") for text in mixed.locator("#tab-modules tbody td:first-child").all_inner_texts()
    ]
    assert names == ["whole step", "blocks", "0,1,3,4,5 x5", "2", "head"]
    mixed.close()
