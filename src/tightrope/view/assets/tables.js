// The same numbers as tables: sorted by any column, filtered by the search box, a hundred rows at a time.

const PAGE = 100;

/** Columns are [head, text], or [head, number, kind, what to sort by]: the head of those names the unit. */
const TABLES = {
  buffers: {
    count: () => model.numBuffers,
    kind: "buffer",
    columns: [
      ["made by", (b) => model.bufferName(b)],
      ["your line", (b) => model.line_of(model.creator[b])],
      ["module", (b) => model.bufferModule(b)],
      ["bytes", (b) => model.size[b], "exact"],
      ["from", (b) => model.left[b], "time", (b) => model.alloc[b]],
      ["to", (b) => model.bufferEnd(b), "time", (b) => model.release[b]],
      ["address", (b) => (model.offset[b] < 0 ? NaN : model.offset[b]), "exact", (b) => model.offset[b]],
      ["category", (b) => spaced(model.categories[model.category[b]])],
      ["decision", (b) => model.decisions[model.decision[b]]],
    ],
    name: (b) => (model.creator[b] < 0 ? -1 : model.creator[b]),
  },
  ops: {
    count: () => model.numEvents,
    kind: "event",
    columns: [
      ["op", (i) => model.name(i)],
      ["your line", (i) => model.line_of(i)],
      ["module", (i) => model.path(model.eventModule[i])],
      ["phase", (i) => spaced(model.phases[model.phase[i]])],
      ["starts", (i) => model.start[i], "time"],
      ["own time", (i) => model.own[i], "time"],
    ],
    name: (i) => i,
  },
  modules: {
    count: () => model.numModules,
    kind: "module",
    columns: [
      ["module", (m) => model.path(m)],
      ["class", (m) => model.strings[model.moduleKind[m]]],
      ["time", (m) => model.moduleTime[m], "time"],
      ["own time", (m) => model.moduleOwn[m], "time"],
      ["ops", (m) => model.moduleOps[m], "count"],
    ],
  },
};

/** Rows whose name or module holds a text; names are compared once per distinct string. */
class Finder {
  constructor(text) {
    const wanted = text.trim().toLowerCase();
    this.hits = model.strings.map((string) => string.toLowerCase().includes(wanted));
    this.own = new Uint8Array(model.numModules);
    this.modules = new Uint8Array(model.numModules);
    const dotted = wanted.includes(".");
    for (let m = 0; m < model.numModules; m++) {
      const own = dotted ? model.path(m).toLowerCase().includes(wanted) : this.hits[model.moduleName[m]];
      this.own[m] = own ? 1 : 0;
      this.modules[m] = own || (m > 0 && this.modules[model.moduleParent[m]]) ? 1 : 0;
    }
  }

  has(kind, row) {
    if (kind === "modules") return this.modules[row] === 1;
    const event = TABLES[kind].name(row);
    if (event < 0) return false;
    const line = model.line[event] < 0 ? 0 : model.header.lines[model.line[event]];
    return this.hits[model.eventName[event]] || this.modules[model.eventModule[event]] === 1 || (line > 0 && this.hits[line]);
  }
}

class TableView {
  constructor(root) {
    Object.assign(this, { root, kind: "buffers", page: 0, column: -1, down: true, finder: null });
  }

  rows() {
    const table = TABLES[this.kind];
    let found = [];
    for (let k = 0; k < table.count(); k++) if (!this.finder || this.finder.has(this.kind, k)) found.push(k);
    if (this.column < 0) return found;
    const [, shown, , sorted] = table.columns[this.column];
    const value = sorted ?? shown;
    const keys = new Map(found.map((k) => [k, value(k)]));
    const sign = this.down ? -1 : 1;
    found = found.sort((a, b) => (keys.get(a) < keys.get(b) ? -sign : keys.get(a) > keys.get(b) ? sign : a - b));
    return found;
  }

  show() {
    this.order = this.rows();
    this.draw();
  }

  filter(text) {
    this.finder = text.trim() ? new Finder(text) : null;
    this.page = 0;
    this.show();
  }

  draw() {
    const { columns, kind } = TABLES[this.kind];
    const pages = Math.max(1, Math.ceil(this.order.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    const shown = this.order.slice(this.page * PAGE, this.page * PAGE + PAGE);
    const units = columns.map(([, , unit]) => (unit ? columnUnit(unit, model.end) : null));
    const heads = columns.map(([name], k) => this.head(name, k, units[k]));
    const body = shown.map((row) => make("tr", {}, ...columns.map(([, value], k) => this.cell(kind, row, value(row), k, units[k]))));
    const caption = `${plural(this.order.length, this.kind.slice(0, -1))}${this.finder ? " found" : ""}`;
    const table = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
    this.root.replaceChildren(this.choice(), table, this.pager(pages));
  }

  choice() {
    const button = (name) =>
      make("button", { "aria-pressed": String(name === this.kind), onclick: () => this.choose(name) }, name);
    return make("div", { class: "row", role: "group", "aria-label": "table of" }, ...Object.keys(TABLES).map(button));
  }

  choose(kind) {
    Object.assign(this, { kind, page: 0, column: -1 });
    this.show();
  }

  cell(kind, row, value, k, unit) {
    if (unit) return make("td", { class: "figure" }, Number.isFinite(value) ? unit[1](value) : "");
    return make("td", {}, k ? value : link(value, kind, row));
  }

  head(name, k, unit) {
    const sorted = k === this.column ? (this.down ? "descending" : "ascending") : "none";
    const mark = { descending: " ↓", ascending: " ↑", none: "" }[sorted];
    const text = name + (unit?.[0] ? ` (${unit[0]})` : "") + mark;
    return make("th", { scope: "col", "aria-sort": sorted, class: unit ? "figure" : undefined }, make("button", { onclick: () => this.sort(k) }, text));
  }

  sort(k) {
    this.down = k === this.column ? !this.down : true;
    this.column = k;
    this.show();
  }

  pager(pages) {
    const turn = (by) => {
      this.page = Math.max(0, Math.min(pages - 1, this.page + by));
      this.draw();
    };
    const back = make("button", { onclick: () => turn(-1), disabled: this.page === 0 }, "Previous");
    const next = make("button", { onclick: () => turn(1), disabled: this.page === pages - 1 }, "Next");
    return make("div", { class: "row" }, back, `page ${this.page + 1} of ${formatCount(pages)}`, next);
  }
}
