// Small helpers: elements, numbers for people, binary search.

const $ = (id) => document.getElementById(id);

/** Make an element; strings become text nodes, so that no name is ever read as markup. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") element.className = value;
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** Write with a fixed number of digits; ties go to the even digit, as in Python. */
function fixed(value, digits) {
  const scaled = value * 10 ** digits;
  const floor = Math.floor(scaled);
  if (scaled - floor !== 0.5) return value.toFixed(digits);
  return ((floor + (floor % 2)) / 10 ** digits).toFixed(digits);
}

function formatBytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = Math.abs(size);
  let power = 0;
  while (value >= 1024 && power < 4) {
    value /= 1024;
    power += 1;
  }
  const digits = power === 0 ? 0 : value < 100 ? 2 : 1;
  return `${size < 0 ? "-" : ""}${fixed(value, digits)} ${units[power]}`;
}

function formatTime(ns) {
  if (model.unit === "ticks") return `tick ${formatCount(Math.round(ns))}`;
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
    if (Math.abs(ns) >= scale) return `${fixed(ns / scale, 2)} ${unit}`;
  }
  return `${fixed(ns, 0)} ns`;
}

const TIMES = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]];
const SIZES = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];

/** One unit for a column of numbers, by its largest: [name, how to write a number without its unit]. */
function columnUnit(kind, largest) {
  const exact = ["", (value) => formatCount(Math.round(value))];
  if (kind === "count") return exact;
  if (kind === "exact") return ["B", exact[1]];
  if (kind === "share") return ["%", (value) => fixed(value, 1)];
  if (kind === "time" && model.unit === "ticks") return ["ticks", exact[1]];
  const units = kind === "time" ? TIMES : SIZES;
  const [unit, scale] = units.find(([, size]) => largest >= size) ?? units.at(-1);
  const write = (value) => {
    const size = Math.abs(value) / scale;
    if (scale === 1 || !value) return fixed(value, 0);
    return size < 0.00005 ? "<0.0001" : fixed(value / scale, size < 0.1 ? 4 : 2);
  };
  return [unit, write];
}

const GROUPS = new Intl.NumberFormat("en-US");
const formatCount = (count) => GROUPS.format(count);
const formatExact = (size) => `${formatCount(size)} B`;
const formatShare = (part, whole) => (whole ? `${fixed((100 * part) / whole, 1)} %` : "");
const shareOf = (part, whole) => (whole ? (100 * part) / whole : NaN);
const spaced = (name) => name.replaceAll("_", " ");
const plural = (count, noun) => `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;

/** First position whose value is > x. */
function upperBound(values, x, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** First position whose value is >= x. */
function lowerBound(values, x, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] >= x) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Level-of-detail pyramid: the position of the largest value in any range, in logarithmic time. */
class Pyramid {
  constructor(values) {
    this.values = values;
    this.levels = [];
    let count = values.length;
    while (count > 32) {
      const below = this.levels.at(-1);
      const size = Math.ceil(count / 32);
      const level = new Uint32Array(size);
      for (let block = 0; block < size; block++) {
        const end = Math.min(count, block * 32 + 32);
        let best = below ? below[block * 32] : block * 32;
        for (let k = block * 32 + 1; k < end; k++) {
          const candidate = below ? below[k] : k;
          if (values[candidate] > values[best]) best = candidate;
        }
        level[block] = best;
      }
      this.levels.push(level);
      count = size;
    }
  }

  /** First position of the largest value in [low, high); -1 when the range is empty. */
  best(low, high) {
    let found = -1;
    const offer = (position) => {
      const better = found < 0 || this.values[position] > this.values[found];
      if (better || (this.values[position] === this.values[found] && position < found)) found = position;
    };
    let depth = 0;
    while (low < high) {
      const level = depth ? this.levels[depth - 1] : null;
      while (low < high && (low % 32 || depth === this.levels.length)) offer(level ? level[low++] : low++);
      while (low < high && high % 32) offer(level ? level[--high] : --high);
      low /= 32;
      high /= 32;
      depth += 1;
    }
    return found;
  }
}
