// The search box: what is found is listed under it while one types, and is chosen by key or pointer.

const SHOWN = 12;
const RANKS = {
  modules: (m, finder) => [finder.own[m], model.moduleTime[m]],
  ops: (i, finder) => [finder.hits[model.eventName[i]] ? 1 : 0, model.own[i]],
  buffers: (b, finder) => [finder.hits[model.eventName[model.creator[b]]] ? 1 : 0, model.size[b]],
};
const ABOUT = {
  modules: (m) => [model.path(m), formatTime(model.moduleTime[m])],
  ops: (i) => [`${model.line_of(i)} ${model.name(i)} in ${model.path(model.eventModule[i])}`.trim(), formatTime(model.own[i])],
  buffers: (b) => [`${model.line_of(model.creator[b])} ${model.bufferName(b)} in ${model.bufferModule(b)}`.trim(), formatBytes(model.size[b])],
};

/** How many rows of a kind are found, and the best of them: names before members, large before small. */
function bestRows(kind, finder) {
  const best = [];
  let count = 0;
  const worse = (a, b) => a.rank[0] - b.rank[0] || a.rank[1] - b.rank[1] || b.row - a.row;
  for (let row = 0; row < TABLES[kind].count(); row++) {
    if (!finder.has(kind, row)) continue;
    count += 1;
    const one = { kind, row, rank: RANKS[kind](row, finder) };
    if (best.length === SHOWN && worse(one, best.at(-1)) <= 0) continue;
    let at = best.length;
    while (at > 0 && worse(one, best[at - 1]) > 0) at -= 1;
    best.splice(at, 0, one);
    if (best.length > SHOWN) best.pop();
  }
  return { count, best };
}

/** At most a dozen rows: a third of them of each kind, and more of one where another has fewer. */
function bestHits(finder) {
  const found = Object.fromEntries(Object.keys(RANKS).map((kind) => [kind, bestRows(kind, finder)]));
  const share = { modules: 0, ops: 0, buffers: 0 };
  const taken = () => share.modules + share.ops + share.buffers;
  for (let more = true; more && taken() < SHOWN; ) {
    more = false;
    for (const kind of Object.keys(share)) {
      if (taken() >= SHOWN || share[kind] >= found[kind].best.length) continue;
      share[kind] += 1;
      more = true;
    }
  }
  const counts = Object.keys(share).map((kind) => [kind, found[kind].count]);
  return { counts, rows: Object.keys(share).flatMap((kind) => found[kind].best.slice(0, share[kind])) };
}

class SearchBox {
  constructor(input, list, note) {
    Object.assign(this, { input, list, note, rows: [], active: -1 });
    input.addEventListener("input", () => this.search());
    input.addEventListener("focus", () => this.rows.length && this.open());
    input.addEventListener("blur", () => this.close());
    input.addEventListener("keydown", (event) => this.key(event));
  }

  search() {
    table.filter(this.input.value);
    if (!table.finder) {
      this.rows = [];
      return this.close();
    }
    openTab("tables");
    const { counts, rows } = bestHits(table.finder);
    this.rows = rows;
    this.list.replaceChildren(...rows.map((hit, k) => this.option(hit, k)));
    const total = counts.reduce((sum, [, count]) => sum + count, 0);
    const parts = counts.filter(([, count]) => count).map(([kind, count]) => plural(count, kind.slice(0, -1)));
    this.note.textContent = total ? `${parts.join(", ")} found${total > rows.length ? "; all of them are under All numbers" : ""}` : "nothing found";
    this.open();
  }

  option({ kind, row }, k) {
    const [name, value] = ABOUT[kind](row);
    const parts = [make("i", {}, kind.slice(0, -1)), make("b", {}, name), make("span", {}, value)];
    // the pointer must not take the focus away before the row is chosen
    const keep = (event) => event.preventDefault();
    const properties = { id: `hit-${k}`, role: "option", "aria-selected": "false", title: name, onmousedown: keep, onclick: () => this.choose(k) };
    return make("li", properties, ...parts);
  }

  open() {
    $("found").hidden = false;
    this.list.hidden = !this.rows.length;
    this.input.setAttribute("aria-expanded", String(this.rows.length > 0));
    this.mark(-1);
  }

  close() {
    $("found").hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.mark(-1);
  }

  mark(k) {
    this.list.children[this.active]?.setAttribute("aria-selected", "false");
    this.active = k;
    const option = this.list.children[k];
    if (!option) return this.input.removeAttribute("aria-activedescendant");
    option.setAttribute("aria-selected", "true");
    option.scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", option.id);
  }

  choose(k) {
    const { kind, row } = this.rows[k];
    this.close();
    goTo(TABLES[kind].kind, row);
  }

  key(event) {
    const shown = !$("found").hidden;
    const count = this.rows.length;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && count) {
      event.preventDefault();
      if (!shown) this.open();
      // one place more than there are rows: the box itself, where nothing is marked
      this.mark(((this.active + 1 + step + count + 1) % (count + 1)) - 1);
    } else if (event.key === "Enter" && shown && count) {
      event.preventDefault();
      this.choose(Math.max(this.active, 0));
    } else if (event.key === "Escape" && shown) {
      event.preventDefault();
      this.close();
    }
  }
}
