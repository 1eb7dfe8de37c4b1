// State, keyboard and pointer; the only place where the parts meet.

let model = null;
let levels = null;
let table = null;
let charts = [];
const view = { low: 0, high: 1, cursor: null, brush: null };
const selection = { kind: "instant", id: 0 };
const TABS = { time: answerTime, modules: answerModules, peak: answerPeak, save: answerSave, budgets: answerBudgets, changes: answerChanges };
let waiting = 0;

function redraw(full = true) {
  waiting = Math.max(waiting, full ? 2 : 1);
  if (redraw.asked) return;
  redraw.asked = true;
  requestAnimationFrame(() => {
    redraw.asked = false;
    drawNow(waiting === 2);
    waiting = 0;
  });
}

function drawNow(full) {
  for (const chart of charts) {
    if (full) chart.draw();
    chart.drawOver();
  }
  if (full) drawScale();
}

function drawScale() {
  const marks = $("scale").clientWidth < 360 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  const parts = marks.map((k) => make("span", {}, formatTime(view.low + k * (view.high - view.low))));
  $("scale").replaceChildren(...parts);
  $("fit").disabled = view.low === 0 && view.high === model.end;
}

function zoom(low, high) {
  const least = Math.min(model.end, Math.max(model.end / 1e7, 10));
  const width = Math.min(model.end, Math.max(least, high - low));
  view.low = Math.max(0, Math.min(model.end - width, (low + high - width) / 2));
  view.high = view.low + width;
  redraw();
  keepState();
}

function zoomBy(factor, around = view.cursor ?? (view.low + view.high) / 2) {
  const middle = Math.min(view.high, Math.max(view.low, around));
  zoom(middle - (middle - view.low) * factor, middle + (view.high - middle) * factor);
}

function select(kind, id) {
  Object.assign(selection, { kind, id });
  if (kind === "instant") view.cursor = id;
  if (kind === "buffer") view.cursor = model.left[id];
  if (kind === "event") view.cursor = model.start[id];
  if (view.cursor !== null && (view.cursor < view.low || view.cursor > view.high)) {
    const half = (view.high - view.low) / 2;
    zoom(view.cursor - half, view.cursor + half);
  }
  showDetails();
  sliders();
  redraw(false);
  keepState();
}

function sliders() {
  const set = (id, max, now, text) => {
    const box = $(id);
    box.setAttribute("aria-valuemax", String(Math.max(0, max)));
    box.setAttribute("aria-valuenow", String(now));
    box.setAttribute("aria-valuetext", text);
  };
  const time = view.cursor ?? 0;
  const tick = model.tickAt(time);
  set("memory", Math.round(model.end), Math.round(time), `${formatTime(time)}: ${formatBytes(tick < 0 ? 0 : model.live[tick])} made by the step`);
  const b = selection.kind === "buffer" ? selection.id : 0;
  const some = model.numBuffers > 0;
  set("arena", model.numBuffers - 1, b, some ? `${model.bufferName(b)}, ${formatBytes(model.size[b])}` : "no buffers");
  const i = selection.kind === "event" ? selection.id : 0;
  set("ops", model.numEvents - 1, i, model.numEvents ? `${model.name(i)}, ${formatTime(model.own[i])}` : "no ops");
}

/** Arrow keys on a drawing: time on the curve, one buffer or op after another on the others. */
function walkChart(event, id) {
  const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 20, PageDown: -20 }[event.key];
  const edge = { Home: 0, End: Infinity }[event.key];
  if (step === undefined && edge === undefined) return;
  event.preventDefault();
  if (id === "memory") {
    const by = ((view.high - view.low) / 100) * (step ?? 0);
    const time = edge === undefined ? (view.cursor ?? view.low) + by : Math.min(edge, model.end);
    return select("instant", Math.max(0, Math.min(model.end, time)));
  }
  const [kind, count] = id === "arena" ? ["buffer", model.numBuffers] : ["event", model.numEvents];
  if (!count) return;
  const now = selection.kind === kind ? selection.id + (step ?? 0) : 0;
  select(kind, Math.max(0, Math.min(count - 1, edge ?? now)));
}

function listenChart(chart) {
  const { box } = chart;
  const at = (event) => event.clientX - box.getBoundingClientRect().left;
  const clamp = (time) => Math.max(view.low, Math.min(view.high, time));
  box.addEventListener("keydown", (event) => walkChart(event, box.id));
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.target.closest("button") || at(event) < GUTTER) return;
    box.setPointerCapture(event.pointerId);
    view.brush = [chart.time(at(event)), chart.time(at(event))];
  });
  box.addEventListener("pointermove", (event) => {
    if (!view.brush) return;
    view.brush[1] = clamp(chart.time(at(event)));
    redraw(false);
  });
  box.addEventListener("pointerup", (event) => {
    if (!view.brush) return;
    const [low, high] = view.brush.sort((a, b) => a - b);
    view.brush = null;
    if (chart.x(high) - chart.x(low) > 5) zoom(low, high);
    else pick(chart, at(event), event.clientY - box.getBoundingClientRect().top);
  });
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, chart.time(at(event)));
  }, { passive: false });
  hover(box, (event) => chartWords(chart, at(event), event.clientY - box.getBoundingClientRect().top));
  box.addEventListener("dblclick", () => zoom(0, model.end));
}

