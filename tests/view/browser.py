"""Open a page in a real browser: from disk, offline, every request and message noted."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-headless-shell", "google-chrome", "chrome")


def browser_path() -> str:
    """Find a browser: ``TIGHTROPE_BROWSER``, or the first known name on the path; empty without one."""
    named = os.environ.get("TIGHTROPE_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), "")


@dataclass
class Opened:
    """A page, what it asked for and what it said."""

    page: Any
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def eval(self, script: str, *arguments: Any) -> Any:
        return self.page.evaluate(script, *arguments)


@contextmanager
def opened(file: Path, *, scheme: str = "light", width: int = 1440, height: int = 1000) -> Iterator[Opened]:
    """Open a file in a headless browser without a network, and wait until it says that it is ready."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, offline=True, color_scheme=scheme)  # type: ignore[arg-type]
        found = Opened(context.new_page())
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.on("console", lambda message: found.messages.append(f"{message.type}: {message.text}"))
        found.page.on("pageerror", lambda error: found.messages.append(f"error: {error}"))
        found.page.goto(file.as_uri())
        found.page.wait_for_selector("html[data-ready]", timeout=120_000)
        try:
            yield found
        finally:
            browser.close()
