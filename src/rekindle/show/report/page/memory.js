// The memory of the step over time: the baseline above the planned step, on one scale, with zoom.

const VIEW = { left: 62, right: 14, top: 30, gap: 50, bottom: 46, strip: 6 }; // pixels around and between the panels
const PANEL = { wide: 200, narrow: 150, narrowBelow: 600 }; // heights of a panel, by the width of the picture
const LEAST_SHARE = 1e-5; // of the step: the shortest stretch that can be shown
const MOSTLY_RESIDENT = 0.6; // share of the peak from which on the picture starts above what is held all step
const KEYS = "Arrow keys go from run to run, plus and minus zoom, 0 shows the whole step.";

class MemoryChart {
  constructor(part) {
    this.part = part;
    this.tracks = part.tracks.map((track) => new Track(part, track));
    this.whole = Math.max(...this.tracks.map((track) => track.length)) || 1;
    const away = this.tracks.flatMap((track) => (track.withAway ? [track.withAway.reduce((a, b) => Math.max(a, b))] : []));
    this.most = Math.max(part.budget ?? 0, part.peak, part.plainPeak, ...away);
    this.above = part.resident > MOSTLY_RESIDENT * Math.max(part.peak, part.plainPeak);
    [this.from, this.to] = [0, this.whole];
    const label = `Memory over time. ${KEYS}`;
    this.picture = svg("svg", { class: "chart memory", tabindex: 0, role: "group", "aria-label": label });
    this.cursor = new Cursor(this);
    new Gestures(this);
    this.frame = el("div", { class: "frame" }, this.picture);
    this.element = el("div", {}, this.legend(), this.controls(), this.frame);
    drawnToWidth(this.frame, (width) => this.resize(width));
  }

  legend() {
    const item = (key, words = PART_WORDS[key]) => swatch(key, words);
    const moves = this.tracks.some((track) => track.withAway);
    const shown = LAYERS.filter((key) => (key === "resident" ? this.part.resident > 0 : key !== "fetched" || moves));
    return el(
      "p", { class: "legend" },
      ...shown.map((key) => item(key)), moves ? item("away") : null, item("again", "runs again"),
      this.tracks.some((track) => track.waits.some(Boolean)) ? item("waits", "waits for copies") : null,
    );
  }

  controls() {
    const button = (label, title, onclick) =>
      el("button", { type: "button", title, "aria-label": title, onclick }, label);
    const box = el("input", { type: "checkbox", onchange: () => ((this.above = box.checked), this.draw()) });
    box.checked = this.above;
    const held = el("label", {}, box, `leave out the ${bytes(this.part.resident)} held all step`);
    return el(
      "p", { class: "controls" },
      button("+", "Zoom in", () => this.zoom(0.5)),
      button("−", "Zoom out", () => this.zoom(2)),
      button("‹", "Earlier", () => this.pan(-0.4)),
      button("›", "Later", () => this.pan(0.4)),
      button("Whole step", "Show the whole step", () => this.show(0, this.whole)),
      button("Peak", "Zoom to the peak of the plan", () => this.showPeak()),
      this.part.resident > 0 ? held : null,
    );
  }

  resize(width) {
    this.width = width;
    this.narrow = width < PANEL.narrowBelow;
    this.panel = this.narrow ? PANEL.narrow : PANEL.wide;
    this.height = VIEW.top + 2 * this.panel + VIEW.gap + VIEW.bottom;
    fill(this.picture, { viewBox: `0 0 ${width} ${this.height}`, height: this.height }, []);
    this.draw();
  }

  /** Width of the panels in pixels. */
  get inner() {
    return Math.max(20, Math.floor(this.width - VIEW.left - VIEW.right));
  }

  get isWhole() {
    return this.to - this.from > this.whole * 0.999;
  }

  x(moment) {
    return VIEW.left + ((moment - this.from) / (this.to - this.from)) * this.inner;
  }

  moment(x) {
    return this.from + ((x - VIEW.left) / this.inner) * (this.to - this.from);
  }

  /** The upper edge of a panel. */
  top(index) {
    return VIEW.top + index * (this.panel + VIEW.gap);
  }

  y(size, index) {
    return this.top(index) + this.panel - clamp((size - this.floor) / this.span, 0, 1) * this.panel;
  }

  show(from, to) {
    const length = clamp(to - from, LEAST_SHARE * this.whole, this.whole);
    this.from = clamp(from, 0, this.whole - length);
    this.to = this.from + length;
    this.draw();
  }

