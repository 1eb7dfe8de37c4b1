"""Nothing overlaps at the widths between a phone and a large screen."""

from collections.abc import Iterator

import pytest

from tests.view.browser import Opened, browser_path, opened
from tests.view.layout import OVERLAPS, asked
from tightrope.view import page

pytest.importorskip("playwright.sync_api", reason="the page is not tested: playwright is not installed")
pytestmark = pytest.mark.skipif(
    not browser_path(), reason="the page is not tested: no chromium here; `make test-page` installs one"
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    file = tmp_path_factory.mktemp("resize") / "run.html"
    file.write_text(page(asked()))
    with opened(file) as found:
        yield found


@pytest.mark.few(2)
@pytest.mark.parametrize("width", [320, 500, 601, 768, 1000, 1001, 1200, 1201, 1920, 2560])
def test_nothing_overlaps_at_widths_between(shown: Opened, width: int) -> None:
    shown.page.set_viewport_size({"width": width, "height": 700})
    for tab in ("time", "modules", "peak", "budgets"):
        shown.eval("tab => { openTab(tab); select('line', 0); drawNow(true); }", tab)
        for share in (0, 0.5, 1):
            shown.eval("share => scrollTo(0, share * document.documentElement.scrollHeight)", share)
            assert shown.eval(OVERLAPS) == [], f"{tab} at {width}, {share}"
