// Stacked zoom levels: a row of boxes; the box that is opened becomes the whole width of the row below.

const STAGE_BLIND = new Set(["recompute", "page"]);
const SHARE = 0.05;

/** Rows are made anew for each drawing: a box is known by what it stands for. */
function same(a, b) {
  return Boolean(a) && a.kind === b.kind && a.label === b.label && a.events[0] === b.events[0];
}

/** Boxes of one row, in order of time, as runs of events that belong to one stage or module. */
class Levels {
  constructor(root, onSelect) {
    Object.assign(this, { root, onSelect, grouped: true, open: [], labels: new Map() });
    this.top = this.outermost();
    this.stages = this.stageOf();
    this.reset();
  }

  reset() {
    this.open = [{ kind: "step", label: "training step", events: this.top, depth: 0 }];
    this.draw();
  }

  outermost() {
    const { around, numEvents } = model;
    let count = 0;
    for (let i = 0; i < numEvents; i++) count += around[i] < 0;
    const found = new Uint32Array(count);
    for (let i = 0, k = 0; i < numEvents; i++) if (around[i] < 0) found[k++] = i;
    return found;
  }

  /** Recomputation and paging belong to the stage in which they happen. */
  stageOf() {
    const blind = model.phases.map((phase) => STAGE_BLIND.has(phase));
    const stages = new Uint8Array(this.top.length);
    let stage = model.phase[this.top.find((i) => !blind[model.phase[i]]) ?? 0] ?? 0;
    for (let k = 0; k < this.top.length; k++) {
      const phase = model.phase[this.top[k]];
      if (!blind[phase]) stage = phase;
      stages[k] = stage;
    }
    return stages;
  }

  children(node) {
    if (node.kind === "group") return node.members;
    if (node.kind === "op") return this.nested(node.events[0]);
    const byStage = node.kind === "step";
    const key = byStage
      ? (k) => this.stages[k]
      : (k) => model.ancestor(model.eventModule[node.events[k]], node.depth + 1) * 16 + model.phase[node.events[k]];
    const runs = this.runs(node, key, byStage);
    const [only] = runs;
    if (runs.length === 1 && only.kind !== "op" && !byStage) return this.children(only);
    return runs;
  }

  runs(node, key, byStage) {
    const found = [];
    const { events } = node;
    for (let low = 0; low < events.length; ) {
      const mine = key(low);
      let high = low + 1;
      const leaf = !byStage && mine < 0;
      const most = leaf ? low + Math.ceil(events.length / 2000) : events.length;
      while (high < most && high < events.length && (leaf ? key(high) < 0 : key(high) === mine)) high += 1;
      found.push(this.node(events.subarray(low, high), byStage, leaf, node.depth));
      low = high;
    }
    return found;
  }

  node(events, byStage, leaf, depth) {
    const phase = model.phase[events[0]];
    if (byStage) {
      const stage = this.stages[lowerBound(this.top, events[0])];
      return { kind: "stage", label: this.stageLabel(stage, events), phase: stage, events, depth: 0 };
    }
    if (leaf && events.length > 1) {
      const label = `${model.name(events[0])} and ${formatCount(events.length - 1)} more`;
      return { kind: "chunk", label, phase, events, depth };
    }
    if (leaf) return { kind: "op", label: model.name(events[0]), phase, events, depth };
    const module = model.ancestor(model.eventModule[events[0]], depth + 1);
    const label = model.label(module);
    return { kind: "module", label, phase, events, depth: depth + 1, module };
  }

  /** A stage says what happens in it besides: "backward with recompute". */
  stageLabel(stage, events) {
    const known = this.labels.get(events[0]);
    if (known) return known;
    const inside = new Set();
    for (const i of events) inside.add(model.phase[i]);
    inside.delete(stage);
    const label = [stage, ...inside].map((phase) => spaced(model.phases[phase])).join(" with ");
    this.labels.set(events[0], label);
    return label;
  }

  nested(event) {
    const found = [];
    for (let i = event + 1; i < model.numEvents && model.start[i] < model.stop[event]; i++) {
      if (model.around[i] !== event) continue;
      const events = Uint32Array.of(i);
      found.push({ kind: "op", label: model.name(i), phase: model.phase[i], events, depth: 0 });
    }
    return found;
  }

