// Makes the element of a picture, in the picture's own shape, with a canvas for a map over it.

import { facts, large, thumb } from "./api.js";
import { el } from "./dom.js";
import { paint } from "./heat.js";

export const heat = () => el("canvas", { class: "heat", "aria-hidden": "true", width: 1, height: 1 });

/** Makes the image of an item; one whose file is missing is marked, in place of the browser's broken icon. */
export function image(id, { alt = "", full = false, lazy = false } = {}) {
  const node = el("img", { alt, draggable: "false", decoding: "async", loading: lazy ? "lazy" : undefined });
  node.addEventListener("error", () => node.classList.add("gone"));
  node.addEventListener("load", () => node.classList.remove("gone"));
  node.src = full ? large(id) : thumb(id);  // after `loading`, or it would not be lazy
  return node;
}

/** Makes the frame of a whole picture, whose size is known before the picture is loaded. */
export function frame(item) {
  const canvas = heat();
  const node = el("div", { class: "frame" }, image(item.id, { alt: item.name, full: true }), canvas);
  if (item.width && item.height) node.style.setProperty("--ratio", item.width / item.height);
  return { node, canvas };
}

/** Draws attention over an item, whether the page knows its mask already or not. */
export async function paintAttention(canvas, item) {
  const known = item.mask ? item : await facts(item.id, item.features);
  paint(canvas, known, known.view, known.mask);
}
