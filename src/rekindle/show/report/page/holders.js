// The holders of the peak: a treemap by module, and the largest holders as a table.

const HEADER = 20; // pixels of the words above a group
const GROUP = { width: 76, height: 54 }; // pixels below which a group is drawn as one tile
const LARGEST = 10; // rows of the table

class Holders {
  constructor(part) {
    this.part = part;
    this.track = 1;
    this.resident = part.resident > 0 && part.resident <= 0.6 * part.peak;
    this.map = el("div", { class: "treemap", role: "group", "aria-label": "Holders of the peak, by module" });
    this.trail = el("p", { class: "trail" });
    this.table = el("div", {});
    this.element = el("div", {}, this.controls(), this.trail, this.map, this.table);
    this.rebuild();
    drawnToWidth(this.map, () => this.draw());
  }

  controls() {
    const names = [rewritten(this.part) ? "rewritten step, each op once" : "baseline", "planned step"];
    const buttons = names.map((name, i) =>
      el("button", { type: "button", "aria-pressed": String(i === this.track), onclick: () => choose(i) }, name),
    );
    const choose = (track) => {
      this.track = track;
      buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(i === track)));
      this.rebuild();
    };
    const box = el("input", { type: "checkbox", onchange: () => ((this.resident = box.checked), this.rebuild()) });
    box.checked = this.resident;
    const held = el("label", {}, box, `with the ${bytes(this.part.resident)} held all step`);
    return el("p", { class: "controls" }, ...buttons, this.part.resident > 0 ? held : null);
  }

  rebuild() {
    const rows = this.part.holders[this.track];
    this.root = holderTree(rows, this.resident ? this.part.resident : 0);
    this.table.replaceChildren(largest(rows, this.root.bytes));
    this.open(this.root);
  }

  open(node) {
    this.node = node;
    const steps = node.path.map((n, i) => {
      const name = i ? n.name : `${this.track ? "planned" : rewritten(this.part) ? "rewritten" : "baseline"} peak`;
      const button = el("button", { type: "button", onclick: () => this.open(n) }, name);
      return i ? el("span", {}, " › ", button) : button;
    });
    const held = ` ${bytes(node.bytes)} in ${node.count.toLocaleString("en")} value${node.count === 1 ? "" : "s"}`;
    this.trail.replaceChildren(...steps, held);
    this.draw();
  }

  draw() {
    const width = this.map.clientWidth;
    const height = width < 600 ? 380 : 400;
    if (!width) return;
    this.map.style.height = `${height}px`;
    this.map.replaceChildren();
    if (this.node.bytes > 0) this.place(this.node, 0, 0, width, height, this.node.row ? this.node.parent : this.node);
    else this.map.append(el("p", {}, "Nothing is held beside what is there all step."));
  }

  /** Draw the children of a node inside a box, groups with their own children inside of them. */
  place(node, x, y, width, height) {
    const children = node.row ? [node] : node.sorted();
    for (const [child, box] of squarified(children, x, y, width, height)) {
      const group = !child.row && box.width > GROUP.width && box.height > GROUP.height;
      this.map.append(this.tile(child, node, box, group));
      if (group) this.place(child, box.x + 3, box.y + HEADER, box.width - 6, box.height - HEADER - 3);
    }
  }

  tile(node, above, box, group) {
    const words = node.row ? node.name : node.label(above);
    const count = node.count > 1 ? ` ×${node.count.toLocaleString("en")}` : "";
    const label = `${words}${count}, ${bytes(node.bytes)}, ${PART_WORDS[node.part]}`;
    const tile = el("button", {
      type: "button", "aria-label": label, class: `tile ${group ? "group" : node.part}`,
      onclick: () => this.open(node.row ? node.parent : node),
      onpointermove: (e) => tooltip.show(words, this.facts(node), e.clientX, e.clientY),
      onpointerleave: () => tooltip.hide(),
      onfocus: () => tooltip.show(words, this.facts(node), ...corner(tile)),
      onblur: () => tooltip.hide(),
    });
    const [width, height] = [box.width, box.height].map((size) => `${Math.max(1, size - 1)}px`);
    Object.assign(tile.style, { left: `${box.x}px`, top: `${box.y}px`, width, height });
    if (box.width > 44 && box.height > 17) {
      tile.append(el("span", { class: "name" }, `${words}${count}`));
      if (group ? box.width > 120 : box.height > 34) tile.append(el("span", { class: "size" }, bytes(node.bytes)));
    }
    return tile;
  }

  facts(node) {
    const total = this.root.bytes;
    const parts = [...node.parts].map(([key, size]) => [PART_WORDS[key], bytes(size)]);
    return [
      ["module", node.row?.module ?? ""], ["what", node.row && node.row.what !== node.name ? node.row.what : ""],
      ["bytes", `${bytes(node.bytes)}, ${share(node.bytes / total)} of the picture`],
      ["values", node.count > 1 ? node.count.toLocaleString("en") : ""], ...parts,
    ];
  }
}

const corner = (element) => {
  const box = element.getBoundingClientRect();
  return [box.left + 10, box.top + 10];
};

function largest(rows, total) {
  const lines = rows.slice(0, LARGEST).map(([module, does, shape, part, isWorkspace, count, size]) => [
    what(text(module), isWorkspace ? `workspace of ${text(does)}` : text(does)), text(shape), PART_WORDS[PARTS[part]],
    count.toLocaleString("en"), bytes(size), share(size / total),
  ]);
  const columns = ["made by", "shape", "why it is held", "values", "bytes", "share"];
  return table(columns, lines, { caption: "Largest holders", numbers: 3, minor: ["shape", "why it is held", "values"] });
}
