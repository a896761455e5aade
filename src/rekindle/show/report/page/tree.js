// The tree of what is held at the peak, and its boxes in a treemap.

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
    for (const name of text(module) ? text(module).split(".") : ["outside of submodules"]) {
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

/** [node, box] of nodes that come largest first: areas like their bytes, as square as rows allow. The method is that of
 * Bruls, Huizing and van Wijk, Squarified Treemaps, 2000. */
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
      const [right, down] = width >= height ? [0, along] : [along, 0];
      const [wide, high] = width >= height ? [thick, long] : [long, thick];
      found.push([node, { x: x + right, y: y + down, width: wide, height: high }]);
      along += long;
    }
    if (width >= height) [x, width] = [x + thick, width - thick];
    else [y, height] = [y + thick, height - thick];
    rest = rest.slice(row.length);
  }
  return found;
}
