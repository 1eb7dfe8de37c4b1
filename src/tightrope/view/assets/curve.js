// Time against budget: what 80 % costs, and what another budget would change.

const ASKED_SHARE = 80;

/** What 100 % stands for: the bytes of the step without a plan, else the largest plan known. */
function wholeBytes() {
  return model.figures.whole || Math.max(...model.header.curve.map(([, total]) => total));
}

/** The position of the largest budget that is at most a share of the whole; -1 when none is. */
function pointAt(curve, share) {
  return curve.findLastIndex(([budget]) => budget <= (wholeBytes() * share) / 100 + 1);
}

function answerBudgets(root) {
  const { curve } = model.header;
  if (!curve.length) return root.replaceChildren(answer("No plans for other budgets are in this file: write it from a plan with its graph, or with --also PLAN."));
  const here = curve.findIndex(([budget]) => budget === model.figures.budget);
  const field = make("input", { type: "number", id: "budget-share", min: "1", max: "100", step: "any", value: String(ASKED_SHARE) });
  const slider = make("input", { type: "range", id: "budget", min: "0", max: String(curve.length - 1), "aria-label": "budget" });
  const canvas = make("canvas", { class: "curve", role: "img", "aria-label": "time against budget; the table below has the numbers" });
  const result = make("div", { "aria-live": "polite" });
  const differs = make("div");
  const tell = (k, asked) => {
    slider.value = String(Math.max(0, k));
    slider.setAttribute("aria-valuetext", formatBytes(curve[Math.max(0, k)][0]));
    drawCurve(canvas, curve, k, here);
    const missing = k < 0 ? [answer(`No plan for ${fixed(asked, 1)} % is in this file; the smallest one takes ${budgetName(curve[0])}.`)] : [];
    const point = curve[Math.max(0, k)];
    const rows = here < 0 ? [] : treatedDifferently(point, curve[here]);
    result.replaceChildren(...missing, ...otherBudget(point, here < 0 ? null : curve[here], rows.length));
    differs.replaceChildren(...(rows.length ? [differTable(rows)] : []));
  };
  field.addEventListener("input", () => tell(pointAt(curve, Number(field.value)), Number(field.value)));
  const choose = (k) => {
    field.value = fixed(shareOf(curve[k][0], wholeBytes()), 1);
    tell(k, 0);
  };
  slider.addEventListener("input", () => choose(Number(slider.value)));
  canvas.addEventListener("click", (event) => choose(nearestPoint(canvas, curve, event)));
  hover(canvas, (event) => pointWords(curve[nearestPoint(canvas, curve, event)]));
  const ask = make("p", { class: "ask" }, make("label", { for: "budget-share" }, "A budget of"), field, "% of what the step takes without a plan");
  root.replaceChildren(ask, result, canvas, slider, curveTable(curve), differs);
  tell(pointAt(curve, ASKED_SHARE), ASKED_SHARE);
}

function budgetName([budget]) {
  return `${fixed(shareOf(budget, wholeBytes()), 1)} % (${formatBytes(budget)})`;
}

/** Time of the step without a plan, else of the fastest plan known. */
function baseTime() {
  return model.figures.base_ns || Math.min(...model.header.curve.map(([, , ns]) => ns));
}

function curveTable(curve) {
  const rows = [...curve].reverse().map(([budget, total, ns, again, paged, proved]) => [
    shareOf(budget, wholeBytes()),
    budget,
    total,
    ns,
    ns - baseTime(),
    shareOf(ns - baseTime(), baseTime()),
    again.length,
    paged.length,
    proved ? "yes" : "no",
  ]);
  const heads = [["budget", "share"], ["budget", "bytes"], ["taken", "bytes"], ["step time", "time"], ["more time", "time"], ["more time", "share"], ["recomputed", "count"], ["paged", "count"], "proved fastest"];
  return grid("What every budget costs", heads, rows);
}

