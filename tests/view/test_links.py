"""Permalinks: the fragment of the address holds the state, and may be written by anybody."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.view.browser import Opened, browser_path, opened
from tests.view.synthetic import trace_of
from tightrope.view import page

pytest.importorskip("playwright.sync_api", reason="the page is not tested: playwright is not installed")
pytestmark = pytest.mark.skipif(
    not browser_path(), reason="the page is not tested: no chromium here; `make test-page` installs one"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("links") / "run.html"
    file.write_text(page(trace_of(1000)))
    return file


@pytest.fixture(scope="module")
def shown(file: Path) -> Iterator[Opened]:
    with opened(file) as found:
        yield found


@pytest.mark.slow
def test_a_link_shows_the_same_tab_row_and_stretch(shown: Opened, file: Path) -> None:
    shown.eval("() => { tree = null; zoom(0, model.end); select('buffer', 7); openTab('modules'); }")
    shown.page.click("#tab-modules button:has-text('blocks.* x24')")
    shown.eval("() => zoom(1000, 900000)")
    shown.page.wait_for_function("() => location.hash.includes('view=1000.900000')")
    other = shown.page.context.new_page()
    other.goto(shown.page.url)
    other.wait_for_selector("html[data-ready]")
    assert other.inner_text("#details .kicker") == "buffer 7"
    assert "blocks.3" in other.inner_text("#tab-modules")
    assert other.evaluate("() => [view.low, view.high]") == [1000, 900_000]
    other.evaluate("() => { location.hash = '#tab=peak&at=module.3'; }")
    other.wait_for_function("() => !document.getElementById('tab-peak').hidden")
    assert other.inner_text("#details .kicker") == "module"
    other.close()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "fragment",
    [
        "tab=constructor&at=constructor.1",
        "tab=<img src=x onerror=alert(1)>&at=buffer.99999999",
        "at=buffer.-1&view=9.1",
        "at=buffer.1e3&view=NaN.5&open=m1.x2.f99999999999",
        "open=m999999999.f7&tab=modules&at=line.77",
        "%E0%A4%A&&&=",
    ],
)
def test_a_damaged_link_opens_the_page_all_the_same(file: Path, shown: Opened, fragment: str) -> None:
    other = shown.page.context.new_page()
    errors: list[str] = []
    other.on("pageerror", lambda error: errors.append(str(error)))
    other.goto(f"{file.as_uri()}#{fragment}")
    other.wait_for_selector("html[data-ready]")
    assert other.get_attribute("html", "data-ready") != "failed", errors
    assert errors == []
    assert other.inner_text("#details .kicker") != ""
    other.close()
