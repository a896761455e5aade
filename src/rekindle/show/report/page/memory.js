// The memory of the step over time: the plain step above the planned one, with zoom and hover.

const LAYERS = ["resident", ...PARTS]; // from the bottom to the top
const VIEW = { left: 62, right: 14, top: 30, gap: 50, bottom: 46, strip: 6 }; // pixels around and between the panels
const LEAST_SHARE = 1e-5; // of the step: the shortest stretch that can be shown

/** One schedule, ready to be drawn: the time at which each run ends, and the top of each layer during it. */
class Track {
  constructor(part, track) {
    Object.assign(this, track);
    const count = track.runs.length;
    this.ends = new Float64Array(count);
    this.tops = LAYERS.map(() => new Float64Array(count));
    this.again = new Uint8Array(count);
    const ran = new Set();
    let now = 0;
    for (let i = 0; i < count; i++) {
      const op = track.runs[i];
      this.again[i] = ran.has(op) ? 1 : 0;
      ran.add(op);
      now += part.ops.time[op];
      this.ends[i] = now;
      let top = part.resident;
      this.tops[0][i] = top;
      track.parts.forEach((row, k) => (this.tops[k + 1][i] = top += row[i]));
    }
    this.total = this.tops.at(-1);
    this.length = now;
  }

  start(run) {
    return run > 0 ? this.ends[run - 1] : 0;
  }

  /** The first run that ends at `moment` or later. */
  at(moment) {
    let low = 0;
    let high = this.ends.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ends[middle] < moment) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** For each of `pixels` columns of the view: the run that holds most there (-1: none), and the share of time run again. */
  columns(from, to, pixels) {
    const best = new Int32Array(pixels).fill(-1);
    const again = new Float64Array(pixels);
    const scale = pixels / (to - from);
    for (let run = this.at(from); run < this.ends.length && this.start(run) <= to; run++) {
      const begin = (this.start(run) - from) * scale;
      const end = (this.ends[run] - from) * scale;
      const last = Math.min(pixels - 1, Math.floor(end));
      for (let x = Math.max(0, Math.floor(begin)); x <= last; x++) {
        if (best[x] < 0 || this.total[run] > this.total[best[x]]) best[x] = run;
        if (this.again[run]) again[x] += Math.max(0, Math.min(end, x + 1) - Math.max(begin, x));
      }
    }
    return { best, again };
  }
}

class MemoryChart {
  constructor(part) {
    this.part = part;
    this.tracks = part.tracks.map((track) => new Track(part, track));
    this.whole = Math.max(...this.tracks.map((track) => track.length)) || 1;
    this.most = Math.max(part.budget ?? 0, part.peak, part.plainPeak);
    this.above = part.resident > 0.6 * Math.max(part.peak, part.plainPeak);
    this.from = 0;
    this.to = this.whole;
    this.cursor = null; // {track, run}
    this.pointers = new Map();
    this.picture = svg("svg", {
      class: "chart memory", tabindex: 0, role: "group",
      "aria-label": "Memory over time. Arrow keys go from run to run, plus and minus zoom, 0 shows the whole step.",
    });
    this.listen();
    this.frame = el("div", { class: "frame" }, this.picture);
    this.element = el("div", {}, this.legend(), this.controls(), this.frame);
    drawnToWidth(this.frame, (width) => this.resize(width));
  }

  legend() {
    const item = (key) => el("span", {}, el("i", { class: `swatch ${key}` }), PART_WORDS[key]);
    const words = LAYERS.filter((key) => key !== "resident" || this.part.resident > 0).map(item);
    return el("p", { class: "legend" }, ...words, el("span", {}, el("i", { class: "swatch again" }), "runs again"));
  }

  controls() {
    const button = (label, title, onclick) => el("button", { type: "button", title, "aria-label": title, onclick }, label);
    const box = el("input", { type: "checkbox", onchange: () => ((this.above = box.checked), this.draw()) });
    box.checked = this.above;
    const held = `leave out the ${bytes(this.part.resident)} held all step`;
    return el(
      "p", { class: "controls" },
      button("+", "Zoom in", () => this.zoom(0.5)), button("−", "Zoom out", () => this.zoom(2)),
      button("‹", "Earlier", () => this.pan(-0.4)), button("›", "Later", () => this.pan(0.4)),
      button("Whole step", "Show the whole step", () => this.show(0, this.whole)),
      button("Peak", "Zoom to the peak of the plan", () => this.showPeak()),
      this.part.resident > 0 ? el("label", {}, box, held) : null,
    );
  }

