// What the pointer stands on, in words beside it. The same words reach the keyboard as values of the drawings.

/** Show lines of text beside the pointer while it is over an element; no lines, no box. */
function hover(element, words) {
  const tip = $("tip");
  const hide = () => (tip.hidden = true);
  element.addEventListener("pointermove", (event) => {
    const lines = event.pointerType === "touch" || view.brush ? [] : words(event);
    if (!lines.length) return hide();
    tip.replaceChildren(...lines.map((text) => make("div", {}, text)));
    tip.hidden = false;
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    const right = event.clientX + 16 + width > document.documentElement.clientWidth;
    const low = event.clientY + 16 + height > document.documentElement.clientHeight;
    tip.style.left = `${Math.max(0, right ? event.clientX - 12 - width : event.clientX + 16)}px`;
    tip.style.top = `${Math.max(0, low ? event.clientY - 12 - height : event.clientY + 16)}px`;
  });
  element.addEventListener("pointerleave", hide);
  element.addEventListener("pointerdown", hide);
}

function eventWords(i) {
  const said = model.againstForecast(model.stop[i] - model.start[i], model.forecast?.[i] ?? -1);
  return [model.line_of(i), model.name(i), model.path(model.eventModule[i]), `${formatTime(model.stop[i] - model.start[i])}, ${spaced(model.phases[model.phase[i]])}`, said && `forecast ${said}`].filter(Boolean);
}

function bufferWords(b) {
  const line = model.line_of(model.creator[b]);
  const decision = model.decisions[model.decision[b]];
  const kind = spaced(model.categories[model.category[b]]);
  return [line, model.bufferName(b), model.bufferModule(b), `${formatBytes(model.size[b])}, ${kind}${decision && decision !== kind ? `, ${decision}` : ""}`].filter(Boolean);
}

function instantWords(time) {
  const tick = model.tickAt(time);
  const live = tick < 0 ? 0 : model.live[tick];
  const event = model.eventAt(time);
  const running = event < 0 ? [] : [model.line_of(event), `${model.name(event)} in ${model.path(model.eventModule[event])}`];
  return [`${formatTime(time)}: ${formatBytes(live)} made by the step`, `${formatBytes(live + model.base)} with what is held`, ...running].filter(Boolean);
}

/** What stands at a point of a drawing over time. */
function chartWords(chart, x, y) {
  if (x < GUTTER) return [];
  const { kind, id } = chart.under(x, y);
  return kind === "buffer" ? bufferWords(id) : kind === "event" ? eventWords(id) : chart instanceof MemoryChart ? instantWords(id) : [];
}
