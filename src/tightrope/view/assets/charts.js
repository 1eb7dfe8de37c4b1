// Three drawings over one time axis: bytes over time, addresses over time, ops over time.
// Each draws at most one mark per pixel, whatever the size of the trace.

const GUTTER = 68;
const colours = {};

/** Read the palette from the style sheet, so that the themes live in one place. */
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  for (const name of ["ink", "faint", "line", "accent", "budget", "panel"]) colours[name] = value(`--${name}`);
  colours.category = model.categories.map((name) => value(`--cat-${name}`));
  colours.phase = model.phases.map((name) => value(`--phase-${name}`));
}

/** "#rrggbb" as a little-endian RGBA word, lightened (towards 255) or darkened (towards 0). */
function word(hex, shade = 0) {
  const mix = (k) => {
    const channel = parseInt(hex.slice(k, k + 2), 16);
    return Math.round(shade > 0 ? channel + (255 - channel) * shade : channel * (1 + shade));
  };
  return ((255 << 24) | (mix(5) << 16) | (mix(3) << 8) | mix(1)) >>> 0;
}

class Chart {
  constructor(id) {
    this.box = $(id);
    this.canvas = this.box.querySelector("canvas.base");
    this.over = this.box.querySelector("canvas.over");
  }

  /** Fit both canvases to the box, in device pixels. */
  fit() {
    this.ratio = window.devicePixelRatio || 1;
    this.width = Math.max(200, this.box.clientWidth);
    this.height = this.box.clientHeight;
    for (const canvas of [this.canvas, this.over]) {
      const [w, h] = [Math.round(this.width * this.ratio), Math.round(this.height * this.ratio)];
      if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    }
  }

  begin(canvas) {
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = "11px system-ui, sans-serif";
    return context;
  }

  x(time) {
    return GUTTER + ((time - view.low) / (view.high - view.low)) * (this.width - GUTTER);
  }

  time(x) {
    return view.low + ((x - GUTTER) / (this.width - GUTTER)) * (view.high - view.low);
  }

  y(value) {
    return this.height - (value / this.top) * this.height;
  }

  scale(context) {
    const steps = Math.max(2, Math.floor(this.height / 56));
    const power = 2 ** Math.floor(Math.log2(this.top / steps || 1));
    const unit = this.top / power / steps > 1.5 ? power * 2 : power;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let value = 0; value < this.top; value += unit) {
      const y = Math.round(this.y(value)) - 0.5;
      context.fillStyle = colours.line;
      context.fillRect(GUTTER, y, this.width - GUTTER, 1);
      context.fillStyle = colours.faint;
      if (y > 8) context.fillText(formatBytes(value), GUTTER - 8, Math.min(y, this.height - 7));
    }
  }

  /** What a point of the drawing shows, as a selection: an instant, unless it has buffers or ops. */
  under(x) {
    return { kind: "instant", id: this.time(x) };
  }

  cross(context) {
    if (view.cursor === null) return;
    const x = Math.round(this.x(view.cursor));
    if (x < GUTTER) return;
    context.fillStyle = colours.ink;
    context.globalAlpha = 0.55;
    context.fillRect(x, 0, 1, this.height);
    context.globalAlpha = 1;
  }

  brush(context) {
    if (!view.brush) return;
    const [low, high] = view.brush.map((time) => this.x(time));
    context.fillStyle = colours.accent;
    context.globalAlpha = 0.18;
    context.fillRect(Math.min(low, high), 0, Math.abs(high - low), this.height);
    context.globalAlpha = 1;
  }
}

class MemoryChart extends Chart {
  constructor() {
    super("memory");
    this.order = model.categories.map((_, k) => k);
    this.held = new Float64Array(model.categories.length);
    for (const [category, bytes] of model.header.held) this.held[category] += bytes;
    const known = this.held.reduce((a, b) => a + b, 0);
    this.held[model.categories.indexOf("unknown")] += Math.max(0, model.base - known);
    this.limit = model.figures.budget;
    this.reserved = model.figures.arena ? model.base + model.figures.arena + model.figures.outside : 0;
    const ghost = model.ghost ? Math.max(0, ...[model.ghost.pyramid.best(0, model.ghost.live.length)].map((k) => model.ghost.live[k] ?? 0)) : 0;
    this.top = Math.max(model.base + Math.max(model.peak, ghost), this.reserved, 64);
    if (this.limit <= 1.6 * this.top) this.top = Math.max(this.top, this.limit);
    this.top *= 1.1;
    this.now = new Float64Array(model.categories.length);
  }

