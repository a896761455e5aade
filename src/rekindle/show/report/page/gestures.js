// Pointer, wheel and keys on a memory chart.

const DRAG_PX = 6; // a pointer that moves less than this is a click
const LEAST_PX = 5; // a stretch that was dragged over is shown if it is wider than this
const WHEEL_PX = 300; // turning the wheel this far zooms by the factor e

class Gestures {
  constructor(chart) {
    this.chart = chart;
    this.down = new Map(); // pointers that are down: where they are, and where they came down
    const on = (name, handle) => chart.picture.addEventListener(name, handle, { passive: false });
    on("pointerdown", (e) => this.press(e));
    on("pointermove", (e) => this.move(e));
    on("pointerup", (e) => this.release(e));
    on("pointercancel", (e) => this.release(e, true));
    on("pointerleave", (e) => this.leave(e));
    on("dblclick", () => chart.show(0, chart.whole));
    on("wheel", (e) => this.wheel(e));
    on("keydown", (e) => this.key(e));
    on("blur", () => chart.cursor.clear());
  }

  /** Where an event happened, in pixels of the picture. */
  point(e) {
    const box = this.chart.picture.getBoundingClientRect();
    const scale = this.chart.width / box.width;
    return { x: (e.clientX - box.left) * scale, y: (e.clientY - box.top) * scale };
  }

  press(e) {
    if (e.button) return;
    const at = this.point(e);
    this.down.set(e.pointerId, { ...at, first: at });
    this.begin();
    this.dragged = false;
    this.chart.picture.setPointerCapture(e.pointerId);
    this.chart.cursor.moveTo(at);
  }

  /** What is done from now on is measured from here: the view, and where the pointers are. */
  begin() {
    this.view = { from: this.chart.from, to: this.chart.to };
    for (const held of this.down.values()) held.first = { x: held.x, y: held.y };
  }

  move(e) {
    const { chart } = this;
    const at = this.point(e);
    const held = this.down.get(e.pointerId);
    if (!held) return chart.cursor.moveTo(at);
    Object.assign(held, at);
    if (this.down.size === 2) return this.pinch();
    const by = at.x - held.first.x;
    if (Math.abs(by) < DRAG_PX && !this.dragged) return;
    this.dragged = true;
    if (e.pointerType === "touch") {
      const moments = (by / chart.inner) * (this.view.to - this.view.from);
      return chart.show(this.view.from - moments, this.view.to - moments);
    }
    const [left, right] = this.stretch(held);
    tooltip.hide();
    fill(chart.brush, { x: left, width: right - left, visibility: "visible" }, []);
  }

  release(e, cancelled = false) {
    const { chart } = this;
    const held = this.down.get(e.pointerId);
    this.down.delete(e.pointerId);
    this.begin();
    chart.brush?.setAttribute("visibility", "hidden");
    if (!held || cancelled || !this.dragged || e.pointerType === "touch") return;
    const [left, right] = this.stretch(held);
    if (right - left > LEAST_PX) chart.show(chart.moment(left), chart.moment(right));
  }

  leave(e) {
    if (!this.down.size && e.pointerType !== "touch") this.chart.cursor.clear();
  }

  /** Left and right end of what the pointer was dragged over. */
  stretch(held) {
    const ends = [held.first.x, held.x].map((x) => clamp(x, VIEW.left, VIEW.left + this.chart.inner));
    return ends.sort((a, b) => a - b);
  }

  /** Two fingers: the moments under them stay under them. */
  pinch() {
    const [a, b] = [...this.down.values()];
    const { inner } = this.chart;
    const { from, to } = this.view;
    const before = Math.max(10, Math.abs(a.first.x - b.first.x));
    const now = Math.max(10, Math.abs(a.x - b.x));
    const length = ((to - from) * before) / now;
    const share = (x) => (x - VIEW.left) / inner;
    const middle = from + share((a.first.x + b.first.x) / 2) * (to - from);
    const begin = middle - share((a.x + b.x) / 2) * length;
    this.dragged = true;
    tooltip.hide();
    this.chart.show(begin, begin + length);
  }

  wheel(e) {
    const { chart } = this;
    if (e.deltaY > 0 && chart.isWhole) return; // the page scrolls on
    e.preventDefault();
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) return chart.pan(e.deltaX / chart.inner);
    const moment = clamp(chart.moment(this.point(e).x), chart.from, chart.to);
    chart.zoom(Math.exp(clamp(e.deltaY, -120, 120) / WHEEL_PX), moment);
  }

  key(e) {
    const { chart } = this;
    const act = {
      ArrowLeft: () => chart.cursor.step(-1),
      ArrowRight: () => chart.cursor.step(1),
      ArrowUp: () => chart.cursor.toPanel(0),
      ArrowDown: () => chart.cursor.toPanel(1),
      "+": () => chart.zoom(0.5),
      "=": () => chart.zoom(0.5),
      "-": () => chart.zoom(2),
      0: () => chart.show(0, chart.whole),
      Escape: () => chart.cursor.clear(),
    }[e.key];
    if (!act) return;
    e.preventDefault();
    act();
  }
}
