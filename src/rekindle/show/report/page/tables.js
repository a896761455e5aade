// Tables: recomputed operators, figures, certificate.

const SHARE_OF = { seconds: "time", flops: "FLOPs", unit: "runs" }; // where it is not what the plan counts
const FIRST_ROWS = 12; // of a long table, before it is opened
const LONGEST_WORD = 14; // letters that a line of a cell holds on a phone

/** A table. `numbers` of its last columns are aligned to the right; `minor` columns are left out on a phone; a cell may be
 * an element. */
function table(columns, rows, { caption = "", numbers = 0, minor = [] } = {}) {
  const cls = (i) => `${i >= columns.length - numbers ? "number" : "words"}${minor.includes(columns[i]) ? " minor" : ""}`;
  const line = (row) => el("tr", {}, ...row.map((cell, i) => el("td", { class: cls(i) }, cell)));
  const body = el("tbody", {}, ...rows.map(line));
  const rest = [...body.rows].slice(FIRST_ROWS);
  const open = () => {
    for (const row of rest) row.hidden = false;
    more.remove();
  };
  const more = el("button", { type: "button", onclick: open }, `show all ${rows.length} rows`);
  for (const row of rest) row.hidden = true;
  const head = el("thead", {}, el("tr", {}, ...columns.map((c, i) => el("th", { scope: "col", class: cls(i) }, c))));
  const words = caption ? el("caption", {}, caption) : "";
  const frame = { class: "scroll", tabindex: 0, role: "region", "aria-label": caption || columns[0] || "figures" };
  return el("div", {}, el("div", frame, el("table", {}, words, head, body)), rest.length ? more : null);
}

/** Rows of (name, plain, planned). */
function factsTable(facts) {
  return table(["", "baseline", "planned"], facts, { numbers: 2 });
}

function claimsList(claims) {
  const row = ([name, words]) => [el("dt", {}, name), el("dd", {}, unbroken(words))];
  return el("dl", { class: "claims" }, ...claims.flatMap(row));
}

function recomputedTable(part) {
  const rows = part.recomputed;
  if (!rows.length) return el("p", {}, "Nothing: this plan runs every operator once.");
  const waited = part.tracks[1].waits.reduce((sum, [, seconds]) => sum + seconds, 0);
  const length = waited + part.tracks[1].runs.reduce((sum, op) => sum + part.ops.time[op], 0) || 1;
  const once = part.tracks[0].runs.reduce((sum, op) => sum + part.ops.time[op], 0) || 1;
  const lines = rows.map(([module, does, ops, times, cost, freed, first, last]) => [
    what(text(module), text(does)), when(first / length, last / length), ops.toLocaleString("en"),
    times.toLocaleString("en"), bytes(freed), time(cost, part.unit), percent(cost / once),
  ]);
  const step = rewritten(part) ? "rewritten step" : "baseline";
  const share = part.unit === part.cost ? `of the ${step}` : `of the ${step}'s ${SHARE_OF[part.unit]}`;
  const columns = ["operator", "when in the step", "ops", "runs", "free meanwhile", "adds", share];
  return table(columns, lines, { numbers: 5, minor: ["ops", "runs", share] });
}

/** A cell with the module, and the operator after or below it. */
function what(module, operator) {
  const soft = el("span", { class: "soft" }, ...pieces(operator));
  return module ? el("span", { class: "what" }, ...pieces(module), " ", soft) : el("span", {}, ...pieces(operator));
}

/** A name that breaks into lines only after points and blanks, and long words also after underscores and before capitals. */
function pieces(name) {
  const cut = (word) => (word.length > LONGEST_WORD ? word.split(/(?<=_)|(?<=[a-z])(?=[A-Z])/) : [word]);
  const whole = (word) => (word.length > LONGEST_WORD ? word : el("span", { class: "whole" }, word));
  const words = name.length > LONGEST_WORD ? name.split(/(?<=[. ])(?=.{4})/) : [name];
  return words.flatMap(cut).flatMap((word) => [whole(word), el("wbr")]);
}

/** From when to when, as shares of the step: a bar. */
function when(first, last) {
  const from = (x) => `${Math.round(100 * x)} %`;
  const bar = svg("rect", { x: 100 * first, y: 0, width: Math.max(1.5, 100 * (last - first)), height: 8, rx: 1 });
  const words = from(first) === from(last) ? from(first) : `${from(first)} to ${from(last)}`;
  return svg("svg", { class: "when", viewBox: "0 0 102 8", role: "img", "aria-label": words }, svg("title", {}, words),
    svg("rect", { class: "rail", x: 0, y: 3, width: 101, height: 2 }), bar);
}