  draw() {
    this.fit();
    const context = this.begin(this.canvas);
    this.scale(context);
    let [from, last] = [GUTTER, null];
    for (let x = GUTTER; x <= this.width; x++) {
      const best = x < this.width ? this.highest(model.ticks, model.pyramid, x) : null;
      if (best === last && x < this.width) continue;
      if (last !== null) this.column(context, from, x, last);
      [from, last] = [x, best];
    }
    if (model.ghost) this.ghost(context);
    this.mark();
    this.limits(context);
  }

  /** The tick with the most live bytes among those that hold during a pixel; -1 before the first. */
  highest(ticks, pyramid, x) {
    const low = upperBound(ticks, this.time(x)) - 1;
    const high = upperBound(ticks, this.time(x + 1), Math.max(0, low));
    return high <= Math.max(0, low) ? low : pyramid.best(Math.max(0, low), high);
  }

  column(context, from, to, tick) {
    if (tick >= 0) model.byCategory(tick, this.now);
    else this.now.fill(0);
    let base = 0;
    const paint = (category, bytes, alpha) => {
      if (!bytes) return;
      context.globalAlpha = alpha;
      context.fillStyle = colours.category[category];
      const [high, low] = [this.y(base + bytes), this.y(base)];
      context.fillRect(from, high, to - from, low - high);
      base += bytes;
    };
    for (const category of this.order) paint(category, this.held[category], 0.45);
    for (const category of this.order) paint(category, this.now[category], 1);
    context.globalAlpha = 1;
  }

  ghost(context) {
    context.strokeStyle = colours.ink;
    context.globalAlpha = 0.8;
    context.setLineDash([3, 3]);
    context.beginPath();
    for (let x = GUTTER; x < this.width; x++) {
      const tick = this.highest(model.ghost.ticks, model.ghost.pyramid, x);
      context.lineTo(x, this.y(model.base + (tick < 0 ? 0 : model.ghost.live[tick])));
    }
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  limits(context) {
    const line = (bytes, text, dash, colour) => {
      const y = Math.round(this.y(bytes)) + 0.5;
      context.strokeStyle = context.fillStyle = colour;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(GUTTER, y);
      context.lineTo(this.width, y);
      context.stroke();
      context.setLineDash([]);
      context.textAlign = "right";
      context.textBaseline = "bottom";
      if (this.clear(context.measureText(text).width, y)) context.fillText(text, this.width - 6, y - 2);
    };
    if (this.reserved && Math.abs(this.y(this.reserved) - this.y(this.limit)) > 14) {
      line(this.reserved, `reserved ${formatBytes(this.reserved)}`, [2, 4], colours.faint);
    }
    if (this.limit && this.limit <= this.top) line(this.limit, `budget ${formatBytes(this.limit)}`, [], colours.budget);
    else if (this.limit) {
      context.fillStyle = colours.budget;
      context.textAlign = "right";
      context.textBaseline = "top";
      context.fillText(`budget ${formatBytes(this.limit)}, above this picture`, this.width - 6, 4);
    }
  }

  /** Whether a text of some width, at the right end above a line, leaves the mark of the peak alone. */
  clear(width, y) {
    const marker = $("peak-marker");
    if (marker.hidden || Math.abs(this.y(model.base + model.peak) - y) > 24) return true;
    const x = model.peakTick < 0 ? -Infinity : this.x(model.ticks[model.peakTick]);
    return x > this.width + 1 || (marker.classList.contains("leftwards") ? x : x + marker.offsetWidth) < this.width - 10 - width;
  }

  /** The peak is a real button above the drawing, at the pixel of its time and bytes. */
  mark() {
    const marker = $("peak-marker");
    const x = model.peakTick < 0 ? -1 : this.x(model.ticks[model.peakTick]);
    marker.textContent = `peak ${formatBytes(model.peak)}`;
    marker.hidden = x < GUTTER || x > this.width;
    marker.style.left = `${x}px`;
    marker.style.top = `${this.y(model.base + model.peak)}px`;
    marker.classList.toggle("leftwards", x > this.width - 140);
  }

  drawOver() {
    const context = this.begin(this.over);
    this.brush(context);
    this.cross(context);
  }
}

class ArenaChart extends Chart {
  constructor() {
    super("arena");
    this.top = Math.max(64, model.arena) * 1.02;
  }

