// Memory against extra time: the points of the curve, and the figures of the one that is chosen.

// Points of a larger cost than can be shown stand at the upper edge, hollow.
const PLAIN_PX = 75; // width of the words at the plain step
const CURVE = { left: 58, right: 18, top: 30, bottom: 46, height: 300 };

/** The plan and the points of its curve whose certificates were verified: only their bounds hold, and only for plans of the
 * step that they are of. */
const certified = (part) => [...part.curve, ...(part.curveStep === "captured" ? [] : [part])].filter((p) => p.verified);

class Curve {
  constructor(part) {
    this.part = part;
    this.points = part.curve;
    this.chosen = null; // a position in points; null: the plan itself
    this.picture = svg("svg", { class: "chart curve", role: "group", "aria-label": "Peak memory against extra cost" });
    this.frame = el("div", { class: "frame" }, this.picture);
    this.details = el("div", { class: "details", "aria-live": "polite" });
    this.element = el("div", { class: "columns" }, this.frame, this.details);
    this.scales();
    drawnToWidth(this.frame, (width) => this.draw(width));
    this.choose(null);
  }

  scales() {
    const { peak, plainPeak, overhead } = this.part;
    const left = Math.min(peak, ...this.points.map((p) => p.peak), ...certified(this.part).map((p) => p.bound));
    const right = Math.max(plainPeak, peak, ...this.points.map((p) => p.peak));
    const pad = 0.06 * (right - left) || 0.05 * right || 1;
    this.low = Math.max(0, left - pad);
    this.high = right + pad;
    const dearest = Math.max(overhead, ...this.points.map((p) => p.overhead));
    this.most = 1.12 * Math.max(0.02, Math.min(dearest, Math.max(1, 1.5 * overhead)));
  }

  x(size) {
    return CURVE.left + ((size - this.low) / (this.high - this.low)) * (this.width - CURVE.left - CURVE.right);
  }

  y(overhead) {
    const bottom = CURVE.height - CURVE.bottom;
    return bottom - clamp(overhead / this.most, 0, 1) * (bottom - CURVE.top);
  }

  draw(width) {
    this.width = width;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${CURVE.height}`);
    this.picture.setAttribute("height", CURVE.height);
    this.picture.replaceChildren(this.grid(), this.impossible(), this.stairs(), ...this.marks());
  }

  grid() {
    const [unit, size] = byteUnit(this.high);
    const bottom = CURVE.height - CURVE.bottom;
    const right = this.width - CURVE.right;
    const down = ticks(0, 100 * this.most, 5);
    const across = ticks(this.low / size, this.high / size, this.width < 460 ? 4 : 7);
    const row = (t) => {
      const y = round(this.y(t / 100));
      return svg("g", {}, svg("line", { class: "grid", x1: CURVE.left, x2: right, y1: y, y2: y }),
        svg("text", { class: "tick", x: CURVE.left - 7, y: y + 4, "text-anchor": "end" }, `${tickLabel(t, down)} %`));
    };
    const column = (t) => {
      const x = round(this.x(t * size));
      return svg("g", {}, svg("line", { class: "grid", x1: x, x2: x, y1: CURVE.top, y2: bottom }),
        svg("text", { class: "tick", x, y: bottom + 17, "text-anchor": "middle" }, tickLabel(t, across)));
    };
    const middle = (CURVE.left + right) / 2;
    const below = { class: "soft", x: middle, y: CURVE.height - 6, "text-anchor": "middle" };
    return svg("g", {}, ...down.map(row), ...across.map(column),
      svg("text", below, `peak memory of the step (${unit})`),
      svg("text", { class: "soft", x: CURVE.left, y: 14 }, `extra ${this.part.costWords}, % of the baseline's`));
  }

  /** The area in which no plan exists: each bound that was verified holds up to the extra cost of its plan. */
  impossible() {
    const all = certified(this.part).sort((a, b) => b.overhead - a.overhead);
    if (!all.length) return svg("g");
    const bottom = CURVE.height - CURVE.bottom;
    let path = `M${CURVE.left} ${bottom}V${round(this.y(all[0].overhead))}`;
    let furthest = 0;
    // from the dearest plan down: the largest bound so far holds
    const corners = [];
    for (const p of all) {
      furthest = Math.max(furthest, p.bound);
      corners.push([furthest, p.overhead]);
    }
    for (const [bound, overhead] of corners) path += `V${round(this.y(overhead))}H${round(this.x(bound))}`;
    return svg("path", { class: "never", d: `${path}V${bottom}Z` });
  }

  stairs() {
    const sorted = [...this.points].sort((a, b) => a.peak - b.peak);
    if (!sorted.length) return svg("g");
    let path = `M${round(this.x(sorted[0].peak))} ${round(this.y(sorted[0].overhead))}`;
    for (const p of sorted.slice(1)) path += `H${round(this.x(p.peak))}V${round(this.y(p.overhead))}`;
    return svg("path", { class: "stairs", d: `${path}H${this.width - CURVE.right}` });
  }

