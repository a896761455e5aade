// Lines and words on a panel of the memory chart: budget, bound, the end of forward, the peak.

const LINE_PX = 22; // words at the peak that are nearer than this to the budget's line stand above it

const FONTS = { budget: "600 12px", bound: "12px", peak: "600 13px" }; // as in report.css
const ruler = document.createElement("canvas").getContext("2d");

/** The box of words of a class, as {left, right, top, bottom}. x : of their left end. y : of their baseline. */
function boxOf(cls, words, x, y) {
  ruler.font = `${FONTS[cls]} ${getComputedStyle(document.body).fontFamily}`;
  return { left: x, right: x + ruler.measureText(words).width, top: y - 12, bottom: y + 4 };
}

/** The upper edge of all that a panel's picture shows between two places. */
function highest(chart, index, from, to) {
  const track = chart.tracks[index];
  const sizes = track.withAway ?? track.total;
  let most = 0;
  for (let run = track.at(chart.moment(from)); run < sizes.length && chart.x(track.start(run)) <= to; run++) {
    most = Math.max(most, sizes[run]);
  }
  return chart.y(most, index);
}

/** The text of a line, in the first of some words that find room where they cross neither the curve nor what is in `taken`:
 * above a line, or else at the panel's upper edge, at its left or right end. taken : gets the box of the words. */
function wordsAt(chart, index, cls, words, lines, taken) {
  const meets = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const fits = (box) => box.left >= VIEW.left && box.right <= VIEW.left + chart.inner;
  const isFree = (box) => fits(box) && !taken.some((t) => meets(box, t)) && highest(chart, index, box.left, box.right) >= box.bottom;
  const at = (levels) => words.flatMap((text) => {
    const ends = [VIEW.left + 6, VIEW.left + chart.inner - 6 - boxOf(cls, text, 0, 0).right];
    return levels.flatMap((y) => ends.map((x) => ({ text, x, y, ...boxOf(cls, text, x, y) })));
  });
  const places = [...at(lines.map((y) => y - 6)), ...at([chart.top(index) + 13])];
  const { text, x, y } = taken[taken.push(places.find(isFree) ?? places.at(-1)) - 1];
  return svg("text", { class: "halo", x, y }, text);
}

/** The lines of the budget and of the bound, with their words. taken : boxes of other words. */
function limits(chart, index, taken) {
  const { budget, bound, verified } = chart.part;
  const [left, right] = [VIEW.left, VIEW.left + chart.inner];
  const found = [];
  if (budget !== null && budget >= chart.floor) found.push([budget, "budget", [`budget ${bytes(budget)}`, "budget"]]);
  if (index === 1 && bound >= chart.floor) {
    const [claim, more] = verified ? ["certified", ""] : ["its file says", " (not verified)"];
    const none = `below ${bytes(bound)}${more}`;
    found.push([bound, "bound", [`${claim}: no plan this cheap ${none}`, `${claim}: none ${none}`, verified ? claim : "not verified"]]);
  }
  const heights = found.map(([size]) => round(chart.y(size, index)));
  taken.push(...heights.map((y) => ({ left, right, top: y - 1, bottom: y + 1 })));
  return found.map(([, cls, words], i) => svg(
    "g", { class: cls },
    svg("line", { x1: left, x2: right, y1: heights[i], y2: heights[i] }),
    wordsAt(chart, index, cls, words, [heights[i], ...heights], taken),
  ));
}

/** Whether the plan's step is a rewritten one, which stands in the pictures in place of the baseline. */
const rewritten = (part) => part.rewriting.length > 0;

/** The limits, the heading of a panel, the end of forward, and the peak. */
function panelWords(chart, track, index) {
  const runs = track.again.reduce((a, b) => a + b, 0);
  const again = `, ${runs.toLocaleString("en")} ${chart.narrow ? "" : "operator "}runs again`;
  const facts = `${time(track.length, chart.part.unit)}${runs ? again : ""}`;
  const title = track.label === "planned" ? "Planned step" : rewritten(chart.part) ? "Rewritten step, each op once" : "Plain step";
  const heading = svg(
    "text", { class: "heading", x: VIEW.left, y: chart.top(index) - 12 },
    title, svg("tspan", { class: "soft", dx: 10 }, facts),
  );
  const peak = peakWords(chart, track, index);
  return [...limits(chart, index, peak.boxes), heading, ...phases(chart, track, index), ...peak.drawn];
}

const inView = (chart, x) => x >= VIEW.left && x <= VIEW.left + chart.inner;

function phases(chart, track, index) {
  if (track.boundary === null || !track.runs.length) return [];
  const x = round(chart.x(track.ends[track.boundary]));
  if (!inView(chart, x)) return [];
  const [top, bottom] = [chart.top(index), chart.top(index) + chart.panel];
  return [
    svg("line", { class: "phase", x1: x, x2: x, y1: top, y2: bottom }),
    svg("text", { class: "tick halo", x: x - 5, y: bottom - 6, "text-anchor": "end" }, "forward"),
    svg("text", { class: "tick halo", x: x + 5, y: bottom - 6 }, "backward"),
  ];
}

/** {drawn, boxes}: the dot and the words of the peak, and where the words stand. */
function peakWords(chart, track, index) {
  const x = track.peak < 0 ? -1 : round(chart.x(track.middle(track.peak)));
  if (!inView(chart, x)) return { drawn: [], boxes: [] };
  const y = chart.y(track.total[track.peak], index);
  const words = `peak ${bytes(track.total[track.peak])}`;
  const width = boxOf("peak", words, 0, 0).right;
  const left = clamp(x - width / 2, VIEW.left, VIEW.left + chart.inner - width);
  const line = chart.part.budget === null ? Infinity : chart.y(chart.part.budget, index);
  const low = round(line <= y && y - line < LINE_PX ? line - 6 : y - 9);
  const drawn = [
    svg("circle", { class: "dot", cx: x, cy: round(y), r: 4 }),
    svg("text", { class: "peak halo", x: round(left), y: low }, words),
  ];
  return { drawn, boxes: [boxOf("peak", words, left, low)] };
}