  /** Paint buffers into pixels: a buffer smaller than a pixel marks one, and none is drawn twice. */
  draw() {
    this.fit();
    const context = this.begin(this.canvas);
    this.scale(context);
    const left = Math.round(GUTTER * this.ratio);
    const [width, height] = [this.canvas.width - left, this.canvas.height];
    if (this.image?.width !== width || this.image?.height !== height) this.image = new ImageData(width, height);
    const pixels = new Uint32Array(this.image.data.buffer);
    pixels.fill(word(colours.panel));
    this.paint(pixels, width, height);
    context.putImageData(this.image, left, 0);
  }

  /** Pixel rows of every buffer: they depend on the height alone, so zooming in time keeps them. */
  rows(height) {
    if (this.rowsFor === height) return;
    const { offset, size, numBuffers } = model;
    const up = height / this.top;
    this.rowsFor = height;
    this.upper = new Int16Array(numBuffers).fill(-1);
    this.lower = new Int16Array(numBuffers).fill(-1);
    for (let b = 0; b < numBuffers; b++) {
      if (offset[b] < 0) continue;
      this.lower[b] = Math.min(height, height - Math.floor(offset[b] * up));
      this.upper[b] = Math.max(0, Math.min(this.lower[b] - 1, height - Math.floor((offset[b] + size[b]) * up)));
    }
  }

  /** Buffers come in order of their start, so `filled[y]` alone tells which pixels of a row are taken. */
  paint(pixels, width, height) {
    this.rows(height);
    const { left, right, category, decision, copy, blockRight } = model;
    const { upper, lower } = this;
    const fills = colours.category.map((hex) => [word(hex), word(hex, 0.42), word(hex, -0.32)]);
    const across = width / (view.high - view.low);
    const count = upperBound(left, view.high);
    const filled = new Int32Array(height + 1);
    for (let b = 0; b < count; b++) {
      if (b % 256 === 0 && blockRight[b >> 8] < view.low) {
        b += 255;
        continue;
      }
      if (right[b] < view.low || upper[b] < 0) continue;
      const x0 = Math.max(0, ((left[b] - view.low) * across) | 0);
      const x1 = Math.max(x0 + 1, Math.min(width, (right[b] - view.low) * across) | 0);
      if (filled[upper[b]] >= x1 && filled[lower[b] - 1] >= x1 && filled[(upper[b] + lower[b]) >> 1] >= x1) continue;
      const pattern = decision[b] === 3 ? 2 : copy[b] > 0 ? 1 : 0;
      this.rectangle(pixels, width, [x0, Math.min(x1, width), upper[b], lower[b]], fills[category[b]], pattern, filled);
    }
  }

  rectangle(pixels, width, [x0, x1, y0, y1], [fill, light, dark], pattern, filled) {
    const border = x1 - x0 > 3 && y1 - y0 > 3;
    for (let y = y0; y < y1; y++) {
      const from = Math.max(x0, filled[y]);
      if (from >= x1) continue;
      const row = y * width;
      filled[y] = x1;
      const edge = border && (y === y0 || y === y1 - 1);
      pixels.fill(edge ? dark : fill, row + from, row + x1);
      if (edge) continue;
      for (let x = from; pattern && x < x1; x++) {
        if (pattern === 2 ? x % 6 < 2 && y % 6 < 2 : (x + y) % 8 < 4) pixels[row + x] = light;
      }
      if (border) {
        if (from === x0) pixels[row + x0] = dark;
        pixels[row + x1 - 1] = dark;
      }
    }
  }