  resize(width) {
    this.width = width;
    this.narrow = width < 600;
    this.panel = this.narrow ? 150 : 200;
    this.height = VIEW.top + 2 * this.panel + VIEW.gap + VIEW.bottom;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.picture.setAttribute("height", this.height);
    this.draw();
  }

  get inner() {
    return Math.max(20, Math.floor(this.width - VIEW.left - VIEW.right));
  }

  x(moment) {
    return VIEW.left + ((moment - this.from) / (this.to - this.from)) * this.inner;
  }

  moment(x) {
    return this.from + ((x - VIEW.left) / this.inner) * (this.to - this.from);
  }

  top(index) {
    return VIEW.top + index * (this.panel + VIEW.gap);
  }

  y(size, index) {
    return this.top(index) + this.panel - clamp((size - this.floor) / this.span, 0, 1) * this.panel;
  }

  // -- view ----------------------------------------------------------------------------------------------------------

  show(from, to) {
    const length = clamp(to - from, LEAST_SHARE * this.whole, this.whole);
    const begin = clamp(from, 0, this.whole - length);
    [this.from, this.to] = [begin, begin + length];
    this.draw();
  }

  /** Show `factor` times as much time; `moment` stays where it is. */
  zoom(factor, moment = this.cursorMoment() ?? (this.from + this.to) / 2) {
    this.show(moment - (moment - this.from) * factor, moment + (this.to - moment) * factor);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  showPeak() {
    const planned = this.tracks[1];
    if (planned.peak < 0) return;
    const middle = (planned.start(planned.peak) + planned.ends[planned.peak]) / 2;
    this.show(middle - this.whole / 40, middle + this.whole / 40);
    this.select(1, planned.peak);
  }

  cursorMoment() {
    if (!this.cursor) return null;
    const track = this.tracks[this.cursor.track];
    const moment = (track.start(this.cursor.run) + track.ends[this.cursor.run]) / 2;
    return moment >= this.from && moment <= this.to ? moment : null;
  }

  // -- drawing -------------------------------------------------------------------------------------------------------

  draw() {
    if (!this.width) return;
    this.floor = this.above ? this.part.resident : 0;
    this.span = (this.most - this.floor) * 1.18 || 1;
    this.picture.dataset.from = this.from;
    this.picture.dataset.to = this.to;
    this.mark = svg("g", { class: "mark", "pointer-events": "none" });
    this.brush = svg("rect", { class: "brush", y: VIEW.top, height: this.height - VIEW.top - VIEW.bottom, visibility: "hidden" });
    this.picture.replaceChildren(
      ...this.tracks.map((track, i) => this.drawPanel(track, i)), this.timeAxis(), this.brush, this.mark,
    );
    if (this.cursor) this.drawCursor();
  }

  drawPanel(track, index) {
    const { best, again } = track.columns(this.from, this.to, this.inner);
    track.best = best;
    const bottom = this.top(index) + this.panel;
    const group = svg("g", {}, this.grid(index));
    for (const [xs, runs] of stretches(best)) {
      const across = xs.map((x) => VIEW.left + x);
      for (let layer = LAYERS.length - 1; layer >= (this.above ? 1 : 0); layer--) {
        const path = steps(across, runs.map((run) => this.y(track.tops[layer][run], index)));
        group.append(svg("path", { class: `fill ${LAYERS[layer]}`, d: `${path}V${bottom}H${across[0]}Z` }));
      }
      group.append(svg("path", { class: "edge", d: steps(across, runs.map((run) => this.y(track.total[run], index))) }));
    }
    group.append(this.againStrip(again, bottom), this.lines(index), ...this.words(track, index));
    return group;
  }

  grid(index) {
    const [, size] = byteUnit(this.span);
    const marks = ticks(this.floor / size, (this.floor + this.span) / size, 4);
    const line = (t) => {
      const y = round(this.y(t * size, index));
      return svg(
        "g", {}, svg("line", { class: "grid", x1: VIEW.left, x2: VIEW.left + this.inner, y1: y, y2: y }),
        svg("text", { class: "tick", x: VIEW.left - 8, y: y + 4, "text-anchor": "end" }, tickLabel(t, marks)),
      );
    };
    return svg("g", {}, ...marks.map(line));
  }

  /** Where operators run again: a strip below the panel. */
  againStrip(again, bottom) {
    const strip = svg("g", { class: "again" });
    for (let x = 0; x < again.length; ) {
      const level = Math.ceil(Math.min(1, again[x]) * 4);
      let end = x + 1;
      while (end < again.length && Math.ceil(Math.min(1, again[end]) * 4) === level) end++;
      if (level) {
        const at = { x: VIEW.left + x, width: end - x, y: bottom + 2, height: VIEW.strip, "fill-opacity": level / 4 };
        strip.append(svg("rect", at));
      }
      x = end;
    }
    return strip;
  }

  lines(index) {
    const { budget, bound } = this.part;
    const planned = this.tracks[1];
    const peakAt = planned.peak < 0 ? 0 : this.x(planned.ends[planned.peak]);
    const left = peakAt > VIEW.left + 0.55 * this.inner;
    const at = left ? { x: VIEW.left + 6, "text-anchor": "start" } : { x: VIEW.left + this.inner - 6, "text-anchor": "end" };
    const line = (size, cls, words, below) => {
      if (size < this.floor) return null;
      const y = round(this.y(size, index));
      return svg(
        "g", { class: cls }, svg("line", { x1: VIEW.left, x2: VIEW.left + this.inner, y1: y, y2: y }),
        svg("text", { ...at, class: "halo", y: below ? y + 15 : y - 6 }, words),
      );
    };
    const limit = this.narrow && index === 1 ? "budget" : `budget ${bytes(budget)}`;
    const certified = this.narrow ? "certified" : `certified: no plan this cheap below ${bytes(bound)}`;
    return svg(
      "g", {}, budget === null ? null : line(budget, "budget", limit, false), index === 1 ? line(bound, "bound", certified, true) : null,
    );
  }

  /** The panel's heading, the end of forward, and the peak. */
  words(track, index) {
    const top = this.top(index);
    const runs = track.again.reduce((a, b) => a + b, 0);
    const again = `, ${runs.toLocaleString("en")} ${this.narrow ? "" : "operator "}runs again`;
    const facts = `${time(track.length, this.part.unit)}${runs ? again : ""}`;
    const found = [
      svg("text", { class: "heading", x: VIEW.left, y: top - 12 }, track.label === "plain" ? "Plain step" : "Planned step",
        svg("tspan", { class: "soft", dx: 10 }, facts)),
    ];
    if (track.boundary !== null && track.runs.length) {
      const x = round(this.x(track.ends[track.boundary]));
      if (x > VIEW.left && x < VIEW.left + this.inner) {
        found.push(
          svg("line", { class: "phase", x1: x, x2: x, y1: top, y2: top + this.panel }),
          svg("text", { class: "tick halo", x: x - 5, y: top + this.panel - 6, "text-anchor": "end" }, "forward"),
          svg("text", { class: "tick halo", x: x + 5, y: top + this.panel - 6 }, "backward"),
        );
      }
    }
    if (track.peak >= 0) {
      const x = this.x((track.start(track.peak) + track.ends[track.peak]) / 2);
      const y = this.y(track.total[track.peak], index);
      if (x >= VIEW.left && x <= VIEW.left + this.inner) {
        const anchor = x < VIEW.left + 90 ? "start" : x > VIEW.left + this.inner - 90 ? "end" : "middle";
        // the words stand above the budget's line where they would lie on it
        const line = this.part.budget === null ? null : this.y(this.part.budget, index);
        const above = line !== null && line <= y && y - line < 22 ? line - 6 : y - 9;
        found.push(
          svg("circle", { class: "dot", cx: round(x), cy: round(y), r: 4 }),
          svg("text", { class: "peak halo", x: round(x), y: round(above), "text-anchor": anchor }, `peak ${bytes(track.total[track.peak])}`),
        );
      }
    }
    return found;
  }

  timeAxis() {
    const [unit, size] = timeUnit(this.to, this.part.unit);
    const marks = ticks(this.from / size, this.to / size, this.inner < 400 ? 4 : 8);
    const bottom = this.top(1) + this.panel;
    const mark = (t) =>
      svg("text", { class: "tick", x: round(this.x(t * size)), y: bottom + VIEW.strip + 16, "text-anchor": "middle" }, tickLabel(t, marks));
    const middle = VIEW.left + this.inner / 2;
    return svg(
      "g", { class: "time-axis" }, ...marks.map(mark),
      svg("text", { class: "soft", x: middle, y: this.height - 6, "text-anchor": "middle" }, `${this.part.timeTitle} (${unit})`),
      svg("text", { class: "soft", "text-anchor": "middle", transform: `translate(13 ${this.top(1) - VIEW.gap / 2}) rotate(-90)` },
        `memory held${this.above ? " above that" : ""} (${byteUnit(this.span)[0]})`),
    );
  }

  // -- hover ---------------------------------------------------------------------------------------------------------

  /** The run that is drawn at a point of the picture: {track, run}, or null. */
  runAt(x, y) {
    const index = y < this.top(1) - VIEW.gap / 2 ? 0 : 1;
    const column = clamp(Math.round(x - VIEW.left), 0, this.inner - 1);
    const run = this.tracks[index].best[column];
    return x < VIEW.left - 4 || x > VIEW.left + this.inner + 4 || run < 0 ? null : { track: index, run };
  }

  select(track, run) {
    this.cursor = { track, run };
    this.drawCursor();
  }

  unselect() {
    this.cursor = null;
    this.mark?.replaceChildren();
    tooltip.hide();
  }

  drawCursor() {
    const { track: index, run } = this.cursor;
    const track = this.tracks[index];
    const x = this.x((track.start(run) + track.ends[run]) / 2);
    this.mark.replaceChildren();
    if (x < VIEW.left - 1 || x > VIEW.left + this.inner + 1) return tooltip.hide();
    const y = this.y(track.total[run], index);
    this.mark.append(
      svg("line", { x1: x, x2: x, y1: this.top(index), y2: this.top(index) + this.panel }), svg("circle", { cx: x, cy: y, r: 4 }),
    );
    const box = this.picture.getBoundingClientRect();
    const scale = box.width / this.width;
    tooltip.show(this.opWords(track.runs[run]), this.facts(track, run), box.left + x * scale, box.top + y * scale);
  }

  opWords(op) {
    const { module, does, shape } = this.part.ops;
    const details = [text(does[op]), text(shape[op])].filter(Boolean).join(", ");
    return text(module[op]) ? `${text(module[op])} (${details})` : details;
  }

  facts(track, run) {
    const { ops, resident, unit } = this.part;
    const op = track.runs[run];
    const layers = track.parts.map((row, k) => [PART_WORDS[PARTS[k]], row[run] ? bytes(row[run]) : ""]);
    return [
      ["source", text(ops.source[op])],
      ["run", `${(run + 1).toLocaleString("en")} of ${track.runs.length.toLocaleString("en")}, at ${time(track.start(run), unit)}`],
      ["takes", `${time(ops.time[op], unit)}${track.again[run] ? ", run again" : ""}`],
      ["makes", `${bytes(ops.bytes[op])}${ops.workspace[op] ? ` + ${bytes(ops.workspace[op])} workspace` : ""}`],
      ["memory held", bytes(track.total[run])],
      ["held all step", resident ? bytes(resident) : ""],
      ...layers,
    ];
  }

  // -- events --------------------------------------------------------------------------------------------------------

  listen() {
    const on = (name, handle) => this.picture.addEventListener(name, handle, { passive: false });
    on("pointerdown", (e) => this.down(e));
    on("pointermove", (e) => this.move(e));
    on("pointerup", (e) => this.up(e));
    on("pointercancel", (e) => this.up(e, true));
    on("pointerleave", (e) => this.pointers.size || (e.pointerType !== "touch" && this.unselect()));
    on("dblclick", () => this.show(0, this.whole));
    on("wheel", (e) => this.wheel(e));
    on("keydown", (e) => this.key(e));
    on("blur", () => this.unselect());
  }

  point(e) {
    const box = this.picture.getBoundingClientRect();
    const scale = this.width / box.width;
    return { x: (e.clientX - box.left) * scale, y: (e.clientY - box.top) * scale };
  }

  down(e) {
    if (e.button) return;
    const at = this.point(e);
    this.pointers.set(e.pointerId, { ...at, first: at });
    this.view = { from: this.from, to: this.to };
    this.dragged = false;
    this.picture.setPointerCapture(e.pointerId);
    this.hover(at);
  }

  move(e) {
    const at = this.point(e);
    const held = this.pointers.get(e.pointerId);
    if (!held) return this.hover(at);
    Object.assign(held, at);
    if (this.pointers.size === 2) return this.pinch();
    const by = at.x - held.first.x;
    if (Math.abs(by) < 6 && !this.dragged) return;
    this.dragged = true;
    if (e.pointerType === "touch") {
      const moments = (by / this.inner) * (this.view.to - this.view.from);
      return this.show(this.view.from - moments, this.view.to - moments);
    }
    const [left, right] = this.stretch(held);
    tooltip.hide();
    fill(this.brush, { x: left, width: right - left, visibility: "visible" }, []);
  }

  up(e, cancelled = false) {
    const held = this.pointers.get(e.pointerId);
    this.pointers.delete(e.pointerId);
    this.brush?.setAttribute("visibility", "hidden");
    if (!held || cancelled || !this.dragged || e.pointerType === "touch") return;
    const [left, right] = this.stretch(held);
    if (right - left > 5) this.show(this.moment(left), this.moment(right));
  }

  /** Left and right end of what the pointer was dragged over. */
  stretch(held) {
    const ends = [held.first.x, held.x].map((x) => clamp(x, VIEW.left, VIEW.left + this.inner));
    return ends.sort((a, b) => a - b);
  }

  /** Two fingers: the moments under them stay under them. */
  pinch() {
    const [a, b] = [...this.pointers.values()];
    const { from, to } = this.view;
    const moment = (x) => from + ((x - VIEW.left) / this.inner) * (to - from);
    const apart = Math.max(10, Math.abs(a.x - b.x));
    const before = Math.max(10, Math.abs(a.first.x - b.first.x));
    const length = ((to - from) * before) / apart;
    const middle = moment((a.first.x + b.first.x) / 2);
    const begin = middle - (((a.x + b.x) / 2 - VIEW.left) / this.inner) * length;
    this.dragged = true;
    tooltip.hide();
    this.show(begin, begin + length);
  }

  hover(at) {
    const found = this.runAt(at.x, at.y);
    if (found) this.select(found.track, found.run);
    else this.unselect();
  }

  wheel(e) {
    const whole = this.to - this.from > this.whole * 0.999;
    if (e.deltaY > 0 && whole) return; // the page scrolls on
    e.preventDefault();
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) return this.pan(e.deltaX / this.inner);
    this.zoom(Math.exp(clamp(e.deltaY, -120, 120) / 300), clamp(this.moment(this.point(e).x), this.from, this.to));
  }

