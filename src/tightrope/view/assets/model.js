// The trace as arrays, and every figure that the page derives from them.

class Model {
  constructor({ header, columns }) {
    Object.assign(this, { header, unit: header.unit, figures: header.figures, strings: header.strings });
    Object.assign(this, { phases: header.phases, categories: header.categories, decisions: header.decisions });
    this.columns = columns;
    this.readEvents(columns);
    this.readBuffers(columns);
    this.readModules(columns);
    const ends = [this.lastEnd, this.ticks.at(-1) ?? 0, columns.ghost_ticks?.at(-1) ?? 0, 1];
    this.end = Math.max(...ends);
    this.ends();
    this.ghost = columns.ghost_live ? { live: columns.ghost_live, ticks: columns.ghost_ticks } : null;
    if (this.ghost) this.ghost.pyramid = new Pyramid(this.ghost.live);
    this.readForecast(columns);
    this.base = this.figures.persistent || header.held.reduce((sum, [, bytes]) => sum + bytes, 0);
  }

  /** What a forecast says of every op, -1 where it says nothing, and of phases and modules where it says all. */
  readForecast({ ghost_ns: times }) {
    this.forecast = times ?? null;
    this.forecastTotal = times && this.numEvents && times.every((ns) => ns >= 0) ? times.reduce((sum, ns) => sum + ns, 0) : 0;
    this.phaseForecast = new Float64Array(this.phases.length);
    this.moduleForecast = new Float64Array(this.numModules);
    for (let i = 0; this.forecastTotal && i < this.numEvents; i++) {
      this.phaseForecast[this.phase[i]] += times[i];
      this.moduleForecast[this.eventModule[i]] += times[i];
    }
  }

  /** Observed against forecast time in words; empty where one is not known. */
  againstForecast(observed, forecast) {
    return forecast > 0 && observed > 0 ? `${formatTime(forecast)}; observed is ${fixed(observed / forecast, 2)} times that` : "";
  }

  readEvents({ gap, duration, event_name, event_module, phase, thread, line, doubt, callers }) {
    const count = gap.length;
    this.numEvents = count;
    this.start = new Float64Array(count);
    this.stop = new Float64Array(count);
    let last = 0;
    this.lastEnd = 0;
    for (let i = 0; i < count; i++) {
      this.start[i] = last + gap[i];
      last = this.stop[i] = this.start[i] + duration[i];
      if (last > this.lastEnd) this.lastEnd = last;
    }
    Object.assign(this, { eventName: event_name, eventModule: event_module, phase, thread, line, doubt, callers });
    this.nest();
    this.longest = new Pyramid(duration);
    this.stepTime = this.lastEnd - (count ? this.start[0] : 0);
  }

  /** Self times, the event around each event, and the outermost events: nested ones never cross. */
  nest() {
    const { numEvents, start, stop, thread } = this;
    this.own = new Float64Array(numEvents);
    this.around = new Int32Array(numEvents).fill(-1);
    const open = new Map();
    for (let i = 0; i < numEvents; i++) {
      this.own[i] = stop[i] - start[i];
      let stack = open.get(thread[i]);
      if (!stack) open.set(thread[i], (stack = []));
      while (stack.length && stop[stack.at(-1)] <= start[i]) stack.pop();
      if (stack.length) {
        this.around[i] = stack.at(-1);
        this.own[stack.at(-1)] -= stop[i] - start[i];
      }
      stack.push(i);
    }
    this.threads = [...open.keys()].sort((a, b) => a - b);
    this.ownTotal = this.own.reduce((sum, value) => sum + value, 0);
    this.phaseTimes = new Float64Array(this.phases.length);
    for (let i = 0; i < numEvents; i++) this.phaseTimes[this.phase[i]] += this.own[i];
  }

  /** A tick stands some time after the start (>= 0) or the end (< 0) of the event that began last. */
  readTicks({ tick_event, tick_rest }) {
    const ticks = new Float64Array(tick_event.length);
    for (let k = 0; k < ticks.length; k++) {
      const [event, rest] = [tick_event[k], tick_rest[k]];
      ticks[k] = event < 0 ? rest : rest < 0 ? this.stop[event] - 1 - rest : this.start[event] + rest;
    }
    return ticks;
  }

