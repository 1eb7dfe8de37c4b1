// The questions that people ask of a training step, one tab each, answered in one sentence and one table.

const HEAVY = /(^|[._:])(_?(add|b|badd)?b?mm|linear|matmul|einsum|(thnn_|mkldnn_|cudnn_|slow_)?conv\w*|\w*attention\w*|lstm|gru|\w*gemm\w*)/i;

function answer(text) {
  return make("p", { class: "answer" }, text);
}

/** A plain table. A head is text, or [text, "time" | "bytes" | "share" | "count"]: numbers then, all of a kind in one unit. */
function grid(caption, heads, rows) {
  const largest = new Map();
  heads.forEach(([, kind], k) => rows.forEach((cells) => largest.set(kind, Math.max(largest.get(kind) ?? 0, Math.abs(cells[k]) || 0))));
  const units = heads.map((head) => (Array.isArray(head) ? columnUnit(head[1], largest.get(head[1]) ?? 0) : null));
  const name = (head, k) => (units[k] ? head[0] + (units[k][0] && ` (${units[k][0]})`) : head);
  const head = make("tr", {}, ...heads.map((text, k) => make("th", { scope: "col", class: units[k] ? `figure ${text[1]}` : undefined }, name(text, k))));
  const cell = (value, k) => (units[k] ? make("td", { class: `figure ${heads[k][1]}` }, Number.isFinite(value) ? units[k][1](value) : "") : make("td", {}, value));
  const body = rows.map((cells) => make("tr", {}, ...cells.map(cell)));
  return make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body));
}

function bar(part, whole, colour) {
  const inner = make("i");
  inner.style.width = `${whole ? (100 * part) / whole : 0}%`;
  inner.style.background = colour;
  return make("span", { class: "bar", "aria-hidden": "true" }, inner);
}

const byValue = (values) => [...values.keys()].sort((a, b) => values[b] - values[a]);

/** Which stage, which layer, compute or memory? */
function answerTime(root) {
  const total = model.ownTotal;
  const stages = model.phaseTimes;
  const order = byValue(stages).filter((k) => stages[k]);
  if (!order.length) return root.replaceChildren(answer("This trace has no events with times."));
  const stageRows = order.map((k) => [
    spaced(model.phases[k]),
    stages[k],
    ...forecastCell(model.phaseForecast[k]),
    shareOf(stages[k], total),
    bar(stages[k], total, colours.phase[k]),
  ]);
  const [most] = order;
  root.replaceChildren(
    answer(`Stage: ${spaced(model.phases[most])} takes most of the step, ${formatTime(stages[most])} (${formatShare(stages[most], total)} of the operator time).`),
    answerBound(total),
    layerSentence(),
    timeNote(total),
    make("div", { class: "columns" }, grid("Stages", ["stage", ["time", "time"], ...forecastHead(), ["share", "share"], ""], stageRows), layerTable()),
  );
}

/** The column of forecast times, where a forecast knows every op. */
const forecastHead = () => (model.forecastTotal ? [["forecast", "time"]] : []);
const forecastCell = (ns) => (model.forecastTotal ? [ns] : []);

/** What the plan said the ops of an observed step would take. */
function forecastNote(total) {
  const said = model.forecastTotal || (model.header.source === "observed" ? model.figures.ns : 0);
  const against = model.unit === "ns" && model.figures.budget ? model.againstForecast(total, said) : "";
  return against && ` Forecast operator time ${against}.`;
}

function timeNote(total) {
  const text = `Step time ${formatTime(model.stepTime)}: from the start of the first op to the end of the last one. Operator time ${formatTime(total)}: the sum of what every op takes itself; all shares are parts of it. Recomputing and paging are stages of their own.`;
  return make("p", { class: "note", id: "times" }, model.unit === "ns" ? text + forecastNote(total) : "");
}

function answerBound(total) {
  const heavy = model.strings.map((name) => HEAVY.test(name));
  let compute = 0;
  for (let i = 0; i < model.numEvents; i++) if (heavy[model.eventName[i]]) compute += model.own[i];
  const verdict = compute >= total / 2 ? "Compute" : "Memory";
  return answer(
    `${verdict}: ${formatShare(compute, total)} of the time is in matrix products, convolutions and attention, which wait for ` +
      `arithmetic; ${formatShare(total - compute, total)} is in element-wise ops, norms and copies, which wait for memory.`,
  );
}