  key(e) {
    const act = {
      ArrowLeft: () => this.next(-1), ArrowRight: () => this.next(1), ArrowUp: () => this.toPanel(0), ArrowDown: () => this.toPanel(1),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(0, this.whole),
      Escape: () => this.unselect(),
    }[e.key];
    if (!act) return;
    e.preventDefault();
    act();
  }

  next(by) {
    const { track, run } = this.cursor ?? { track: 1, run: this.tracks[1].peak - by };
    const to = clamp(run + by, 0, this.tracks[track].runs.length - 1);
    this.select(track, to);
    const moment = this.tracks[track].ends[to];
    if (moment < this.from || moment > this.to) this.pan(by > 0 ? 0.5 : -0.5);
  }

  toPanel(index) {
    const moment = this.cursor ? this.tracks[this.cursor.track].ends[this.cursor.run] : this.from;
    this.select(index, this.tracks[index].at(moment));
  }
}

/** Neighbouring columns with a run, as [xs, runs]: runs[i] from xs[i] to xs[i + 1]; columns of one run are joined. */
function stretches(best) {
  const found = [];
  for (let x = 0; x < best.length; x++) {
    if (best[x] < 0) continue;
    const last = found.at(-1);
    if (!last || last[0].at(-1) !== x) found.push([[x, x + 1], [best[x]]]);
    else if (last[1].at(-1) === best[x]) last[0][last[0].length - 1] = x + 1;
    else {
      last[0].push(x + 1);
      last[1].push(best[x]);
    }
  }
  return found;
}
