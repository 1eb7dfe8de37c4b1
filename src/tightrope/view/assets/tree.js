// The module tree: what each module costs forward, backward and recomputed, with repeated layers folded.

const MOST_CHILDREN = 200;
/** What stands before the sum of all phases; the other phases stand behind it. */
const MAIN_PHASES = ["forward", "backward", "recompute"];

/** Sums over the tree, made once: time by phase and bytes at the peak of every module with all inside it. */
class ModuleTree {
  constructor() {
    const known = [...model.phases.keys()].filter((k) => model.phaseTimes[k] > 0);
    const main = MAIN_PHASES.map((name) => model.phases.indexOf(name)).filter((k) => known.includes(k));
    this.phases = [...main, ...known.filter((k) => !main.includes(k))];
    this.main = main.length;
    this.open = new Set();
    this.links();
    this.sums();
    this.signatures();
  }

  /** Children of module m: `child` from `first[m]` to `first[m + 1]`. */
  links() {
    const { numModules, moduleParent } = model;
    this.first = new Uint32Array(numModules + 2);
    for (let m = 1; m < numModules; m++) this.first[moduleParent[m] + 2] += 1;
    for (let m = 2; m < this.first.length; m++) this.first[m] += this.first[m - 1];
    this.child = new Uint32Array(numModules);
    for (let m = 1; m < numModules; m++) this.child[this.first[moduleParent[m] + 1]++] = m;
  }

  children(m) {
    return [...this.child.subarray(this.first[m], this.first[m + 1])];
  }

  sums() {
    const { numModules, numEvents, moduleParent, peakTick } = model;
    const width = this.phases.length;
    const column = new Map(this.phases.map((phase, k) => [phase, k]));
    this.times = new Float64Array(numModules * width);
    this.bytes = new Float64Array(numModules);
    for (let i = 0; i < numEvents; i++) {
      if (model.own[i]) this.times[model.eventModule[i] * width + column.get(model.phase[i])] += model.own[i];
    }
    for (const b of peakTick < 0 ? [] : model.alive(peakTick)) {
      if (model.creator[b] >= 0) this.bytes[model.eventModule[model.creator[b]]] += model.size[b];
    }
    for (let m = numModules - 1; m > 0; m--) {
      this.bytes[moduleParent[m]] += this.bytes[m];
      for (let k = 0; k < width; k++) this.times[moduleParent[m] * width + k] += this.times[m * width + k];
    }
  }

  /** Modules have equal signatures when their class, the ops of their forward and all inside them are alike. */
  signatures() {
    const forward = model.phases.indexOf("forward");
    const ops = Array.from({ length: model.numModules }, () => null);
    for (let i = 0; i < model.numEvents; i++) {
      if (model.phase[i] === forward) (ops[model.eventModule[i]] ??= new Set()).add(model.eventName[i]);
    }
    const known = new Map();
    this.signature = new Uint32Array(model.numModules);
    for (let m = model.numModules - 1; m >= 0; m--) {
      const inside = this.children(m).map((c) => `${model.moduleName[c]}:${this.signature[c]}`);
      const own = ops[m] ? [...ops[m]].sort((a, b) => a - b) : [];
      const text = `${model.moduleKind[m]}|${own.join()}|${inside.join()}`;
      if (!known.has(text)) known.set(text, known.size);
      this.signature[m] = known.get(text);
    }
  }

  /** The children of a module as rows: each alone, or many numbered ones that are alike as one. */
  groups(m) {
    const children = this.children(m);
    const alike = new Map();
    for (const c of children) {
      const numbered = /^\d+$/.test(model.strings[model.moduleName[c]].split(".").at(-1));
      const key = numbered ? this.signature[c] : `alone ${c}`;
      if (!alike.has(key)) alike.set(key, []);
      alike.get(key).push(c);
    }
    const foldable = (group) => group.length > 1 && (alike.size === 1 || this.first[group[0]] < this.first[group[0] + 1]);
    return [...alike.values()].flatMap((group) => (foldable(group) ? [group] : group.map((c) => [c])));
  }

  /** Rows below a module; a container that has nothing but one fold is that fold. */
  below(m, depth, around) {
    return this.groups(m).slice(0, MOST_CHILDREN).flatMap((group) => {
      if (group.length > 1) return this.fold(group, depth, around);
      const [only] = group;
      const inner = model.moduleOps[only] ? [] : this.groups(only);
      if (inner.length === 1 && inner[0].length > 1) return this.fold(inner[0], depth, around);
      const name = relative(model.path(only), around);
      return this.entry({ key: `m${only}`, name, members: [only], depth, inside: () => this.below(only, depth + 1, model.path(only)) });
    });
  }

