// Shared helpers: the data, elements, numbers as people write them, the tooltip.

const data = JSON.parse(document.getElementById("data").textContent);
const SVG = document.getElementById("svg").namespaceURI;
const PARTS = ["saved", "recomputed", "fetched", "passing", "working"]; // as in held.py
const PART_WORDS = {
  resident: "held all step",
  saved: "saved for backward",
  recomputed: "recomputed",
  fetched: "brought back from the host",
  passing: "made and freed soon",
  working: "the running operator's own",
  away: "on the host alone",
};

const text = (position) => data.strings[position];

/** An HTML element. `options` holds attributes; keys that begin with "on" are listeners, and null leaves one out. */
function el(tag, options = {}, ...children) {
  return fill(document.createElement(tag), options, children);
}

/** The same for an SVG element. */
function svg(tag, options = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), options, children);
}

function fill(element, options, children) {
  for (const [key, value] of Object.entries(options)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A colour of the legend, and its words. */
const swatch = (key, words) => el("span", {}, el("i", { class: `swatch ${key}` }), words);

/** 1536 -> "1.5 KiB". */
function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(n) < 1024) return unit === "B" ? `${Math.round(n)} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

/** The binary unit in which sizes up to `most` read well: [name, bytes]. */
function byteUnit(most) {
  const units = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
  return units.find(([, size]) => most >= 2 * size) ?? ["B", 1];
}

/** The unit in which times up to `most` read well: [name, size]. `unit` is "seconds", "flops" or "unit". */
function timeUnit(most, unit) {
  if (unit === "unit") return ["runs", 1];
  const units =
    unit === "seconds"
      ? [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]
      : [["PFLOPs", 1e15], ["TFLOPs", 1e12], ["GFLOPs", 1e9], ["MFLOPs", 1e6], ["FLOPs", 1]];
  return units.find(([, size]) => most >= 2 * size) ?? units.at(-1);
}

/** 0.0123 -> "12.3 ms". */
function time(x, unit) {
  const [word, size] = timeUnit(Math.abs(x) / 0.5, unit);
  return `${short(x / size)} ${word}`;
}

/** 0.1234 -> "+12.3 %". */
function percent(x) {
  const shown = (100 * x).toFixed(1);
  return `${x >= 0 || shown === "-0.0" ? "+" : ""}${shown === "-0.0" ? "0.0" : shown} %`;
}

/** 0.1234 -> "12.3 %". */
const share = (x) => `${(100 * x).toFixed(1)} %`;

/** A share that was proven from below, never rounded up: 0.1299 -> "+12.9 %". As `percent_down` in shares.py. */
const percentDown = (x) => percent(Math.floor(x * 1000 + 1e-6) / 1000);

/** A number to about three digits, with commas. */
function short(x) {
  const digits = Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2;
  return x.toLocaleString("en", { maximumFractionDigits: digits });
}

/** About `about` round numbers from low to high: multiples of 1, 2, 2.5 or 5 times a power of ten. */
function ticks(low, high, about) {
  if (!(high > low)) return [low];
  const raw = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * (1 - 1e-9));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step || 0); // no -0
  return found;
}

/** The number at a tick, with as many digits as its neighbours need. */
function tickLabel(x, all) {
  const step = all.length > 1 ? all[1] - all[0] : Math.abs(x) || 1;
  const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step) + 1e-9)));
  const fine = Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 ? digits + 1 : digits;
  return x.toLocaleString("en", { minimumFractionDigits: fine, maximumFractionDigits: fine });
}

/** The text with its numbers and units held together: "5.9 s" stays on one line. */
const unbroken = (words) => words.replace(/([0-9]) (?=[%a-zA-Z])/g, "$1\u00a0");

/** A path of steps: from xs[i] to xs[i + 1] at height ys[i]. */
function steps(xs, ys) {
  let path = `M${round(xs[0])} ${round(ys[0])}`;
  for (let i = 0; i < ys.length; i++) path += `V${round(ys[i])}H${round(xs[i + 1])}`;
  return path;
}

const round = (x) => Math.round(x * 10) / 10;
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

/** The box that follows the pointer, or the selected run. */
const tooltip = {
  box: document.getElementById("tooltip"),

  /** Show rows of [name, value] under a heading, beside a point of the window. */
  show(heading, rows, x, y) {
    const list = rows.filter(([, value]) => value !== "").flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]);
    this.box.replaceChildren(el("strong", {}, heading), el("dl", {}, ...list));
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    const left = x + 14 + width < room ? x + 14 : x - 14 - width;
    const top = y + 16 + height < window.innerHeight ? y + 16 : y - 16 - height;
    this.box.style.left = `${clamp(left, 6, Math.max(6, room - width - 6))}px`;
    this.box.style.top = `${Math.max(6, top)}px`;
  },

  hide() {
    this.box.hidden = true;
  },
};

/** Call `draw` now and whenever the width of `element` changes. */
function drawnToWidth(element, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = element.clientWidth;
    if (width && width !== last) {
      last = width;
      draw(width);
    }
  }).observe(element);
}
