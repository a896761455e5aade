// Builds the page: a heading with the verdict, then the sections of the plan, or of each part of the model.

const WORDS = {
  memory:
    "Drag or turn the wheel to zoom, on a phone use two fingers. Point at the picture to see the operator that runs.",
  holders: "Areas are bytes. Numbered modules with the same operators are one. Choose a tile to look inside.",
  curve:
    "Every point is a plan of the same step; none of them is better in both. Choose a point to see its figures.",
  grey: (step, copies) =>
    ` In the grey area no plan${step ? ` of the ${step} step` : ""}${copies ? " without copies" : ""} exists, as certified.`,
  copies: " This plan also copies values to the host, and the search for these points copied none.",
  curveOf: {
    captured: " They are plans of the captured step, and this plan is of a rewritten one.",
    rewritten: " They are plans of the step as rewritten.",
  },
  rewriting:
    "Operators of the captured step were exchanged for others, which hold less memory. In the pictures the rewritten step, " +
    "each operator once, stands in place of the baseline.",
  noCurve:
    "This report was made without the memory/time curve. To see it here: plan.to_html(path, frontier=True), or " +
    "rekindle report plan.json --frontier quick.",
  recomputed:
    "Operators that run again, dearest first: what they add, and the bytes of their results that are free " +
    "between two runs.",
  certificate: "Proven for every possible schedule of this step, not only for those that the search looked at.",
  unverified: "As the plan's file says. It could not be proven again in short time: nothing in it is verified.",
  ways: (compiled) =>
    `Bytes that the parts of a line together keep from forward for backward. The frame is what they keep ` +
    `${compiled ? "compiled without a plan" : "in the plain step"}: backward makes again what a bar lacks of it.`,
  part: "One part by itself, with its parameters, gradients and inputs.",
  partCurve:
    " A part is also chosen for what it holds between its forward and its backward, which this curve does not show.",
};

function section(title, words, ...content) {
  return el("section", {}, el("h2", {}, title), words ? el("p", { class: "soft" }, words) : null, ...content);
}

function figure(label, value, note) {
  return el(
    "div", { class: "tile-figure" },
    el("span", { class: "label" }, label), el("strong", {}, value), el("span", { class: "soft" }, unbroken(note)),
  );
}

function figures(part) {
  const { peak, plainPeak, overhead, bound, gap, verified, isBudget } = part;
  const least = percentDown(part.least);
  const what = part.title ? "part" : "step";
  const claim = isBudget ? `${verified ? "proven" : "its file says"}: at least ${least}` : "of the baseline's";
  const price = part.cost === "seconds" && part.unit !== "seconds" ? "no op has seconds" : claim;
  const step = rewritten(part) ? " for the rewritten step" : "";
  return el(
    "div", { class: "figures" },
    figure(`peak of the ${what}`, bytes(peak), `baseline ${bytes(plainPeak)}`),
    figure("memory saved", bytes(plainPeak - peak), `${share(1 - peak / (plainPeak || peak || 1))} of the baseline's peak`),
    figure(`extra ${part.costWords}`, percent(overhead), price),
    figure("no plan this cheap below", bytes(bound), `${verified ? "certified" : "its file says, not verified"}${step}, ${share(gap)} below the peak`),
  );
}

function curveSection(part) {
  const title = "Memory against time";
  if (!part.curve.length) return section(title, "", el("p", {}, WORDS.noCurve));
  const step = part.curveStep;
  const grey = certified(part).length ? WORDS.grey(step, part.copies) : "";
  const words = WORDS.curve + (step ? WORDS.curveOf[step] : "") + (part.copies ? WORDS.copies : "") + grey;
  return section(title, words + (part.title ? WORDS.partCurve : ""), new Curve(part).element);
}