  readBuffers(columns) {
    const { alloc, life, bytes } = columns;
    const count = alloc.length;
    this.ticks = this.readTicks(columns);
    const numTicks = this.ticks.length;
    Object.assign(this, { numBuffers: count, bytes, alloc, offset: columns.offset, storage: columns.storage });
    Object.assign(this, { creator: columns.creator, category: columns.category, decision: columns.decision });
    Object.assign(this, { reason: columns.reason, copy: columns.copy });
    this.size = new Float64Array(count);
    this.release = new Int32Array(count);
    this.left = new Float64Array(count);
    this.firstReader = new Uint32Array(count + 1);
    this.arena = this.figures.arena;
    for (let b = 0; b < count; b++) {
      this.size[b] = Math.ceil(bytes[b] / 64) * 64;
      this.release[b] = alloc[b] + life[b];
      this.left[b] = this.ticks[alloc[b]];
      this.firstReader[b + 1] = this.firstReader[b] + columns.num_readers[b];
      if (this.offset[b] >= 0) this.arena = Math.max(this.arena, this.offset[b] + this.size[b]);
    }
    this.curve(numTicks);
  }

  /** Where each buffer ends on the time axis, and the last end of every 256 buffers. */
  ends() {
    this.right = new Float64Array(this.numBuffers);
    this.blockRight = new Float64Array((this.numBuffers >> 8) + 1);
    for (let b = 0; b < this.numBuffers; b++) {
      this.right[b] = this.bufferEnd(b);
      if (this.right[b] > this.blockRight[b >> 8]) this.blockRight[b >> 8] = this.right[b];
    }
  }

  /** Live bytes after every tick, and every 64 ticks the bytes of each category. */
  curve(numTicks) {
    const { numBuffers, alloc, release, size, category } = this;
    const numCategories = this.categories.length;
    const first = new Uint32Array(numTicks + 2);
    const put = (tick) => tick < numTicks && (first[tick + 2] += 1);
    for (let b = 0; b < numBuffers; b++) put(alloc[b]), put(release[b]);
    for (let tick = 2; tick < first.length; tick++) first[tick] += first[tick - 1];
    const items = new Int32Array(first[numTicks + 1]);
    for (let b = 0; b < numBuffers; b++) {
      items[first[alloc[b] + 1]++] = b;
      if (release[b] < numTicks) items[first[release[b] + 1]++] = ~b;
    }
    this.live = new Float64Array(numTicks);
    this.stops = new Float64Array((Math.ceil(numTicks / 64) + 1) * numCategories);
    const now = new Float64Array(numCategories);
    let total = 0;
    for (let tick = 0; tick < numTicks; tick++) {
      if (tick % 64 === 0) this.stops.set(now, (tick / 64) * numCategories);
      for (let k = first[tick]; k < first[tick + 1]; k++) {
        const b = items[k] < 0 ? ~items[k] : items[k];
        const change = items[k] < 0 ? -size[b] : size[b];
        now[category[b]] += change;
        total += change;
      }
      this.live[tick] = total;
    }
    Object.assign(this, { tickFirst: first, tickItems: items, pyramid: new Pyramid(this.live) });
    this.peakTick = numTicks ? this.pyramid.best(0, numTicks) : -1;
    this.peak = numTicks ? this.live[this.peakTick] : 0;
  }

  /** Bytes of each category after a tick. */
  byCategory(tick, into) {
    const count = this.categories.length;
    const block = tick >> 6;
    into.set(this.stops.subarray(block * count, block * count + count));
    for (let k = this.tickFirst[block << 6]; k < this.tickFirst[tick + 1]; k++) {
      const item = this.tickItems[k];
      const b = item < 0 ? ~item : item;
      into[this.category[b]] += item < 0 ? -this.size[b] : this.size[b];
    }
    return into;
  }

  readModules({ module_name, module_whole, module_kind, module_parent }) {
    const count = module_name.length;
    Object.assign(this, { numModules: count, moduleName: module_name, moduleWhole: module_whole });
    Object.assign(this, { moduleKind: module_kind, moduleParent: module_parent });
    this.moduleOwn = new Float64Array(count);
    this.moduleOps = new Uint32Array(count);
    for (let i = 0; i < this.numEvents; i++) {
      this.moduleOwn[this.eventModule[i]] += this.own[i];
      this.moduleOps[this.eventModule[i]] += 1;
    }
    this.moduleTime = this.moduleOwn.slice();
    for (let m = count - 1; m > 0; m--) this.moduleTime[module_parent[m]] += this.moduleTime[m];
    this.levelsOf(module_parent, count);
  }

