// Shows the tray of pinned and selected pictures, and compares the pinned ones side by side.

import { $, el, icon, say, show } from "./dom.js";
import { frame, image, paintAttention } from "./picture.js";
import { MOST_PINS, marks } from "./state.js";

function pin(item) {
  const name = `Unpin ${item.name}`;
  return el("li", {},
    el("button", { type: "button", title: name, "aria-label": name, onclick: () => marks.pin(item) },
      image(item.id), icon("close")));
}

function tray() {
  const [pins, selected] = [marks.pins.length, marks.selected.size];
  $("#tray-pins").replaceChildren(...marks.pins.map(pin));
  $("#compare-open").disabled = pins < 2;
  $("#compare-open").textContent = pins < 2 ? "Pin another to compare" : `Compare ${pins}`;
  $("#tray-selected").textContent = `${selected} selected`;
  show($("#tray-pins-part"), pins > 0);
  show($("#tray-selected-part"), selected > 0);
  show($("#tray"), pins + selected > 0);
  document.body.classList.toggle("with-tray", pins + selected > 0);
}

function column(item) {
  const { node, canvas } = frame(item);
  paintAttention(canvas, item).catch(() => {});
  const score = item.score === undefined ? null
    : el("span", { class: "score", text: item.score.toFixed(2), title: "Score in its search" });
  const open = el("button", { type: "button", class: "small", text: "More like this", onclick: () => {
    $("#compare").close();
    $("#main").dispatchEvent(new CustomEvent("act", { bubbles: true, detail: { action: "open", item } }));
  } });
  const unpin = () => { marks.pin(item); redraw(); };
  const drop = el("button", { type: "button", class: "small", text: "Unpin", onclick: unpin });
  return el("figure", {}, node,
    el("figcaption", {}, el("span", { class: "name", text: item.name, title: item.path }), score),
    el("div", { class: "row" }, open, drop));
}

function redraw() {
  if (marks.pins.length < 2) { $("#compare").close(); return; }
  $("#compare-columns").style.setProperty("--pins", marks.pins.length);
  $("#compare-columns").replaceChildren(...marks.pins.map(column));
}

export function compare() {
  if (marks.pins.length < 2) { say("Pin two pictures or more to compare them."); return; }
  redraw();
  $("#compare").showModal();
}

/** Pins or unpins a picture, and says so to screen readers. */
export function togglePin(item) {
  if (!marks.pin(item)) say(`No more than ${MOST_PINS} can be pinned: unpin one first.`);
  else say(marks.pinned(item.id) ? `Pinned ${item.name}, ${marks.pins.length} of ${MOST_PINS}.` : `Unpinned ${item.name}.`);
  return marks.pinned(item.id);
}

export function begin() {
  marks.addEventListener("change", tray);
  $("#compare-open").addEventListener("click", compare);
  $("#tray-clear").addEventListener("click", () => marks.clear());
  tray();
}
