// A box on the query, which people draw, move and resize by mouse, finger or keys. Units are thousandths of the picture.

import { el } from "./dom.js";
import { t } from "./i18n.js";

const LEAST = 40;
const WHOLE = 1000;
const STEP = 20;
const CORNERS = ["nw", "ne", "sw", "se"];
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

export const parse = (text) => {
  const values = text.split(",").map((part) => Math.round(WHOLE * Number(part)));
  return values.length === 4 && values.every(Number.isFinite) ? values : null;
};
export const format = (box) => (box ? box.map((value) => value / WHOLE).join(",") : "");

/** Returns the box moved into the picture and made large enough. */
function fitted([x, y, w, h]) {
  const width = clamp(w, LEAST, WHOLE), height = clamp(h, LEAST, WHOLE);
  return [clamp(x, 0, WHOLE - width), clamp(y, 0, WHOLE - height), width, height].map(Math.round);
}

const spanned = (a, b) => [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.abs(a[0] - b[0]), Math.abs(a[1] - b[1])];

export class BoxTool {
  value = null;

  constructor(frame, change) {
    Object.assign(this, { frame, change });
    this.node = el("div", { class: "box", tabindex: "0", role: "group", "aria-roledescription": t("box"), hidden: true },
      ...CORNERS.map((corner) => el("i", { class: `corner ${corner}`, "data-corner": corner })));
    frame.append(this.node);
    frame.addEventListener("pointerdown", (event) => this.#down(event));
    frame.addEventListener("pointermove", (event) => this.#drag(event));
    frame.addEventListener("pointerup", (event) => this.#up(event));
    frame.addEventListener("pointercancel", () => this.#cancel());
    this.node.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Shows a box without calling anyone back. */
  put(box) {
    this.value = box && fitted(box);
    this.node.hidden = !box;
    this.frame.classList.toggle("boxed", Boolean(box));
    if (!box) return;
    const [x, y, w, h] = this.value;
    Object.assign(this.node.style, { left: `${x / 10}%`, top: `${y / 10}%`, width: `${w / 10}%`, height: `${h / 10}%` });
    const per = (value) => `${Math.round(value / 10)} %`;
    const where = t("box.where", { x: per(x), y: per(y), w: per(w), h: per(h) });
    this.node.setAttribute("aria-label", t("box.label", { where }));
  }

  set(box) { this.put(box); this.change(this.value); }

  /** Begins with a box in the middle. */
  begin() {
    if (!this.value) this.set([250, 250, 500, 500]);
    this.node.focus();
  }

  #at(event) {
    const area = this.frame.getBoundingClientRect();
    const [x, y] = [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height];
    return [WHOLE * clamp(x, 0, 1), WHOLE * clamp(y, 0, 1)];
  }

  #down(event) {
    if (event.button !== 0 || (event.pointerType === "touch" && !this.value)) return;  // a finger scrolls
    event.preventDefault();
    this.frame.setPointerCapture(event.pointerId);
    const start = this.#at(event), before = this.value;
    const corner = event.target.dataset?.corner;
    if (corner) {
      const [x, y, w, h] = before;
      const fixed = [corner.includes("w") ? x + w : x, corner.includes("n") ? y + h : y];
      this.drag = { before, to: (point) => spanned(fixed, point) };
    } else if (event.target === this.node) {
      const [x, y, w, h] = before;
      this.drag = { before, to: (point) => [x + point[0] - start[0], y + point[1] - start[1], w, h] };
    } else {
      this.drag = { before, fresh: true, to: (point) => spanned(start, point) };
    }
  }

  #drag(event) {
    if (!this.drag) return;
    const box = this.drag.to(this.#at(event));
    if (!this.drag.fresh || Math.max(box[2], box[3]) >= LEAST) { this.drag.moved = true; this.put(box); }
  }

  #up() {
    const { moved, before } = this.drag ?? {};
    this.drag = null;
    if (!moved) return;
    this.node.focus({ preventScroll: true });
    if (format(this.value) !== format(before)) this.change(this.value);
  }

  #cancel() {
    if (this.drag) this.put(this.drag.before);
    this.drag = null;
  }

  #key(event) {
    const steps = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
    if (event.key === "Delete" || event.key === "Backspace" || event.key === "Escape") {
      event.preventDefault();
      this.set(null);
    } else if (event.key in steps) {
      event.preventDefault();
      const [dx, dy] = steps[event.key], [x, y, w, h] = this.value;
      this.set(event.shiftKey ? [x, y, Math.min(w + dx, WHOLE - x), Math.min(h + dy, WHOLE - y)] : [x + dx, y + dy, w, h]);
    }
  }
}
