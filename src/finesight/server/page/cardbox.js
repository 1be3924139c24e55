// A box that is dragged over a hit with the mouse: searches for that part of the hit. A click still opens the whole.

import { format } from "./box.js";
import { el } from "./dom.js";
import { itemAt } from "./grid.js";

const LEAST = 14;  // pixels: less is a click

/** Returns the share of the picture at a place of its card, which shows the middle of the picture as a square. */
function share({ width, height }, area, x, y) {
  const short = Math.min(width, height) || 1, across = (width || 1) / short, up = (height || 1) / short;
  const clamp = (value) => Math.min(1, Math.max(0, value));
  return [clamp(0.5 + ((x - area.left) / area.width - 0.5) / across), clamp(0.5 + ((y - area.top) / area.height - 0.5) / up)];
}

export function setUp() {
  let drag = null;
  document.addEventListener("pointerdown", (event) => {
    const open = event.target.closest?.(".card .open"), item = itemAt(open);
    if (!item || event.button !== 0 || event.pointerType !== "mouse" || event.shiftKey) return;
    drag = { open, item, x: event.clientX, y: event.clientY, area: open.getBoundingClientRect(), box: null };
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag || Math.max(Math.abs(event.clientX - drag.x), Math.abs(event.clientY - drag.y)) < LEAST) return;
    if (!drag.box) { drag.box = el("div", { class: "box" }); drag.open.append(drag.box); }
    const { area } = drag, inside = (value, low, size) => Math.min(size, Math.max(0, value - low));
    const xs = [drag.x, event.clientX].map((x) => inside(x, area.left, area.width)).sort((a, b) => a - b);
    const ys = [drag.y, event.clientY].map((y) => inside(y, area.top, area.height)).sort((a, b) => a - b);
    Object.assign(drag.box.style, { left: `${xs[0]}px`, top: `${ys[0]}px`, width: `${xs[1] - xs[0]}px`, height: `${ys[1] - ys[0]}px` });
    drag.end = [event.clientX, event.clientY];
  });
  const done = (event) => {
    const { open, item, box, x, y, end, area } = drag ?? {};
    drag = null;
    if (!box) return;
    box.remove();
    addEventListener("click", (click) => { click.stopPropagation(); click.preventDefault(); }, { capture: true, once: true });
    setTimeout(() => dispatchEvent(new Event("click")), 0);  // the listener is used up where no click follows
    if (event.type !== "pointerup") return;
    const a = share(item, area, x, y), b = share(item, area, ...end);
    const part = [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.abs(a[0] - b[0]), Math.abs(a[1] - b[1])].map((value) => Math.round(1000 * value));
    if (part[2] < 40 || part[3] < 40) return;
    open.dispatchEvent(new CustomEvent("act", { bubbles: true, detail: { action: "open", item, box: format(part) } }));
  };
  document.addEventListener("pointerup", done);
  document.addEventListener("pointercancel", done);
}
