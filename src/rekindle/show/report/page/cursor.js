// The run that is pointed at in a memory chart: its line, its dot and its facts.

class Cursor {
  constructor(chart) {
    this.chart = chart;
    this.at = null; // {panel, run}
    this.group = svg("g", { class: "mark", "pointer-events": "none" });
  }

  get track() {
    return this.chart.tracks[this.at.panel];
  }

  /** The moment in the middle of the run; null where there is none, or it is outside of the view. */
  get moment() {
    if (!this.at) return null;
    const moment = this.track.middle(this.at.run);
    return moment >= this.chart.from && moment <= this.chart.to ? moment : null;
  }

  select(panel, run) {
    this.at = { panel, run };
    this.draw();
  }

  clear() {
    this.at = null;
    this.group.replaceChildren();
    tooltip.hide();
  }

  /** Select the run that is drawn at a point of the picture. */
  moveTo({ x, y }) {
    const { chart } = this;
    const panel = y < chart.top(1) - VIEW.gap / 2 ? 0 : 1;
    const column = clamp(Math.round(x - VIEW.left), 0, chart.inner - 1);
    const run = chart.tracks[panel].best[column];
    const beside = x < VIEW.left - 4 || x > VIEW.left + chart.inner + 4;
    if (beside || run < 0) this.clear();
    else this.select(panel, run);
  }

  /** Go to the next run, or from nowhere to the peak of the plan. */
  step(by) {
    const { panel, run } = this.at ?? { panel: 1, run: this.chart.tracks[1].peak - by };
    this.select(panel, clamp(run + by, 0, this.chart.tracks[panel].runs.length - 1));
    if (this.moment === null) this.chart.pan(by > 0 ? 0.5 : -0.5);
  }

  toPanel(panel) {
    const moment = this.at ? this.track.ends[this.at.run] : this.chart.from;
    this.select(panel, this.chart.tracks[panel].at(moment));
  }

  draw() {
    this.group.replaceChildren();
    if (!this.at) return;
    if (this.moment === null) return tooltip.hide();
    const { chart, track } = this;
    const { panel, run } = this.at;
    const x = chart.x(this.moment);
    const y = chart.y(track.total[run], panel);
    const top = chart.top(panel);
    this.group.append(
      svg("line", { x1: x, x2: x, y1: top, y2: top + chart.panel }),
      svg("circle", { cx: x, cy: y, r: 4 }),
    );
    const box = chart.picture.getBoundingClientRect();
    const scale = box.width / chart.width;
    tooltip.show(this.words(), this.facts(), box.left + x * scale, box.top + y * scale);
  }

  words() {
    const { module, does, shape } = this.chart.part.ops;
    const op = this.track.runs[this.at.run];
    const details = [text(does[op]), text(shape[op])].filter(Boolean).join(", ");
    return text(module[op]) ? `${text(module[op])} (${details})` : details;
  }

  facts() {
    const { ops, resident, unit } = this.chart.part;
    const { track } = this;
    const { run } = this.at;
    const op = track.runs[run];
    const count = (n) => n.toLocaleString("en");
    const workspace = ops.workspace[op] ? ` + ${bytes(ops.workspace[op])} workspace` : "";
    const layers = track.parts.map((row, k) => [PART_WORDS[PARTS[k]], row[run] ? bytes(row[run]) : ""]);
    return [
      ["source", text(ops.source[op])],
      ["run", `${count(run + 1)} of ${count(track.runs.length)}, at ${time(track.start(run), unit)}`],
      ["takes", `${time(ops.time[op], unit)}${track.again[run] ? ", run again" : ""}`],
      ["waited for copies", track.waits[run] ? time(track.waits[run], unit) : ""],
      ["makes", `${bytes(ops.bytes[op])}${workspace}`],
      ["memory held", bytes(track.total[run])],
      [PART_WORDS.resident, resident ? bytes(resident) : ""],
      ...layers,
      [PART_WORDS.away, track.away[run] ? bytes(track.away[run]) : ""],
    ];
  }
}