function layers() {
  return byValue(model.moduleOwn).filter((m) => model.moduleOwn[m]).slice(0, 15);
}

function layerSentence() {
  const [m] = layers();
  const time = model.moduleOwn[m];
  return answer(`Layer: ${model.path(m)} takes most, ${formatTime(time)} (${formatShare(time, model.ownTotal)}).`);
}

function layerTable() {
  const rows = layers().map((m) => [
    link(model.path(m), "module", m),
    model.moduleOwn[m],
    ...forecastCell(model.moduleForecast[m]),
    shareOf(model.moduleOwn[m], model.ownTotal),
    model.moduleOps[m],
  ]);
  return grid("Layers by their own time", ["module", ["time", "time"], ...forecastHead(), ["share", "share"], ["ops", "count"]], rows);
}

/** Buffers alive at the peak that are not needed there and can be made again, cheapest byte first. */
function droppable() {
  const { peakTick } = model;
  if (peakTick < 0) return [];
  const event = model.eventAtTick(peakTick);
  const at = model.ticks[peakTick];
  const able = (b) => {
    if (model.reason[b] >= 0) return model.decision[b] === 1 && model.columns.reason_free[model.reason[b]];
    const readers = model.readers(b);
    return model.creator[b] >= 0 && model.decision[b] === 0 && readers.length && readers.at(-1) > event && !readers.includes(event) && model.stop[model.creator[b]] <= at;
  };
  return model.alive(peakTick).filter(able).sort((a, b) => model.price(a) / model.size[a] - model.price(b) / model.size[b]);
}

/** Bytes that the plan takes with all that the caller holds, or the most that is alive. */
function takenBytes() {
  const { arena, outside } = model.figures;
  return model.base + (arena ? arena + outside : model.peak);
}

/** The plans of the curve that take less than now, largest first. */
function smallerPlans() {
  return model.header.curve.filter(([, total]) => total < takenBytes()).reverse();
}

/** How to fit so many percent less, and at what price? */
function answerSave(root) {
  const candidates = droppable();
  const taken = takenBytes();
  const together = candidates.reduce((sum, b) => sum + model.size[b], 0);
  const most = Math.min(taken - model.figures.lower_bound, Math.max(together, ...smallerPlans().map(([, total]) => taken - total)));
  const possible = Math.floor(shareOf(most, taken)) || 0;
  const start = String(Math.max(1, Math.min(20, possible)));
  const field = make("input", { type: "number", id: "save-share", min: "0", max: "100", step: "any", value: start });
  const result = make("div", { "aria-live": "polite" });
  const tell = () => result.replaceChildren(...saving(candidates, Math.min(100, Math.max(0, Number(field.value) || 0))));
  field.addEventListener("input", tell);
  const least = possible ? `at most about ${possible} % is possible` : "no smaller plan is known";
  root.replaceChildren(make("p", { class: "ask" }, make("label", { for: "save-share" }, "Fit"), field, `% less than ${formatBytes(taken)}: ${least}`), result);
  tell();
}

function saving(candidates, share) {
  const wanted = (takenBytes() * share) / 100;
  const rows = [];
  let bytes = 0;
  const times = new Map();
  for (const b of candidates) {
    if (bytes >= wanted) break;
    bytes += model.size[b];
    times.set(model.creator[b], model.price(b));
    rows.push([model.line_of(model.creator[b]), link(model.bufferName(b), "buffer", b), model.bufferModule(b), model.size[b], model.price(b), bytes]);
  }
  const whole = `${formatBytes(wanted)} (${fixed(share, 1)} %)`;
  const time = formatTime([...times.values()].reduce((sum, ns) => sum + ns, 0));
  const text = !rows.length
    ? "Nothing that is alive at the peak is known to be recomputable."
    : bytes >= wanted
    ? `At the peak, ${plural(rows.length, "buffer")} with ${formatBytes(bytes)} could go to save ${whole}; their ops by themselves take ${time}.`
    : `All that could go at the peak is ${formatBytes(bytes)} in ${plural(rows.length, "buffer")}, less than ${whole}; their ops by themselves take ${time}.`;
  const note = "The time of its op is no price of a buffer: what the op reads may have to be made again too, and bytes may lack elsewhere. Only a plan has a price.";
  const heads = ["your line", "made by", "module", ["size", "bytes"], ["its op takes", "time"], ["size so far", "bytes"]];
  return [answer(priceSaving(wanted, share)), answer(text), make("p", { class: "note" }, note), grid("Cheapest bytes first", heads, rows.slice(0, 200))];
}

