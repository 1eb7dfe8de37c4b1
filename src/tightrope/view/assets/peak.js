// What is alive at the peak, and which of the user's lines made it.

/** Bytes alive at the peak by line of the user's source, largest first; -1 stands for no known line. */
function peakLines() {
  const found = new Map();
  for (const b of model.peakTick < 0 ? [] : model.alive(model.peakTick)) {
    const event = model.creator[b];
    const line = event < 0 ? -1 : model.line[event];
    if (!found.has(line)) found.set(line, { line, bytes: 0, buffers: [], phases: new Map() });
    const one = found.get(line);
    one.bytes += model.size[b];
    one.buffers.push(b);
    const phase = event < 0 ? -1 : model.phase[event];
    one.phases.set(phase, (one.phases.get(phase) ?? 0) + model.size[b]);
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes || a.line - b.line);
}

/** The modules that made buffers: "blocks.0.mlp.1 and 5 more". */
function makers(buffers) {
  const paths = [...new Set(buffers.filter((b) => model.creator[b] >= 0).map((b) => model.bufferModule(b)))];
  return paths.length < 2 ? paths.join("") : `${paths[0]} and ${formatCount(paths.length - 1)} more`;
}

function answerPeak(root) {
  if (model.peakTick < 0) return root.replaceChildren(answer("The step allocates nothing."));
  const alive = model.alive(model.peakTick);
  const lines = peakLines();
  root.replaceChildren(
    ...lineSentence(lines),
    answer(peakSentence(alive)),
    ...(lines.some(({ line }) => line >= 0) ? [lineTable(lines)] : []),
    peakTable(alive.slice(0, 25)),
  );
}

function lineSentence(lines) {
  const [most] = lines.filter(({ line }) => line >= 0);
  if (!most) return [answer("This trace names no source lines.")];
  const text = `Line: ${model.lineText(most.line)} made most of the peak, ${formatBytes(most.bytes)} of ${formatBytes(model.peak)} (${formatShare(most.bytes, model.peak)}).`;
  return [answer(text)];
}

function peakSentence(alive) {
  const event = model.eventAtTick(model.peakTick);
  const line = model.line_of(event);
  const where = event < 0 ? "" : `${model.name(event)} runs in ${model.path(model.eventModule[event])}${line && ` (${line})`}`;
  const waste = model.figures.arena > model.peak ? ` The arena has ${formatBytes(model.figures.arena)}: ${formatShare(model.figures.arena - model.peak, model.peak)} more than is alive.` : "";
  return `At the peak ${plural(alive.length, "buffer")} with ${formatBytes(model.peak)} are alive, at ${formatTime(model.ticks[model.peakTick])}${where && `, while ${where}`}.${waste}`;
}

function lineTable(lines) {
  const shown = lines.slice(0, 25);
  const phases = [...model.phases.keys()].filter((k) => lines.some((one) => one.phases.has(k)));
  const rows = shown.map(({ line, bytes, buffers, phases: parts }) => [
    line < 0 ? "no line known" : link(model.lineText(line), "line", line),
    bytes,
    shareOf(bytes, model.peak),
    ...phases.map((k) => parts.get(k) ?? 0),
    buffers.length,
    makers(buffers),
  ]);
  const heads = ["your line", ["at the peak", "bytes"], ["share", "share"], ...phases.map((k) => [`made in ${spaced(model.phases[k])}`, "bytes"]), ["buffers", "count"], "module"];
  return grid("Your lines by the bytes that they made and that are alive at the peak", heads, rows);
}

function peakTable(buffers) {
  const lined = buffers.some((b) => model.line_of(model.creator[b]));
  const rows = buffers.map((b) => [
    ...(lined ? [link(model.line_of(model.creator[b]) || model.bufferName(b), "buffer", b)] : []),
    lined ? model.bufferName(b) : link(model.bufferName(b), "buffer", b),
    model.bufferModule(b),
    model.size[b],
    shareOf(model.size[b], model.peak),
    spaced(model.categories[model.category[b]]),
    model.decisions[model.decision[b]] || "",
  ]);
  const heads = [...(lined ? ["your line"] : []), "made by", "module", ["size", "bytes"], ["share", "share"], "category", "decision"];
  return grid(`The ${rows.length} largest buffers at the peak`, heads, rows);
}

/** The side panel of a line: its time by phase, and what it made that is alive at the peak. */
function aboutLine(line) {
  const times = new Float64Array(model.phases.length);
  const modules = new Set();
  let [first, last] = [Infinity, 0];
  for (let i = 0; i < model.numEvents; i++) {
    if (model.line[i] !== line) continue;
    times[model.phase[i]] += model.own[i];
    modules.add(model.eventModule[i]);
    first = Math.min(first, model.start[i]);
    last = Math.max(last, model.stop[i]);
  }
  const mine = peakLines().find((one) => one.line === line) ?? { bytes: 0, buffers: [] };
  const total = times.reduce((sum, time) => sum + time, 0);
  const entries = [
    entry("At the peak", make("strong", {}, formatBytes(mine.bytes)), ` ${formatShare(mine.bytes, model.peak)} of it, ${plural(mine.buffers.length, "buffer")}`),
    entry("Largest there", mine.buffers.length ? chips(mine.buffers.map((b) => link(`${formatBytes(model.size[b])} ${model.bufferModule(b)}`, "buffer", b))) : "nothing"),
    entry("Time", make("strong", {}, formatTime(total)), ` ${formatShare(total, model.ownTotal)} of the operator time`),
    ...[...times].flatMap((time, k) => (time ? [entry(spaced(model.phases[k]), formatTime(time))] : [])),
    entry("Modules", chips([...modules].map((m) => link(model.path(m), "module", m)))),
  ];
  return [model.lineText(line), "line of the source", entries, last > first ? [zoomButton(first, last)] : []];
}
