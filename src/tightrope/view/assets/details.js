// The side: everything about the selected buffer, op, module or instant.

const LISTED = 8;

/** Why the module of an op of somebody else's profile may be another one. */
const DOUBTS = ["", " (or another one like it: told by the order of definition)", " (or one beside or around it)"];

function entry(name, ...value) {
  return [make("dt", {}, name), make("dd", {}, ...value)];
}

function link(text, kind, id) {
  return make("button", { class: "link", onclick: () => goTo(kind, id) }, text);
}

/** Select, and bring the side into sight where it stands below the drawings. */
function goTo(kind, id) {
  select(kind, id);
  if (getComputedStyle($("details")).position !== "sticky") $("details").scrollIntoView({ block: "nearest" });
}

function chips(items, more) {
  const rest = items.length - LISTED;
  const shown = items.slice(0, LISTED);
  return make("span", { class: "chips" }, ...shown, ...(rest > 0 || more ? [`and ${formatCount(rest)} more`] : []));
}

function showDetails() {
  const { kind, id } = selection;
  const shown = { buffer: aboutBuffer, event: aboutEvent, module: aboutModule, node: aboutNode, line: aboutLine, instant: aboutInstant };
  const [title, note, entries, buttons, under = ""] = shown[kind](id);
  $("details").replaceChildren(
    make("p", { class: "kicker" }, note),
    make("h2", { id: "details-title" }, title),
    make("p", { class: "under", hidden: !under }, under),
    make("dl", {}, ...entries.flat()),
    make("div", { class: "row" }, ...buttons),
  );
  $("said").textContent = `${note}: ${title}`;
}

function aboutBuffer(b) {
  const event = model.creator[b];
  const line = model.line_of(event);
  const text = model.reasonText(b);
  const where = model.offset[b] < 0 ? "no planned address" : `${formatExact(model.offset[b])} to ${formatExact(model.offset[b] + model.size[b])}`;
  const born = model.left[b];
  const gone = model.bufferEnd(b);
  const outlives = model.release[b] >= model.ticks.length ? " (outlives the step)" : "";
  const readers = model.readers(b);
  const entries = [
    entry("Bytes", make("strong", { id: "value-bytes" }, formatBytes(model.size[b])), ` ${formatExact(model.size[b])}`),
    entry("Requested", make("span", { id: "value-requested" }, formatExact(model.bytes[b]))),
    entry("Category", spaced(model.categories[model.category[b]])),
    entry("Alive", `${formatTime(born)} to ${formatTime(gone)}${outlives}`),
    entry("At the peak", model.alloc[b] <= model.peakTick && model.peakTick < model.release[b] ? "yes" : "no"),
    entry("Address", make("span", { id: "value-address" }, where)),
    entry("Decision", make("strong", {}, model.decisions[model.decision[b]] || "no plan")),
  ];
  if (text) entries.push(entry("Why", text));
  if (Number.isFinite(model.price(b)) && model.unit === "ns") entries.push(entry("Its op again, alone", formatTime(model.price(b))));
  if (event >= 0) entries.push(entry("Made by", link(model.name(event), "event", event)));
  if (event >= 0) entries.push(entry("Module", link(model.bufferModule(b), "module", model.eventModule[event])));
  entries.push(entry("Read by", readers.length ? chips(readers.map((r) => link(model.name(r), "event", r))) : "nothing known"));
  if (line) entries.unshift(entry("Your line", link(line, "line", model.line[event])), ...calledFrom(event));
  const under = line ? `${model.bufferName(b)} in ${model.bufferModule(b)}` : "";
  return [line || model.bufferName(b), `buffer ${b}`, entries, [zoomButton(born, gone)], under];
}

function aboutEvent(i) {
  const made = [];
  const first = lowerBound(model.left, model.start[i]);
  for (let b = first; b < model.numBuffers && model.left[b] <= model.stop[i] && made.length < 64; b++) {
    if (model.creator[b] === i) made.push(b);
  }
  const entries = [
    entry("Time", make("strong", {}, formatTime(model.stop[i] - model.start[i])), ` of its own ${formatTime(model.own[i])}`),
    entry("Operator time", formatShare(model.own[i], model.ownTotal)),
    entry("Starts at", formatTime(model.start[i])),
    entry("Phase", spaced(model.phases[model.phase[i]])),
    entry("Module", link(model.path(model.eventModule[i]), "module", model.eventModule[i]), DOUBTS[model.doubt[i]]),
    entry("Makes", made.length ? chips(made.map((b) => link(formatBytes(model.size[b]), "buffer", b))) : "no buffer"),
  ];
  const said = model.againstForecast(model.stop[i] - model.start[i], model.forecast?.[i] ?? -1);
  if (said) entries.splice(1, 0, entry("Forecast", make("span", { id: "value-forecast" }, said)));
  const line = model.line_of(i);
  if (line) entries.unshift(entry("Your line", link(line, "line", model.line[i])), ...calledFrom(i));
  const under = line ? `${model.name(i)} in ${model.path(model.eventModule[i])}` : "";
  return [line || model.name(i), `op ${i}`, entries, [zoomButton(model.start[i], model.stop[i])], under];
}

