"""How large the page is, how soon it answers, and how fast it draws.

CPU time of the page's own process is counted (all threads until ready, the main thread per redraw), so
that other work on the machine does not count; the wall-clock figures stand beside it.
"""

import json
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from time import process_time

from rich.console import Console

from tests.view.browser import Opened, browser_path, opened
from tests.view.synthetic import trace_of
from tightrope.view import page

SIZES = ((200_000, False), (200_000, True), (1_000_000, False), (1_000_000, True))
LIMITS = {200_000: 33.0, 1_000_000: 50.0}
REDRAW = """k => {
  const width = model.end / 1.25 ** (k % 30);
  view.low = (model.end - width) * ((k * 7) % 10) / 10;
  view.high = view.low + width;
  const before = performance.now();
  drawNow(true);
  return performance.now() - before;
}"""


def renderer() -> Path:
    """Find the process that draws the page: the renderer that used most CPU time."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"--type=renderer" in line:
                found.append((cpu(folder), folder))
    return max(found)[1]


def cpu(process: Path, *, main_only: bool = False) -> float:
    """Milliseconds of CPU time of a process' threads, or of its main thread."""
    threads = [process / "task" / process.name] if main_only else list((process / "task").iterdir())
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6


def redraws(page_: Opened, process: Path, *, count: int = 90) -> tuple[list[float], list[float]]:
    """Zoom about and draw; milliseconds of CPU time and of wall-clock time, sorted."""
    spent, passed = [], []
    for k in range(count):
        before = cpu(process, main_only=True)
        passed.append(page_.eval(REDRAW, k))
        spent.append(cpu(process, main_only=True) - before)
    return sorted(spent), sorted(passed)


def measure(num_events: int, folder: Path, *, buffers: bool) -> dict[str, float]:
    """Write one page, open it, zoom about."""
    trace = trace_of(num_events, buffers=buffers)
    before = process_time()
    text = page(trace)
    packing = process_time() - before
    file = folder / "page.html"
    file.write_text(text)
    with opened(file) as found:
        process = renderer()
        ready = cpu(process)
        spent, passed = redraws(found, process)
        p95 = int(0.95 * len(spent))
        return {
            "events": num_events,
            "buffers": len(trace.buffers),
            "bytes": len(text),
            "bytes_per_event": len(text) / num_events,
            "bytes_per_event_or_buffer": len(text) / (num_events + len(trace.buffers)),
            "pack_cpu_s": packing,
            "ready_cpu_s": ready / 1e3,
            "ready_wall_s": float(found.eval("document.documentElement.dataset.ready")) / 1e3,
            "redraw_p50_cpu_ms": spent[len(spent) // 2],
            "redraw_p95_cpu_ms": spent[p95],
            "redraw_p95_wall_ms": passed[p95],
            "limit_ms": LIMITS[num_events],
        }


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def run(arguments: list[str], console: Console) -> int:
    """Print a table; with ``--json FILE`` write the figures, too."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if not browser_path():
        raise SystemExit("no browser here: install Debian's chromium, or set TIGHTROPE_BROWSER")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for num_events, buffers in SIZES:
            rows.append(measure(num_events, Path(folder), buffers=buffers))
            if len(rows) == 1:
                console.print("  ".join(rows[0]), soft_wrap=True)
            cells = [_cell(value).rjust(len(name)) for name, value in rows[-1].items()]
            console.print("  ".join(cells), soft_wrap=True, highlight=False)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    return 0
