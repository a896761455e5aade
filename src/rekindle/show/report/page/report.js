// Builds the page: a heading with the verdict, then one block of sections for the plan, or for each part of the model.

function section(title, words, ...content) {
  return el("section", {}, el("h2", {}, title), words ? el("p", { class: "soft" }, words) : null, ...content);
}

function tile(label, value, note) {
  return el("div", { class: "tile-figure" }, el("span", { class: "label" }, label), el("strong", {}, value), el("span", { class: "soft" }, note));
}

function figures(part) {
  const saved = part.plainPeak ? 1 - part.peak / part.plainPeak : 0;
  const found = [
    tile("peak of the step", bytes(part.peak), `plain ${bytes(part.plainPeak)}`),
    tile("memory saved", bytes(part.plainPeak - part.peak), `${(100 * saved).toFixed(1)} % of the plain peak`),
    tile(`extra ${part.costWords}`, percent(part.overhead), part.isBudget ? `${part.verified ? "proven" : "its file says"}: at least ${percent(Math.floor(part.least * 1000 + 1e-6) / 1000)}` : "of the plain step's"),
    tile("certified", bytes(part.bound), `${part.verified ? "" : "not verified, "}${(100 * part.gap).toFixed(1)} % below the plan's peak`),
  ];
  return el("div", { class: "figures" }, ...found);
}

function curveSection(part) {
  const how = "To see the memory/time curve here, pass it in: plan.to_html(path, frontier=True), or rekindle report plan.json --frontier quick.";
  if (!part.curve.length) return section("Memory against time", "", el("p", {}, how));
  const words = "Every point is a plan of the same step; none is better in both. In the grey area no plan exists, as certified. Choose a point to see its figures.";
  return section("Memory against time", words, new Curve(part).element);
}

function partSections(part) {
  return [
    section("Memory over time", "Drag or turn the wheel to zoom, on a phone use two fingers. Point at the picture to see the operator that runs.", new MemoryChart(part).element),
    section("Held at the peak", "Areas are bytes. Modules that differ only in their number are one. Choose a tile to look inside.", new Holders(part).element),
    curveSection(part),
    section("Recomputed", "Operators that run again, dearest first: what they add, and the bytes of their results that are free between two runs.", recomputedTable(part)),
    section("Certificate", "Proven for every possible schedule of this step, not only for those that the search looked at.", claimsList(part.claims)),
    section("Figures", "", factsTable(part.facts), el("details", {}, el("summary", {}, "How this plan was made"), table(["", ""], part.made))),
  ];
}

function onePart(part, index) {
  const content = el("div", {});
  const block = el("details", { class: "part", ontoggle: () => block.open && !content.children.length && content.append(...sections()) },
    el("summary", {}, part.title), content);
  const sections = () => [el("p", { class: "verdict" }, unbroken(part.sentence)), figures(part), ...partSections(part)];
  block.open = index === 0;
  return block;
}

function build() {
  const main = document.getElementById("report");
  const kicker = el("p", { class: "kicker" }, "Rekindle plan report");
  const heading = el("header", {}, kicker, el("h1", {}, data.title), el("p", { class: "verdict" }, unbroken(data.verdict)));
  if (data.facts) {
    const parts = data.parts.map(onePart);
    main.replaceChildren(heading, el("p", {}, data.covered), factsTable(data.facts), el("h2", {}, "Parts"), ...parts);
  } else {
    const [part] = data.parts;
    main.replaceChildren(heading, figures(part), ...partSections(part));
  }
}

build();