/** The lines from which the line of an op was called, the nearest first; no entry where none are known. */
function calledFrom(event) {
  const lines = model.callerLines(event);
  return lines.length ? [entry("Called from", make("span", { class: "callers" }, lines.join(", from ")))] : [];
}

function inside(module, around) {
  for (let m = module; m >= 0; m = model.moduleParent[m]) if (m === around) return true;
  return false;
}

function aboutModule(m) {
  const times = new Float64Array(model.phases.length);
  let [first, last] = [Infinity, 0];
  for (let i = 0; i < model.numEvents; i++) {
    if (!inside(model.eventModule[i], m)) continue;
    times[model.phase[i]] += model.own[i];
    first = Math.min(first, model.start[i]);
    last = Math.max(last, model.stop[i]);
  }
  const alive = model.peakTick < 0 ? [] : model.alive(model.peakTick);
  const mine = alive.filter((b) => model.creator[b] >= 0 && inside(model.eventModule[model.creator[b]], m));
  const bytes = mine.reduce((sum, b) => sum + model.size[b], 0);
  const kind = model.strings[model.moduleKind[m]];
  const entries = [
    entry("Time", make("strong", {}, formatTime(model.moduleTime[m])), ` ${formatShare(model.moduleTime[m], model.ownTotal)} of the operator time`),
    ...[...times].flatMap((time, k) => (time ? [entry(spaced(model.phases[k]), formatTime(time))] : [])),
    entry("Bytes at the peak", `${formatBytes(bytes)} (${formatExact(bytes)})`),
    entry("Largest there", mine.length ? chips(mine.map((b) => link(formatBytes(model.size[b]), "buffer", b))) : "nothing"),
  ];
  if (kind) entries.unshift(entry("Class", kind));
  if (m > 0) entries.push(entry("Inside", link(model.path(model.moduleParent[m]), "module", model.moduleParent[m])));
  return [model.path(m), "module", entries, last > first ? [zoomButton(first, last)] : []];
}

function aboutNode(node) {
  const time = levels.time(node);
  const [first, last] = levels.bounds(node);
  const count = node.members ? node.members.length : node.events.length;
  const entries = [
    entry("Time", make("strong", {}, formatTime(time)), ` ${formatShare(time, model.ownTotal)} of the operator time`),
    entry("Phase", spaced(model.phases[node.phase])),
    entry(node.members ? "Boxes" : "Ops", formatCount(count)),
    entry("From", `${formatTime(first)} to ${formatTime(last)}`),
  ];
  if (node.kind === "stage") entries.push(...recomputedIn(node));
  return [node.label, node.kind === "group" ? "small boxes, joined" : node.kind, entries, [zoomButton(first, last)]];
}

function recomputedIn(node) {
  const times = new Map();
  for (const i of node.events) times.set(model.phase[i], (times.get(model.phase[i]) ?? 0) + model.own[i]);
  return [...times].filter(([p]) => p !== node.phase).map(([p, time]) => entry(`of that ${spaced(model.phases[p])}`, formatTime(time)));
}

function aboutInstant(time) {
  const tick = model.tickAt(time);
  const alive = tick < 0 ? [] : model.alive(tick);
  const live = tick < 0 ? 0 : model.live[tick];
  const event = model.eventAt(time);
  const name = (b) => [model.line_of(model.creator[b]), model.bufferName(b), model.bufferModule(b)].filter(Boolean).join(" ");
  const list = alive.slice(0, LISTED).map((b) => entry(formatBytes(model.size[b]), link(name(b), "buffer", b)));
  const entries = [
    entry("Made by the step", make("strong", { id: "value-live" }, formatBytes(live)), ` ${formatExact(live)}`),
    entry("With what is held", formatBytes(live + model.base)),
    entry("Running", event < 0 ? "nothing" : link(`${model.line_of(event)} ${model.name(event)}`.trim(), "event", event)),
    entry("Alive", plural(alive.length, "buffer")),
    ...list,
  ];
  return [tick === model.peakTick ? "The peak" : "An instant", formatTime(time), entries, []];
}

function zoomButton(low, high) {
  const pad = (high - low) * 0.05 || 1;
  return make("button", { onclick: () => zoom(low - pad, high + pad) }, "Zoom to it");
}