  fold(members, depth, around) {
    const inside = () =>
      members.slice(0, MOST_CHILDREN).flatMap((m) => {
        const path = model.path(m);
        return this.entry({ key: `m${m}`, name: relative(path, around), members: [m], depth: depth + 1, inside: () => this.below(m, depth + 2, path) });
      });
    return this.entry({ key: `f${members[0]}`, name: `${relative(folded(members), around)} x${members.length}`, members, depth, inside });
  }

  entry(row) {
    row.leaf = row.members.length === 1 && this.first[row.members[0]] === this.first[row.members[0] + 1];
    return this.open.has(row.key) && !row.leaf ? [row, ...row.inside()] : [row];
  }

  rows() {
    const root = { key: "m0", name: "whole step", members: [0], depth: 0, leaf: true };
    return [root, ...this.below(0, 1, "")];
  }

  time(members, k) {
    return members.reduce((sum, m) => sum + this.times[m * this.phases.length + k], 0);
  }

  total(members) {
    return members.reduce((sum, m) => sum + model.moduleTime[m], 0);
  }

  held(members) {
    return members.reduce((sum, m) => sum + this.bytes[m], 0);
  }
}

function relative(path, around) {
  return around && path.startsWith(`${around}.`) ? path.slice(around.length + 1) : path;
}

/** "blocks.*" for all children of a module, "blocks.0-3" or "blocks.0,2,4" for some of them. */
function folded(members) {
  const paths = members.map((m) => model.path(m));
  const stem = paths[0].slice(0, paths[0].lastIndexOf(".") + 1);
  if (members.length === tree.children(model.moduleParent[members[0]]).length) return `${stem}*`;
  const numbers = paths.map((path) => Number(path.slice(stem.length)));
  const inRow = numbers.every((n, k) => !k || n === numbers[k - 1] + 1);
  if (inRow) return `${stem}${numbers[0]}-${numbers.at(-1)}`;
  return stem + (numbers.length > 6 ? `${numbers.slice(0, 6).join()}...` : numbers.join());
}

let tree = null;

/** What does a module cost: forward, backward and recompute? */
function answerModules(root) {
  tree ??= new ModuleTree();
  const rows = tree.rows();
  const together = (part, sum) => [...part.slice(0, tree.main), sum, ...part.slice(tree.main)];
  const phases = tree.phases.map((phase) => [spaced(model.phases[phase]), "time"]);
  const heads = ["module", ...together(phases, ["together", "time"]), ["share", "share"], ["at the peak", "bytes"]];
  const cells = rows.map((row) => [
    moduleCell(root, row),
    ...together(tree.phases.map((_, k) => tree.time(row.members, k)), tree.total(row.members)),
    shareOf(tree.total(row.members), model.ownTotal),
    tree.held(row.members),
  ]);
  const table = grid("Time of each module with all that is inside it, and the bytes that it made and that are alive at the peak", heads, cells);
  table.classList.add("tree");
  root.replaceChildren(answer(modulesSentence(rows)), table);
}

function modulesSentence(rows) {
  const outer = rows.filter((row) => row.depth === 1);
  if (!outer.length || !model.ownTotal) return "This trace names no modules with times.";
  const most = outer.reduce((a, b) => (tree.total(b.members) > tree.total(a.members) ? b : a));
  const parts = tree.phases
    .map((phase, k) => [spaced(model.phases[phase]), tree.time(most.members, k)])
    .filter(([, time]) => time)
    .map(([name, time]) => `${name} ${formatTime(time)}`);
  const time = tree.total(most.members);
  return `Module: ${most.name} takes most, ${formatTime(time)} (${formatShare(time, model.ownTotal)} of the operator time): ${parts.join(", ")}.`;
}

/** The name of a row: a button that unfolds it, and for a single module one that selects it. */
function moduleCell(root, row) {
  const cell = make("span", { class: "branch" });
  cell.style.setProperty("--depth", String(Math.min(row.depth, 8)));
  const many = row.members.length > 1;
  if (row.leaf) cell.append(make("span", { class: "twig" }));
  else cell.append(make("button", { class: many ? "link" : "twig", "aria-expanded": String(tree.open.has(row.key)), "aria-label": many ? undefined : `inside ${row.name}`, data: { branch: row.key }, onclick: () => unfold(root, row.key) }, `${tree.open.has(row.key) ? "▾" : "▸"}${many ? ` ${row.name}` : ""}`));
  if (!many) cell.append(link(row.name, "module", row.members[0]));
  return cell;
}

function unfold(root, key) {
  if (!tree.open.delete(key)) tree.open.add(key);
  answerModules(root);
  keepState();
  root.querySelector(`[data-branch="${key}"]`)?.focus({ preventScroll: true });
}
