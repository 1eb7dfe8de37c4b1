// The state of the page in the fragment of its address, so that a link shows the same tab, row and stretch.
// A fragment is written by anybody: only whole numbers within bounds and known names are taken from it.

const LINKED = {
  buffer: () => model.numBuffers,
  event: () => model.numEvents,
  module: () => model.numModules,
  line: () => model.header.lines.length,
  instant: () => model.end + 1,
};

function stateText() {
  const state = new URLSearchParams({ tab: openTab.now });
  if (LINKED[selection.kind]) state.set("at", `${selection.kind}.${Math.round(selection.id)}`);
  if (view.low > 0 || view.high < model.end) state.set("view", `${Math.round(view.low)}.${Math.round(view.high)}`);
  if (tree?.open.size) state.set("open", [...tree.open].slice(0, 50).join("."));
  return String(state);
}

/** Write the state soon: browsers refuse an address that changes with every move of the pointer. */
function keepState() {
  if (!document.documentElement.dataset.ready) return;
  clearTimeout(keepState.timer);
  keepState.timer = setTimeout(() => {
    keepState.written = `#${stateText()}`;
    history.replaceState(null, "", keepState.written);
  }, 250);
}

const whole = (text) => (/^\d{1,16}$/.test(text ?? "") ? Number(text) : NaN);

function readState() {
  if (location.hash.length < 2 || location.hash === keepState.written) return;
  const state = new URLSearchParams(location.hash.slice(1));
  const [low, high] = (state.get("view") ?? "").split(".").map(whole);
  if (low < high && high <= model.end + 1) zoom(low, high);
  const open = (state.get("open") ?? "").split(".").filter((key) => /^[mf]\d{1,9}$/.test(key)).slice(0, 50);
  if (open.length) {
    tree ??= new ModuleTree();
    tree.open = new Set(open);
  }
  const tab = state.get("tab");
  if (tab === "tables" || Object.hasOwn(TABS, tab ?? "")) openTab(tab);
  const [kind, id] = (state.get("at") ?? "").split(".");
  if (Object.hasOwn(LINKED, kind) && whole(id) < LINKED[kind]()) select(kind, whole(id));
}
