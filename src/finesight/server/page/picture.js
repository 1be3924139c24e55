// A picture in its own shape, with room for a map over it.

import { facts, large, thumb } from "./api.js";
import { el } from "./dom.js";
import { paint } from "./heat.js";

export const heat = () => el("canvas", { class: "heat", "aria-hidden": "true", width: 1, height: 1 });

/** The image of an item; one that is gone is told so instead of a torn icon. */
export function image(id, { alt = "", full = false, lazy = false } = {}) {
  const node = el("img", { alt, draggable: "false", decoding: "async", loading: lazy ? "lazy" : undefined });
  node.addEventListener("error", () => node.classList.add("gone"));
  node.addEventListener("load", () => node.classList.remove("gone"));
  node.src = full ? large(id) : thumb(id);  // after `loading`, or it would not be lazy
  return node;
}

/** The whole picture, its place kept before it is loaded. */
export function frame(item) {
  const canvas = heat();
  const node = el("div", { class: "frame" }, image(item.id, { alt: item.name, full: true }), canvas);
  if (item.width && item.height) node.style.setProperty("--ratio", item.width / item.height);
  return { node, canvas };
}

/** Attention over an item, whichever way it became known. */
export async function paintAttention(canvas, item) {
  const known = item.mask ? item : await facts(item.id);
  paint(canvas, known, known.view, known.mask);
}