function otherBudget(point, shown, count) {
  const [budget, total, ns, , , proved] = point;
  const sure = proved ? " Proved: no plan within this budget is faster." : "";
  const first = answer(`A budget of ${budgetName(point)} ${budgetCost(ns)}.${sure}`);
  if (!shown) return [first];
  const slower = ns - shown[2];
  const price = slower === 0 ? "as fast as" : `${formatTime(Math.abs(slower))} ${slower > 0 ? "slower" : "faster"} than`;
  const text = `With a budget of ${formatBytes(budget)} the step takes ${formatBytes(total)} and ${formatTime(ns)}, ${price} the plan shown; ${plural(count, "storage")} would be treated differently.`;
  return [first, answer(text)];
}

function budgetCost(ns) {
  const extra = ns - baseTime();
  return extra > 0 ? `costs ${formatShare(extra, baseTime())} more time than no plan (${formatTime(extra)})` : "costs no time";
}

function pointWords(point) {
  return [`budget ${budgetName(point)}`, `step ${formatTime(point[2])}`, budgetCost(point[2])];
}

function differTable(rows) {
  return grid("What changes, largest first", ["your line", "made by", "module", ["size", "bytes"], "would be"], rows.slice(0, 50));
}

function treatedDifferently([, , , again, paged], [, , , againHere, pagedHere]) {
  const first = new Map();
  for (let b = model.numBuffers - 1; b >= 0; b--) if (model.storage[b] >= 0) first.set(model.storage[b], b);
  const differ = (now, was, more, less) => {
    const [old, fresh] = [new Set(was), new Set(now)];
    return [...now.filter((s) => !old.has(s)).map((s) => [s, more]), ...was.filter((s) => !fresh.has(s)).map((s) => [s, less])];
  };
  const changed = [...differ(again, againHere, "recomputed", "no longer recomputed"), ...differ(paged, pagedHere, "paged", "no longer paged")];
  return changed
    .filter(([s]) => first.has(s))
    .map(([s, what]) => [first.get(s), what])
    .sort(([a], [b]) => model.size[b] - model.size[a])
    .map(([b, what]) => [model.line_of(model.creator[b]), link(model.bufferName(b), "buffer", b), model.bufferModule(b), model.size[b], what]);
}

/** How a point of the curve becomes a place on its canvas. */
function curvePlaces(canvas, curve) {
  const width = canvas.clientWidth || 600;
  const span = (values) => [Math.min(...values), Math.max(...values)];
  const [low, high] = span(curve.map(([budget]) => budget));
  const [fast, slow] = span(curve.map(([, , ns]) => ns));
  return ([budget, , ns]) => [84 + ((budget - low) / (high - low || 1)) * (width - 114), 118 - ((ns - fast) / (slow - fast || 1)) * 96];
}

function nearestPoint(canvas, curve, event) {
  const x = event.clientX - canvas.getBoundingClientRect().left;
  const at = curvePlaces(canvas, curve);
  return curve.reduce((best, point, k) => (Math.abs(at(point)[0] - x) < Math.abs(at(curve[best])[0] - x) ? k : best), 0);
}

function drawCurve(canvas, curve, chosen, here) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth || 600, 150];
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const at = curvePlaces(canvas, curve);
  context.strokeStyle = colours.accent;
  context.lineWidth = 2;
  context.beginPath();
  curve.forEach((point, k) => {
    const [x, y] = at(point);
    if (k) context.lineTo(x, at(curve[k - 1])[1]);
    context.lineTo(x, y);
  });
  context.stroke();
  curve.forEach((point, k) => {
    context.fillStyle = k === chosen ? colours.budget : k === here ? colours.ink : colours.accent;
    context.beginPath();
    context.arc(...at(point), k === chosen || k === here ? 6 : 3.5, 0, 7);
    context.fill();
  });
  curveLabels(context, curve, width);
}

function curveLabels(context, curve, width) {
  const times = curve.map(([, , ns]) => ns);
  const [fast, slow] = [Math.min(...times), Math.max(...times)];
  context.fillStyle = colours.faint;
  context.font = "11px system-ui, sans-serif";
  context.fillText(formatTime(slow), 4, 26);
  if (slow > fast) context.fillText(formatTime(fast), 4, 122);
  context.fillText(budgetName(curve[0]), 84, 142);
  if (curve.length < 2) return;
  context.textAlign = "right";
  context.fillText(budgetName(curve.at(-1)), width - 24, 142);
}
