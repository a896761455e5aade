// Lines and words on a panel of the memory chart: budget, bound, the end of forward, the peak.

const LINE_PX = 22; // words nearer than this to the budget's line stand above it
const WORDS_PX = { wide: 350, narrow: 70 }; // the longest words at a line
const HALF_WORDS_PX = 90; // words in the middle of a mark need this much room on either side

/** The most bytes that a panel's schedule holds between two places of the chart. */
function mostBetween(chart, track, from, to) {
  let most = 0;
  for (let run = 0; run < track.ends.length; run++) {
    if (chart.x(track.start(run)) <= to && chart.x(track.ends[run]) >= from) most = Math.max(most, track.total[run]);
  }
  return most;
}

/** The lines of the budget and of the bound, with words at the end where less memory is held. */
function limits(chart, index) {
  const { budget, bound } = chart.part;
  const track = chart.tracks[index];
  const [left, right] = [VIEW.left, VIEW.left + chart.inner];
  const width = Math.min(chart.narrow ? WORDS_PX.narrow : WORDS_PX.wide, chart.inner / 2);
  const atLeft = mostBetween(chart, track, left, left + width) < mostBetween(chart, track, right - width, right);
  const side = atLeft ? { x: left + 6, "text-anchor": "start" } : { x: right - 6, "text-anchor": "end" };
  const line = (size, cls, words, below) => {
    const y = round(chart.y(size, index));
    return svg(
      "g", { class: cls },
      svg("line", { x1: left, x2: right, y1: y, y2: y }),
      svg("text", { ...side, class: "halo", y: below ? y + 15 : y - 6 }, words),
    );
  };
  const found = [];
  if (budget !== null && budget >= chart.floor) {
    const words = chart.narrow && index === 1 ? "budget" : `budget ${bytes(budget)}`;
    found.push(line(budget, "budget", words, false));
  }
  if (index === 1 && bound >= chart.floor) {
    const none = `no plan this cheap below ${bytes(bound)}`;
    const [short, long] = chart.part.verified
      ? ["certified", `certified: ${none}`]
      : ["not verified", `its file says: ${none} (not verified)`];
    const words = chart.narrow ? short : long;
    found.push(line(bound, "bound", words, true));
  }
  return found;
}

/** Whether the plan's step is a rewritten one, which stands in the pictures in place of the baseline. */
const rewritten = (part) => part.rewriting.length > 0;

/** The heading of a panel, the end of forward, and the peak. */
function panelWords(chart, track, index) {
  const runs = track.again.reduce((a, b) => a + b, 0);
  const again = `, ${runs.toLocaleString("en")} ${chart.narrow ? "" : "operator "}runs again`;
  const facts = `${time(track.length, chart.part.unit)}${runs ? again : ""}`;
  const title = track.label === "planned" ? "Planned step" : rewritten(chart.part) ? "Rewritten step, each op once" : "Plain step";
  const heading = svg(
    "text", { class: "heading", x: VIEW.left, y: chart.top(index) - 12 },
    title, svg("tspan", { class: "soft", dx: 10 }, facts),
  );
  return [heading, ...phases(chart, track, index), ...peakWords(chart, track, index)];
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

function peakWords(chart, track, index) {
  if (track.peak < 0) return [];
  const x = chart.x(track.middle(track.peak));
  if (!inView(chart, x)) return [];
  const y = chart.y(track.total[track.peak], index);
  const room = Math.min(x - VIEW.left, VIEW.left + chart.inner - x);
  const anchor = room > HALF_WORDS_PX ? "middle" : x - VIEW.left === room ? "start" : "end";
  const line = chart.part.budget === null ? Infinity : chart.y(chart.part.budget, index);
  const words = line <= y && y - line < LINE_PX ? line - 6 : y - 9;
  const place = { x: round(x), y: round(words), "text-anchor": anchor };
  return [
    svg("circle", { class: "dot", cx: round(x), cy: round(y), r: 4 }),
    svg("text", { class: "peak halo", ...place }, `peak ${bytes(track.total[track.peak])}`),
  ];
}