  /** Depth of each module; a mere container of more than 75 % of what is around it is no level of its own. */
  levelsOf(parent, count) {
    this.depth = new Uint32Array(count);
    this.skipped = new Uint8Array(count);
    for (let m = 1; m < count; m++) {
      const most = this.moduleTime[m] > 0.75 * this.moduleTime[parent[m]];
      this.skipped[m] = most && this.moduleOwn[m] < 0.05 * this.moduleTime[m] ? 1 : 0;
      this.depth[m] = this.depth[parent[m]] + (this.skipped[m] ? 0 : 1);
    }
  }

  /** A module's name on a level, with the containers that are skipped there. */
  label(module) {
    const parts = [this.strings[this.moduleName[module]]];
    for (let m = this.moduleParent[module]; m > 0 && this.skipped[m]; m = this.moduleParent[m]) {
      parts.unshift(this.strings[this.moduleName[m]]);
    }
    return parts.join(".");
  }

  path(module) {
    const parts = [];
    for (let m = module; m > 0; m = this.moduleParent[m]) {
      parts.push(this.strings[this.moduleName[m]]);
      if (this.moduleWhole[m]) break;
    }
    return parts.length ? parts.reverse().join(".") : "(root)";
  }

  /** The module at a depth around (or at) a module; -1 when the module is not that deep. */
  ancestor(module, depth) {
    if (this.depth[module] < depth) return -1;
    while (this.depth[module] > depth || (module > 0 && this.skipped[module])) module = this.moduleParent[module];
    return module;
  }

  name(event) {
    return this.strings[this.eventName[event]] || "(no name)";
  }

  lineText(line) {
    return line >= 0 ? this.strings[this.header.lines[line]] : "";
  }

  /** The user's line that an op comes from; empty where it is not known. */
  line_of(event) {
    return event >= 0 ? this.lineText(this.line[event]) : "";
  }

  /** The lines from which the line of an op was called, the nearest first. */
  callerLines(event) {
    const stack = event >= 0 ? this.callers[event] : -1;
    return stack >= 0 ? this.header.callers[stack].map((line) => this.lineText(line)) : [];
  }

  bufferName(b) {
    if (this.creator[b] < 0) return spaced(this.categories[this.category[b]]);
    const event = this.creator[b];
    const again = this.copy[b] ? ` (copy ${this.copy[b] + 1})` : "";
    return this.name(event) + again;
  }

  bufferModule(b) {
    return this.creator[b] < 0 ? "" : this.path(this.eventModule[this.creator[b]]);
  }

  bufferEnd(b) {
    return this.release[b] < this.ticks.length ? this.ticks[this.release[b]] : this.end;
  }

  readers(b) {
    const origin = Math.max(this.creator[b], 0);
    return [...this.columns.readers.subarray(this.firstReader[b], this.firstReader[b + 1])].map((r) => r + origin);
  }

  reasonText(b) {
    return this.reason[b] < 0 ? "" : this.strings[this.columns.reason_text[this.reason[b]]];
  }

  /** Time of making a buffer once more: the plan's price, else the time of the op that made it. */
  price(b) {
    if (this.reason[b] >= 0) return this.columns.reason_ns[this.reason[b]];
    return this.creator[b] < 0 ? NaN : this.stop[this.creator[b]] - this.start[this.creator[b]];
  }

  /** The tick that holds at a time; -1 before the first. */
  tickAt(time) {
    return upperBound(this.ticks, time) - 1;
  }

  alive(tick) {
    const found = [];
    const last = upperBound(this.alloc, tick);
    for (let b = 0; b < last; b++) if (this.release[b] > tick) found.push(b);
    return found.sort((a, b) => this.size[b] - this.size[a] || a - b);
  }

  /** The event that made the allocation of a tick, or the one that runs at its time. */
  eventAtTick(tick) {
    for (let k = this.tickFirst[tick]; k < this.tickFirst[tick + 1]; k++) {
      const item = this.tickItems[k];
      if (item >= 0 && this.creator[item] >= 0) return this.creator[item];
    }
    return this.eventAt(this.ticks[tick]);
  }

  /** The innermost event that runs at a time; -1 when none does. */
  eventAt(time) {
    for (let i = upperBound(this.start, time) - 1, seen = 0; i >= 0 && seen < 64; i--, seen++) {
      if (this.stop[i] > time) return i;
    }
    return -1;
  }
}
