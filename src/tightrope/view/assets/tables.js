// The same numbers as tables: sorted by any column, filtered by the search box, a hundred rows at a time.

const PAGE = 100;

const TABLES = {
  buffers: {
    count: () => model.numBuffers,
    kind: "buffer",
    columns: [
      ["made by", (b) => model.bufferName(b)],
      ["module", (b) => model.bufferModule(b)],
      ["bytes", (b) => formatCount(model.size[b]), (b) => model.size[b]],
      ["from", (b) => formatTime(model.left[b]), (b) => model.alloc[b]],
      ["to", (b) => formatTime(model.bufferEnd(b)), (b) => model.release[b]],
      ["address", (b) => (model.offset[b] < 0 ? "" : formatCount(model.offset[b])), (b) => model.offset[b]],
      ["category", (b) => spaced(model.categories[model.category[b]]), (b) => model.category[b]],
      ["decision", (b) => model.decisions[model.decision[b]], (b) => model.decision[b]],
    ],
    name: (b) => (model.creator[b] < 0 ? -1 : model.creator[b]),
  },
  ops: {
    count: () => model.numEvents,
    kind: "event",
    columns: [
      ["op", (i) => model.name(i)],
      ["module", (i) => model.path(model.eventModule[i])],
      ["phase", (i) => spaced(model.phases[model.phase[i]]), (i) => model.phase[i]],
      ["starts", (i) => formatTime(model.start[i]), (i) => model.start[i]],
      ["own time", (i) => formatTime(model.own[i]), (i) => model.own[i]],
      ["source", (i) => model.line_of(i)],
    ],
    name: (i) => i,
  },
  modules: {
    count: () => model.numModules,
    kind: "module",
    columns: [
      ["module", (m) => model.path(m)],
      ["class", (m) => model.strings[model.moduleKind[m]]],
      ["time", (m) => formatTime(model.moduleTime[m]), (m) => model.moduleTime[m]],
      ["own time", (m) => formatTime(model.moduleOwn[m]), (m) => model.moduleOwn[m]],
      ["ops", (m) => formatCount(model.moduleOps[m]), (m) => model.moduleOps[m]],
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
    return event >= 0 && (this.hits[model.eventName[event]] || this.modules[model.eventModule[event]] === 1);
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
    const [, text, number] = table.columns[this.column];
    const value = number ?? text;
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
    const heads = columns.map(([name], k) => this.head(name, k));
    const body = shown.map((row) =>
      make("tr", {}, ...columns.map(([, text], k) => make("td", {}, k ? text(row) : link(text(row), kind, row)))),
    );
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

  head(name, k) {
    const sorted = k === this.column ? (this.down ? "descending" : "ascending") : "none";
    const mark = { descending: " ↓", ascending: " ↑", none: "" }[sorted];
    return make("th", { scope: "col", "aria-sort": sorted }, make("button", { onclick: () => this.sort(k) }, name + mark));
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