  time(node) {
    if (node.time === undefined) {
      const add = (sum, i) => sum + model.stop[i] - model.start[i];
      node.time = node.members ? node.members.reduce((s, m) => s + this.time(m), 0) : node.events.reduce(add, 0);
    }
    return node.time;
  }

  bounds(node) {
    const first = node.members ? node.members[0].events[0] : node.events[0];
    const events = node.members ? node.members.at(-1).events : node.events;
    return [model.start[first], events.reduce((last, i) => Math.max(last, model.stop[i]), 0)];
  }

  /** Join neighbours that would be narrower than 5 % of the row (or 3 pixels, when not asked to group). */
  group(nodes, width) {
    const total = nodes.reduce((sum, node) => sum + this.time(node), 0) || 1;
    const narrow = (this.grouped ? Math.max(SHARE * width, 28) : 3) / width;
    const found = [];
    let small = [];
    const flush = () => {
      if (small.length > 1) found.push(this.joined(small));
      else found.push(...small);
      small = [];
    };
    for (const node of nodes) {
      if (this.time(node) / total >= narrow) flush(), found.push(node);
      else small.push(node);
    }
    flush();
    if (found.length === 1 && found[0].kind === "group") return this.halves(found[0].members);
    return found;
  }

  /** Where everything is small, a row of about twenty groups of equal time. */
  halves(nodes) {
    if (nodes.length <= 20) return nodes;
    const total = nodes.reduce((sum, node) => sum + this.time(node), 0);
    const found = [];
    let part = [];
    let sum = 0;
    for (const node of nodes) {
      part.push(node);
      sum += this.time(node);
      if (sum >= total / 20) {
        found.push(part.length > 1 ? this.joined(part) : part[0]);
        part = [];
        sum = 0;
      }
    }
    if (part.length) found.push(part.length > 1 ? this.joined(part) : part[0]);
    return found;
  }

  joined(members) {
    const longest = members.reduce((a, b) => (this.time(b) > this.time(a) ? b : a));
    const label = `${longest.label} and ${formatCount(members.length - 1)} more`;
    return { kind: "group", label, phase: longest.phase, members, events: longest.events, depth: 0 };
  }

  draw() {
    const focus = this.root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const width = this.root.clientWidth || 1000;
    const rows = this.open.map((node, level) => this.row(node, level, width)).filter(Boolean);
    this.root.replaceChildren(...rows);
    if (focus) this.root.querySelector(`[data-key="${focus}"]`)?.focus();
  }

  row(parent, level, width) {
    parent.drawn = this.group(this.children(parent), width);
    if (!parent.drawn.length) return null;
    const total = parent.drawn.reduce((sum, node) => sum + this.time(node), 0) || 1;
    const chosen = this.open[level + 1];
    const boxes = parent.drawn.map((node, k) => {
      const share = this.time(node) / total;
      const text = `${node.label}, ${formatTime(this.time(node))}, ${formatShare(this.time(node), total)}`;
      const wide = share * width > 40;
      const box = make(
        "button",
        {
          class: `box phase-${model.phases[node.phase]}${node.kind === "group" || node.kind === "chunk" ? " joined" : ""}`,
          title: text,
          "aria-label": wide ? undefined : text,
          "aria-expanded": String(same(chosen, node)),
          data: { key: `${level}.${k}` },
          onclick: () => this.pick(level, node),
          onkeydown: (event) => this.walk(event, level, k),
        },
        ...(wide ? [make("b", {}, node.label), " ", make("span", {}, formatShare(this.time(node), total))] : []),
      );
      box.style.flex = `${Math.max(share, 0.0005)} 1 0`;
      return box;
    });
    const label = level === 0 ? "stages of the training step" : `inside ${parent.label}`;
    return make("div", { class: "level", role: "group", "aria-label": label }, ...boxes);
  }

  pick(level, node) {
    this.open = this.open.slice(0, level + 1);
    if (node.kind !== "op" || this.children(node).length) this.open.push(node);
    this.draw();
    this.onSelect(node);
  }

  walk(event, level, k) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const key = step[0] ? `${level + step[0]}.0` : `${level}.${k + step[1]}`;
    this.root.querySelector(`[data-key="${key}"]`)?.focus();
  }
}
