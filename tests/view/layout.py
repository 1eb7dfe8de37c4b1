"""A step that every question can be asked of, and a script that finds what overlaps."""

import msgspec

from tests.view.synthetic import trace_of
from tightrope.core import BudgetPoint, Trace

WHY = "recomputed: keeping 1.00 MiB through the peak would not fit; making it again costs 40.60 us"

OVERLAPS = """() => {
  const visible = e => e.checkVisibility({ visibilityProperty: true });
  const clipped = e => {
    let { left, top, right, bottom } = e.getBoundingClientRect();
    for (let p = e.parentElement; p && p !== document.body; p = p.parentElement) {
      if (getComputedStyle(p).overflowX === "visible") continue;
      const r = p.getBoundingClientRect();
      [left, top] = [Math.max(left, r.left), Math.max(top, r.top)];
      [right, bottom] = [Math.min(right, r.right), Math.min(bottom, r.bottom)];
    }
    return { left, top, right, bottom };
  };
  const name = e => e.id ? "#" + e.id : e.tagName + " " + e.textContent.trim().slice(0, 30);
  const wanted = "button, input, label:not(.hidden), .chart, canvas.curve, section, aside, h1, h2, th"
    + ", .answer, #sentences li, .legend li";
  const all = [...document.querySelectorAll(wanted)].filter(visible).map(e => [e, clipped(e)]);
  const found = [];
  for (const [k, [a, p]] of all.entries()) {
    const edge = document.documentElement.clientWidth + 1;
    if (p.right - p.left > 2 && p.right > edge) found.push(name(a) + " beyond the edge");
    for (const [b, q] of all.slice(k + 1)) {
      if (a.contains(b) || b.contains(a)) continue;
      if ((a.id === "memory" && b.id === "peak-marker")) continue;
      const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (across > 1 && down > 1) found.push(name(a) + " and " + name(b));
    }
  }
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) found.push(`the page is ${scrollWidth} wide`);
  return found.slice(0, 10);
}"""


def asked() -> Trace:
    """A step with plans for other budgets and one buffer that is recomputed, the largest."""
    trace = trace_of(1000)
    number = max(range(len(trace.buffers)), key=lambda k: trace.buffers[k].size)
    rows, reasons = list(trace.buffers), list(trace.reasons)
    rows[number] = msgspec.structs.replace(rows[number], decision="recomputed")
    reasons[rows[number].reason] = msgspec.structs.replace(
        reasons[rows[number].reason], decision="recomputed", text=WHY
    )
    whole, ns = trace.summary.budget, trace.summary.base_ns
    points = tuple(
        BudgetPoint(
            whole * share // 100, whole * share // 100, ns + (100 - share) * ns // 200, (0,), (), share > 70
        )
        for share in (60, 80, 100)
    )
    summary = msgspec.structs.replace(trace.summary, curve=points, whole=whole, proved=True)
    return msgspec.structs.replace(trace, buffers=tuple(rows), reasons=tuple(reasons), summary=summary)