  marks() {
    const { peak, overhead, plainPeak, budget } = this.part;
    const found = [];
    if (budget !== null && budget >= this.low && budget <= this.high) {
      const x = round(this.x(budget));
      found.push(
        svg("line", { class: "budget-line", x1: x, x2: x, y1: CURVE.top, y2: CURVE.height - CURVE.bottom }),
        svg("text", { class: "limit-words halo", x: x + 6, y: CURVE.top + 11 }, "budget"),
      );
    }
    const plain = [round(this.x(plainPeak)), round(this.y(0))];
    const beside = this.points.findIndex((p) => this.x(p.peak) < plain[0] - PLAIN_PX); // the words stand above the curve
    const above = this.points.slice(0, beside < 0 ? undefined : beside + 1).map((p) => this.y(p.overhead));
    const words = { class: "tick halo", x: plain[0], y: round(Math.min(plain[1], ...above)) - 11, "text-anchor": "end" };
    found.push(
      svg("circle", { class: "plain", cx: plain[0], cy: plain[1], r: 5 }), svg("text", words, "baseline"),
    );
    this.points.forEach((p, i) => found.push(this.mark(i, p.peak, p.overhead)));
    found.push(this.mark(null, peak, overhead));
    return found;
  }

  /** The mark of a point, or of the plan itself where `index` is null. */
  mark(index, peak, overhead) {
    const words = `${index === null ? "this plan: " : ""}${bytes(peak)}, ${percent(overhead)}`;
    const cls = `point${index === null ? " own" : ""}${overhead > this.most ? " beyond" : ""}`;
    const at = { cx: round(this.x(peak)), cy: round(this.y(overhead)) };
    const choose = () => this.choose(index);
    const options = {
      class: cls,
      role: "button",
      tabindex: 0,
      "aria-label": words,
      "aria-pressed": String(this.chosen === index),
      "data-point": index ?? "plan",
      onclick: choose,
      onkeydown: (e) => ["Enter", " "].includes(e.key) && (e.preventDefault(), choose()),
    };
    return svg(
      "g", options,
      svg("circle", { class: "reach", ...at, r: 13 }),
      svg("circle", { class: "shown", ...at, r: index === null ? 6.5 : 4.5 }),
      svg("title", {}, words),
    );
  }

  choose(index) {
    this.chosen = index;
    for (const mark of this.picture.querySelectorAll("[data-point]")) {
      mark.setAttribute("aria-pressed", String(mark.dataset.point === String(index ?? "plan")));
    }
    const p = index === null ? { ...this.part, flops: null } : this.points[index];
    const { costWords, plainPeak } = this.part;
    const change = plainPeak ? ` (${percent(p.peak / plainPeak - 1)})` : "";
    const of = index !== null && this.part.copies ? "without copies " : "";
    const claim = (words) => (p.verified ? `no plan ${of}${words}` : `its file says: none ${of}${words}`);
    const rows = [
      ["peak of the step", `${bytes(p.peak)}${change}`],
      [`extra ${costWords}`, percent(p.overhead)],
      ["extra FLOPs", p.flops === null || costWords === "FLOPs" ? "" : percent(p.flops)],
      [claim("this cheap below"), bytes(p.bound)],
      [claim("this small cheaper than"), index === null && !this.part.isBudget ? "" : percentDown(p.least)],
      ["certificate", p.verified ? p.status ?? "" : "not verified"],
    ].filter(([, value]) => value !== "");
    const list = el("dl", {}, ...rows.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
    const heading = el("h3", {}, index === null ? "This plan" : `Point ${index + 1} of ${this.points.length}`);
    const ask = index === null ? null : el("p", { class: "soft" }, "to get it: ", el("code", {}, `budget=${p.peak}`));
    this.details.replaceChildren(heading, list, ...(index === null ? [] : [this.small(p), ask]));
  }

  /** The memory of a point over time, beside this plan's, in a small picture. */
  small(p) {
    if (!p.ends.length) {
      const none = this.part.tracks[1].runs.length
        ? "Its memory over time is not known: a file of points holds no schedule."
        : "Nothing runs in this graph.";
      return el("p", { class: "soft" }, none);
    }
    const [width, height] = [320, 110];
    const own = this.part.tracks[1];
    const most = Math.max(p.peak, this.part.peak) * 1.05 || 1;
    const low = this.part.resident > 0.6 * most ? this.part.resident : 0;
    const ends = new Track(this.part, own);
    const long = Math.max(p.ends.at(-1), ends.length) || 1;
    const x = (moment) => (moment / long) * width;
    const y = (size) => height - clamp((size - low) / (most - low), 0, 1) * height;
    const line = steps([0, ...p.ends].map(x), p.bytes.map(y));
    const columns = ends.columns(0, long, width).best;
    const shadow = stretches(columns).map(([xs, runs]) => steps(xs, runs.map((run) => y(ends.total[run])))).join("");
    const label = `memory over time, at most ${bytes(p.peak)}`;
    const floor = low ? ", above what is held all step" : "";
    return el(
      "figure", { class: "small" },
      svg(
        "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
        svg("path", { class: "fill saved", d: `${line}V${height}H0Z` }),
        svg("path", { class: "edge", d: line }),
        svg("path", { class: "shadow", d: shadow }),
      ),
      el("figcaption", {}, `its memory over ${time(p.ends.at(-1), this.part.unit)}${floor}; dashed: this plan's`),
    );
  }
}