function pick(chart, x, y) {
  const { kind, id } = chart.under(x, y);
  select(kind, id);
}

function openTab(name) {
  for (const button of document.querySelectorAll("[role=tab]")) {
    const chosen = button.dataset.tab === name;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    $(`tab-${button.dataset.tab}`).hidden = !chosen;
  }
  if (name === "tables") table.show();
  else TABS[name]($(`tab-${name}`));
  openTab.now = name;
  keepState();
}

function listenTabs() {
  const buttons = [...document.querySelectorAll("[role=tab]")];
  buttons.forEach((button, k) => {
    button.addEventListener("click", () => openTab(button.dataset.tab));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = buttons[(k + step + buttons.length) % buttons.length];
      openTab(next.dataset.tab);
      next.focus();
    });
  });
}

function theme() {
  const dark = document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  readColours();
  redraw();
}

const KEYS = {
  "/": () => $("search").focus(),
  "+": () => zoomBy(0.5),
  "-": () => zoomBy(2),
  0: () => zoom(0, model.end),
  p: () => toPeak(),
  t: () => theme(),
  "?": () => $("help").showModal(),
};

function listenKeys() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
}

function toPeak() {
  if (model.peakTick >= 0) select("instant", model.ticks[model.peakTick]);
}

function legend(id, names, colour, used) {
  const items = names.map((name, k) => [name, k]).filter(([, k]) => used(k));
  const entries = items.map(([name, k]) => {
    const dot = make("i");
    dot.style.background = `var(--${colour}-${name})`;
    return make("li", {}, dot, spaced(name));
  });
  $(id).replaceChildren(...entries);
}

function legends() {
  const present = new Set(model.category);
  for (const [category, bytes] of model.header.held) if (bytes) present.add(category);
  legend("categories", model.categories, "cat", (k) => present.has(k));
  legend("phases", model.phases, "phase", (k) => model.phaseTimes[k] > 0);
}

function headline() {
  const { figures, header } = model;
  $("name").textContent = figures.name || "Training step";
  $("kind").textContent = header.source === "forecast" ? "forecast" : "observed";
  $("sentences").replaceChildren(...header.sentences.map((text) => make("li", {}, text)));
  $("note").textContent = [
    header.unit === "ticks" ? "This trace has no times: allocations and ops are shown in their order." : "",
    header.warning && `Careful: ${header.warning}.`,
    header.doubts && `Modules: ${header.doubts}.`,
  ].filter(Boolean).join(" ");
  $("ghost-note").hidden = !model.ghost;
  $("ops-ghost-note").hidden = !model.forecast?.some((ns) => ns >= 0);
  $("arena-section").hidden = model.arena === 0;
}

function listen() {
  charts.forEach(listenChart);
  listenTabs();
  listenKeys();
  const clicks = {
    "peak-marker": toPeak,
    fit: () => zoom(0, model.end),
    closer: () => zoomBy(0.5),
    wider: () => zoomBy(2),
    theme,
    "help-open": () => $("help").showModal(),
    "help-close": () => $("help").close(),
    back: () => levels.reset(),
  };
  for (const [id, action] of Object.entries(clicks)) $(id).addEventListener("click", action);
  $("grouped").addEventListener("change", (event) => {
    levels.grouped = event.target.checked;
    levels.draw();
  });
  new SearchBox($("search"), $("hits"), $("hits-note"));
  new ResizeObserver(() => {
    redraw();
    levels.draw();
  }).observe($("charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (readColours(), redraw()));
}

async function open() {
  model = new Model(await decode($("data").textContent));
  $("data").remove();
  readColours();
  view.high = model.end;
  charts = [new MemoryChart(), ...(model.arena ? [new ArenaChart()] : []), new OpsChart()];
  levels = new Levels($("levels"), (node) => select(node.kind === "op" ? "event" : node.kind === "module" ? "module" : "node", node.kind === "op" ? node.events[0] : node.kind === "module" ? node.module : node));
  table = new TableView($("tab-tables"));
  headline();
  legends();
  $("main").hidden = false;
  listen();
  drawNow(true);
  levels.draw();
  openTab("time");
  if (model.peakTick >= 0) toPeak();
  else select("instant", 0);
  readState();
  window.addEventListener("hashchange", readState);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

open().catch((error) => {
  const text = `This page cannot be shown: its data is damaged (${error.message}). Write it again.`;
  $("failure").textContent = text;
  $("failure").hidden = false;
  document.documentElement.dataset.ready = "failed";
});
