// The holders of the peak: a treemap by module, and the largest holders as a table.

const HEADER = 20; // pixels of the words above a group
const GROUP = { width: 76, height: 54 }; // pixels below which a group is drawn as one tile
const LARGEST = 10; // rows of the table

/** A node of the tree: a module, or an operator of one (a leaf). */
class Node {
  constructor(name, parent = null) {
    Object.assign(this, { name, parent, bytes: 0, count: 0, children: new Map(), parts: new Map(), row: null });
  }

  child(name) {
    if (!this.children.has(name)) this.children.set(name, new Node(name, this));
    return this.children.get(name);
  }

  add(part, size, count) {
    this.bytes += size;
    this.count += count;
    this.parts.set(part, (this.parts.get(part) ?? 0) + size);
  }

  /** The part that most of its bytes belong to. */
  get part() {
    return [...this.parts].sort((a, b) => b[1] - a[1])[0]?.[0] ?? "saved";
  }

  get path() {
    return this.parent ? [...this.parent.path, this] : [this];
  }

  /** Children, largest first; a chain of only children counts as one. */
  sorted() {
    return [...this.children.values()].map((c) => c.compact()).filter((c) => c.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  }

  compact() {
    let node = this;
    while (node.children.size === 1 && ![...node.children.values()][0].row) node = [...node.children.values()][0];
    return node;
  }

  /** The names from `above` (not included) down to this node, joined. */
  label(above) {
    const names = [];
    for (let node = this; node && node !== above; node = node.parent) names.unshift(node.name);
    return names.join(".");
  }
}

function holderTree(rows, resident) {
  const root = new Node("everything");
  for (const [module, does, shape, part, isWorkspace, count, size] of rows) {
    const what = isWorkspace ? `workspace of ${text(does)}` : [text(does), text(shape)].filter(Boolean).join(", ");
    let node = root;
    node.add(PARTS[part], size, count);
    for (const name of text(module) ? text(module).split(".") : ["outside of modules"]) {
      node = node.child(name);
      node.add(PARTS[part], size, count);
    }
    const leaf = node.child(`${what}\n${PARTS[part]}`);
    leaf.name = what;
    leaf.row = { module: text(module), what };
    leaf.add(PARTS[part], size, count);
  }
  if (resident) {
    const leaf = root.child(PART_WORDS.resident);
    leaf.row = { module: "", what: "parameters, gradients, buffers, inputs, and optimizer state where it is counted" };
    leaf.add("resident", resident, 1);
    root.add("resident", resident, 0);
  }
  return root;
}

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
    const names = ["plain step", "planned step"];
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
    const held = this.part.resident > 0 ? el("label", {}, box, `with the ${bytes(this.part.resident)} held all step`) : null;
    return el("p", { class: "controls" }, ...buttons, held);
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
      const name = i ? n.name : `${this.track ? "planned" : "plain"} peak`;
      const button = el("button", { type: "button", onclick: () => this.open(n) }, name);
      return i ? el("span", {}, " › ", button) : button;
    });
    const share = ` ${bytes(node.bytes)} in ${node.count.toLocaleString("en")} value${node.count === 1 ? "" : "s"}`;
    this.trail.replaceChildren(...steps, share);
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
    Object.assign(tile.style, {
      left: `${box.x}px`, top: `${box.y}px`, width: `${Math.max(1, box.width - 1)}px`, height: `${Math.max(1, box.height - 1)}px`,
    });
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
      ["bytes", `${bytes(node.bytes)}, ${((100 * node.bytes) / total).toFixed(1)} % of the picture`],
      ["values", node.count > 1 ? node.count.toLocaleString("en") : ""], ...parts,
    ];
  }
}

const corner = (element) => {
  const box = element.getBoundingClientRect();
  return [box.left + 10, box.top + 10];
};

/** Boxes for nodes, largest first, in areas like their bytes and as square as rows allow (Bruls, Huizing, van Wijk 2000). */
function squarified(nodes, x, y, width, height) {
  const found = [];
  const total = nodes.reduce((sum, n) => sum + n.bytes, 0);
  const scale = (width * height) / total;
  let rest = nodes.slice();
  while (rest.length && width > 0.5 && height > 0.5) {
    const side = Math.min(width, height);
    let row = [];
    let area = 0;
    let worst = Infinity;
    for (const node of rest) {
      const more = area + node.bytes * scale;
      const sizes = [...row, node].map((n) => n.bytes * scale);
      const ratio = Math.max((side * side * sizes[0]) / (more * more), (more * more) / (side * side * sizes.at(-1)));
      if (ratio > worst) break;
      [row, area, worst] = [[...row, node], more, ratio];
    }
    const thick = area / side;
    let along = 0;
    for (const node of row) {
      const long = (node.bytes * scale) / thick;
      const box = width >= height ? { x, y: y + along, width: thick, height: long } : { x: x + along, y, width: long, height: thick };
      found.push([node, box]);
      along += long;
    }
    if (width >= height) [x, width] = [x + thick, width - thick];
    else [y, height] = [y + thick, height - thick];
    rest = rest.slice(row.length);
  }
  return found;
}

function largest(rows, total) {
  const lines = rows.slice(0, LARGEST).map(([module, does, shape, part, isWorkspace, count, size]) => [
    what(text(module), isWorkspace ? `workspace of ${text(does)}` : text(does)), text(shape), PART_WORDS[PARTS[part]],
    count.toLocaleString("en"), bytes(size), `${((100 * size) / total).toFixed(1)} %`,
  ]);
  const columns = ["made by", "shape", "why it is held", "values", "bytes", "share"];
  return table(columns, lines, { caption: "Largest holders", numbers: 3, minor: ["shape", "why it is held", "values"] });
}