/** Time that no plan within so many bytes goes below: a bound of any budget as large as that, or larger, holds. */
function leastTime(bytes) {
  const { budget, ns, proved, ns_bound, base_ns, stretches } = model.figures;
  if (stretches) return 0; // the bounds are those of plans op by op
  const known = [[budget, , ns, , , proved, ns_bound], ...model.header.curve].filter(([most]) => most >= bytes);
  return Math.max(base_ns, ...known.map(([, , time, , , sure, bound]) => (sure ? time : bound)));
}

/** What taking so many bytes less costs: a plan that does it, and what is proved of all that do. */
function priceSaving(wanted, share) {
  const { budget, ns: now, lower_bound } = model.figures;
  const less = `${fixed(share, 1)} % less: `;
  if (!budget || !now) return `${less}the price is not known without a plan and its times.`;
  const bytes = Math.floor(takenBytes() - wanted + 1e-6); // a share of bytes is seldom whole, and never exact
  if (bytes < lower_bound) return `${less}not possible. Proved: no plan takes less than ${formatBytes(lower_bound)}.`;
  const least = Math.max(0, leastTime(bytes) - now);
  const found = smallerPlans().filter(([, total]) => total <= bytes).sort((a, b) => a[2] - b[2])[0];
  const proved = least ? `Proved: it costs at least ${formatTime(least)}.` : "Nothing is proved of what it costs at least.";
  if (!found) return `${less}no plan that small is in this file, so what it costs at most is unknown. ${proved}`;
  const [, total, ns] = found;
  const cost = ns > now ? `${formatShare(ns - now, now)} more time (${formatTime(ns - now)})` : "no more time";
  const sure = Math.max(0, ns - now) === least ? "Proved: no plan that small is faster." : proved;
  return `${less}the plan for ${budgetName(found)} takes ${formatBytes(total)} and ${cost} than now. ${sure}`;
}

const SURE = new Map([[true, "yes"], [false, "no"], [null, "unknown"]]);

/** What changed since another trace? Times within the noise come last and do not count. */
function answerChanges(root) {
  const { changes, steps } = model.header;
  if (changes === undefined) return root.replaceChildren(answer("Nothing to compare with: write the page with --against an earlier trace."));
  const write = { B: formatBytes, ns: formatTime, count: formatCount };
  const certain = changes.filter(([, , , , sure]) => sure !== false);
  const noise = changes.filter(([, , , , sure]) => sure === false);
  const rows = [...certain, ...noise].map(([what, before, after, unit, sure]) => [
    model.strings[what],
    write[unit](before),
    write[unit](after),
    `${after > before ? "+" : "-"}${write[unit](Math.abs(after - before))}`,
    unit === "ns" ? SURE.get(sure) : "exact",
  ]);
  const first = certain.length ? rows[0] : undefined;
  const sentences = [first ? `${plural(certain.length, "figure")} changed; first of them ${first[0]}: ${first[1]} before, ${first[2]} now (${first[3]}).` : "Nothing changed."];
  if (noise.length) sentences.push(`${plural(noise.length, "time")} differ within the noise of ${steps[0]} and ${plural(steps[1], "step")}.`);
  if (changes.some(([what, , , unit, sure]) => unit === "ns" && sure === null && model.strings[what] !== "step time")) {
    sentences.push(`From ${steps[0]} and ${plural(steps[1], "recorded step")} it cannot be told whether times changed by more than noise: 4 of each can.`);
  }
  root.replaceChildren(answer(sentences.join(" ")), grid("Before and now: medians over the recorded steps", ["what", "before", "now", "difference", "beyond the noise"], rows));
}