  /** Show `factor` times as much time; `moment` stays where it is. */
  zoom(factor, moment = this.cursor.moment ?? (this.from + this.to) / 2) {
    this.show(moment - (moment - this.from) * factor, moment + (this.to - moment) * factor);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  showPeak() {
    const planned = this.tracks[1];
    if (planned.peak < 0) return;
    const middle = planned.middle(planned.peak);
    this.show(middle - this.whole / 40, middle + this.whole / 40);
    this.cursor.select(1, planned.peak);
  }

  draw() {
    if (!this.width) return;
    this.floor = this.above ? this.part.resident : 0;
    this.span = (this.most - this.floor) * 1.18 || 1;
    Object.assign(this.picture.dataset, { from: this.from, to: this.to });
    const height = this.height - VIEW.top - VIEW.bottom;
    this.brush = svg("rect", { class: "brush", y: VIEW.top, height, visibility: "hidden" });
    const panels = this.tracks.map((track, i) => this.drawPanel(track, i));
    this.picture.replaceChildren(...panels, this.timeAxis(), this.brush, this.cursor.group);
    this.cursor.draw();
  }

  drawPanel(track, index) {
    const { best, again, waits } = track.columns(this.from, this.to, this.inner);
    track.best = best;
    const bottom = this.top(index) + this.panel;
    const group = svg("g", {}, this.grid(index));
    for (const [xs, runs] of stretches(best)) {
      const across = xs.map((x) => VIEW.left + x);
      const line = (heights) => steps(across, runs.map((run) => this.y(heights[run], index)));
      if (track.withAway) group.append(svg("path", { class: "fill away", d: `${line(track.withAway)}V${bottom}H${across[0]}Z` }));
      for (let layer = LAYERS.length - 1; layer >= (this.above ? 1 : 0); layer--) {
        const d = `${line(track.tops[layer])}V${bottom}H${across[0]}Z`;
        group.append(svg("path", { class: `fill ${LAYERS[layer]}`, d }));
      }
      group.append(svg("path", { class: "edge", d: line(track.total) }));
    }
    group.append(this.strip("again", again, bottom), this.strip("waits", waits, bottom), ...panelWords(this, track, index));
    return group;
  }

  grid(index) {
    const [, size] = byteUnit(this.span);
    const marks = ticks(this.floor / size, (this.floor + this.span) / size, 4);
    const line = (t) => {
      const y = round(this.y(t * size, index));
      const label = { class: "tick", x: VIEW.left - 8, y: y + 4, "text-anchor": "end" };
      return svg(
        "g", {},
        svg("line", { class: "grid", x1: VIEW.left, x2: VIEW.left + this.inner, y1: y, y2: y }),
        svg("text", label, tickLabel(t, marks)),
      );
    };
    return svg("g", {}, ...marks.map(line));
  }

  /** Where operators run again, or wait for copies: a strip below the panel. */
  strip(cls, shares, bottom) {
    const strip = svg("g", { class: cls });
    const level = (x) => Math.ceil(Math.min(1, shares[x]) * 4) / 4;
    for (let x = 0, end; x < shares.length; x = end) {
      for (end = x + 1; end < shares.length && level(end) === level(x); ) end++;
      if (!level(x)) continue;
      const box = { x: VIEW.left + x, width: end - x, y: bottom + 2, height: VIEW.strip };
      strip.append(svg("rect", { ...box, "fill-opacity": level(x) }));
    }
    return strip;
  }

  timeAxis() {
    const [unit, size] = timeUnit(this.to, this.part.unit);
    const marks = ticks(this.from / size, this.to / size, this.inner < 400 ? 4 : 8);
    const low = this.top(1) + this.panel + VIEW.strip + 16;
    const middle = { "text-anchor": "middle" };
    const mark = (t) => svg("text", { class: "tick", x: round(this.x(t * size)), y: low, ...middle }, tickLabel(t, marks));
    const turned = `translate(13 ${this.top(1) - VIEW.gap / 2}) rotate(-90)`;
    const held = `memory held${this.above ? " above that" : ""} (${byteUnit(this.span)[0]})`;
    const center = this.narrow ? this.width / 2 : VIEW.left + this.inner / 2; // the words fill a phone's width
    const title = { class: "soft", x: center, y: this.height - 6, ...middle };
    return svg(
      "g", { class: "time-axis" },
      ...marks.map(mark),
      svg("text", title, `${this.part.timeTitle} (${unit})`),
      svg("text", { class: "soft", transform: turned, ...middle }, held),
    );
  }
}