  /** The buffer at a point; -1 when there is none. */
  hit(x, y) {
    const [time, address] = [this.time(x), ((this.height - y) / this.height) * this.top];
    for (let b = upperBound(model.left, time) - 1; b >= 0; b--) {
      const inside = model.offset[b] >= 0 && model.offset[b] <= address && address < model.offset[b] + model.size[b];
      if (inside && time < model.bufferEnd(b)) return b;
    }
    return -1;
  }

  under(x, y) {
    const b = this.hit(x, y);
    return b < 0 ? super.under(x) : { kind: "buffer", id: b };
  }

  drawOver() {
    const context = this.begin(this.over);
    this.brush(context);
    this.cross(context);
    if (selection.kind !== "buffer") return;
    const chosen = selection.id;
    const storage = model.storage[chosen];
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    for (let b = 0; b < model.numBuffers; b++) {
      if (b !== chosen && (storage < 0 || model.storage[b] !== storage)) continue;
      if (model.offset[b] < 0) continue;
      const [x, end] = [this.x(model.left[b]), this.x(model.bufferEnd(b))];
      if (end < GUTTER || x > this.width) continue;
      const [y, low] = [this.y(model.offset[b] + model.size[b]), this.y(model.offset[b])];
      context.setLineDash(b === chosen ? [] : [4, 3]);
      context.strokeRect(Math.max(x, GUTTER), y, Math.max(2, end - Math.max(x, GUTTER)), Math.max(2, low - y));
    }
    context.setLineDash([]);
  }
}

class OpsChart extends Chart {
  constructor() {
    super("ops");
    this.lanes = model.threads.slice(0, 4);
    this.box.style.height = `${Math.max(1, this.lanes.length) * 22}px`;
  }

  /** One mark per pixel: the longest op that begins in it, or the one that covers it. */
  draw() {
    this.fit();
    const context = this.begin(this.canvas);
    context.textAlign = "right";
    context.textBaseline = "middle";
    this.lanes.forEach((thread, lane) => {
      context.fillStyle = colours.faint;
      context.fillText(lane ? `thread ${thread}` : "ops", GUTTER - 8, lane * 22 + 11);
      let [from, last] = [GUTTER, -1];
      for (let x = GUTTER; x <= this.width; x++) {
        const event = x < this.width ? this.at(x, thread) : -2;
        if (event === last) continue;
        if (last >= 0) this.mark(context, from, x, last, lane);
        [from, last] = [x, event];
      }
    });
  }

  at(x, thread) {
    const low = lowerBound(model.start, this.time(x));
    const high = lowerBound(model.start, this.time(x + 1), low);
    if (high > low) {
      const best = model.longest.best(low, high);
      if (model.thread[best] === thread) return best;
    }
    for (let i = Math.max(low, high) - 1, seen = 0; i >= 0 && seen < 32; i--, seen++) {
      if (model.thread[i] === thread && model.stop[i] > this.time(x)) return i;
    }
    return -1;
  }

  under(x, y) {
    const i = this.at(Math.floor(x), this.lanes[Math.floor(y / 22)] ?? 0);
    return i < 0 ? super.under(x) : { kind: "event", id: i };
  }

  mark(context, from, to, event, lane) {
    context.fillStyle = colours.phase[model.phase[event]];
    context.fillRect(from, lane * 22 + 2, Math.max(1, to - from - (to - from > 4 ? 1 : 0)), 18);
    if (to - from > 4 && model.forecast?.[event] >= 0) this.ghost(context, from, to - 1, event, lane);
  }

  /** A line in an op as long as its forecast; it ends with the op where the forecast is longer. */
  ghost(context, from, to, event, lane) {
    const end = Math.min(to, this.x(model.start[event] + model.forecast[event]));
    context.fillStyle = colours.ink;
    context.fillRect(from, lane * 22 + 15, Math.max(0, end - from), 2);
  }

  drawOver() {
    const context = this.begin(this.over);
    this.brush(context);
    this.cross(context);
    if (selection.kind !== "event") return;
    const [x, end] = [this.x(model.start[selection.id]), this.x(model.stop[selection.id])];
    if (end < GUTTER || x > this.width) return;
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.strokeRect(Math.max(x, GUTTER), 1, Math.max(2, end - Math.max(x, GUTTER)), 20);
  }
}