function sections(part) {
  const made = el("details", {}, el("summary", {}, "How this plan was made"), table(["", ""], part.made));
  return [
    section("Memory over time", WORDS.memory, new MemoryChart(part).element),
    section("Held at the peak", WORDS.holders, el("p", {}, unbroken(part.remarks.join(" "))), new Holders(part).element),
    curveSection(part),
    ...(rewritten(part) ? [section("Rewritten", WORDS.rewriting, claimsList(part.rewriting))] : []),
    section("Recomputed", WORDS.recomputed, recomputedTable(part)),
    section("Certificate", part.verified ? WORDS.certificate : WORDS.unverified, claimsList(part.claims)),
    section("Figures", "", factsTable(part.facts), made),
  ];
}

/** The figures of a model that is planned in parts. */
function figuresOfParts({ peak, plainPeak, resident, overhead, least, costWords, compiled, away }) {
  const beside = compiled ? "over the fastest compiled parts" : "of the plain parts'";
  const [saved, plain] = plainPeak === null ? [null, "not measured"] : [bytes(plainPeak - peak), bytes(plainPeak)];
  return el(
    "div", { class: "figures" },
    figure("peak of the step", bytes(peak), `plain ${plain}; ${bytes(resident)} held all step`),
    saved && figure("memory saved", saved, `${share(1 - peak / plainPeak)} of the plain peak`),
    away ? figure("copied to the host", bytes(away), "in each step") : null,
    figure(`extra ${costWords}, at most`, percent(overhead), beside),
    least === null ? null : figure(`least extra ${costWords}`, percentDown(least), "certified, among the parts' ways"),
  );
}

/** What parts keep for backward: one bar for each way in which parts run. */
function waysSection({ ways, compiled, saves }) {
  const moves = ways.some((way) => way.moved);
  const widest = Math.max(1, ...ways.map((way) => Math.max(way.plain, way.kept + way.moved)));
  const bar = ({ plain, kept, moved }) => {
    const words = `keeps ${bytes(kept)} of ${bytes(plain)}${moved ? `, ${bytes(moved)} on the host` : ""}`;
    const frame = { class: "way", viewBox: `0 0 ${widest} 14`, preserveAspectRatio: "none", role: "img", "aria-label": words };
    const piece = (cls, x, width) => (width ? svg("rect", { class: cls, x, width, height: 14 }) : null);
    return svg("svg", frame, svg("title", {}, words), piece("fill saved", 0, kept), piece("fill away", kept, moved), piece("gone", 0, plain));
  };
  const before = compiled ? "as compiled" : "plain";
  const sizes = { [before]: "plain", kept: "kept", "on the host": "moved", recomputed: "recomputed" };
  const shown = Object.entries(sizes).filter(([, key]) => ways.some((way) => way[key]));
  const rows = ways.map((way) => [
    what(way.pattern, way.kind), bar(way), way.count.toLocaleString("en"),
    ...shown.map(([, key]) => (way[key] ? bytes(way[key]) : "–")), way.added ? time(way.added, "seconds") : "–",
  ]);
  const colours = [swatch("saved", "kept on the device"), swatch("away", "on the host alone")];
  const options = { numbers: shown.length + 2, minor: ["×", before, "recomputed"] };
  return section(
    "Parts", WORDS.ways(compiled), moves ? el("p", { class: "legend" }, ...colours) : null,
    table(["parts", "bytes", "×", ...shown.map(([head]) => head), "adds"], rows, options), claimsList(saves),
  );
}

/** One part of a model, which is drawn when it is opened. */
function block(part, index) {
  const content = el("div", {});
  const draw = () => {
    if (!whole.open || content.children.length) return;
    content.append(el("p", { class: "soft" }, WORDS.part), figures(part), ...sections(part));
  };
  const whole = el("details", { class: "part", ontoggle: draw }, el("summary", {}, part.title), content);
  whole.open = index === 0;
  return whole;
}

function build() {
  const heading = el(
    "header", {},
    el("p", { class: "kicker" }, "Rekindle plan report"),
    el("h1", {}, data.title),
    el("p", { class: "verdict" }, unbroken(data.verdict)),
  );
  const content = data.whole
    ? [figuresOfParts(data.whole), waysSection(data.whole), ...data.parts.map(block)]
    : [figures(data.parts[0]), ...sections(data.parts[0])];
  document.getElementById("report").replaceChildren(heading, ...content);
}

build();
