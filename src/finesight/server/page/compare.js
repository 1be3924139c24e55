// Shows the tray of pinned and selected pictures, and compares the pinned ones side by side.

import { $, el, icon, say, show } from "./dom.js";
import { t } from "./i18n.js";
import { frame, image, paintAttention } from "./picture.js";
import { MOST_PINS, marks, opened } from "./state.js";

let shown = [];  // side by side: what is pinned, or what a link names

function pin(item) {
  const name = t("unpin.of", item);
  return el("li", {},
    el("button", { type: "button", title: name, "aria-label": name, onclick: () => marks.pin(item) },
      image(item.id), icon("close")));
}

function tray() {
  const [pins, selected] = [marks.pins.length, marks.selected.size];
  $("#tray-pins").replaceChildren(...marks.pins.map(pin));
  $("#compare-open").disabled = pins < 2;
  $("#compare-open").textContent = pins < 2 ? t("compare.another") : t("compare.n", { n: pins });
  $("#tray-selected").textContent = t("tray.selected", { n: selected });
  show($("#tray-pins-part"), pins > 0);
  show($("#tray-selected-part"), selected > 0);
  show($("#tray"), pins + selected > 0);
  document.body.classList.toggle("with-tray", pins + selected > 0);
}

function column(item) {
  const { node, canvas } = frame(item);
  paintAttention(canvas, item).catch(() => {});
  const score = item.score === undefined ? null
    : el("span", { class: "score", text: item.score.toFixed(2), title: t("compare.score") });
  const open = el("button", { type: "button", class: "small", text: t("like"), onclick: () => {
    $("#compare").close();
    $("#main").dispatchEvent(new CustomEvent("act", { bubbles: true, detail: { action: "open", item } }));
  } });
  const pinned = marks.pinned(item.id);
  const remove = () => { if (pinned) marks.pin(item); shown = shown.filter((other) => other !== item); redraw(); };
  const drop = el("button", { type: "button", class: "small", text: t(pinned ? "unpin" : "saved.remove"), onclick: remove });
  return el("figure", {}, node,
    el("figcaption", {}, el("span", { class: "name", text: item.name, title: item.path }), score),
    el("div", { class: "row" }, open, drop));
}

function redraw() {
  if (shown.length < 2) { $("#compare").close(); return; }
  $("#compare-columns").style.setProperty("--pins", shown.length);
  $("#compare-columns").replaceChildren(...shown.map(column));
  opened("compare", shown.map((item) => item.id).filter((id) => !id.startsWith("q")).join());
}

export function compare(items = marks.pins) {
  if (items.length < 2) { say(t("compare.few")); return; }
  shown = items.slice(0, MOST_PINS);
  redraw();
  if (!$("#compare").open) $("#compare").showModal();
}

/** Pins or unpins a picture, and says so to screen readers. */
export function togglePin(item) {
  if (!marks.pin(item)) say(t("pin.full", { n: MOST_PINS }));
  else if (marks.pinned(item.id)) say(t("pin.say", { name: item.name, n: marks.pins.length, most: MOST_PINS }));
  else say(t("unpin.say", item));
  return marks.pinned(item.id);
}

export function begin() {
  marks.addEventListener("change", tray);
  $("#compare-open").addEventListener("click", () => compare());
  $("#tray-clear").addEventListener("click", () => marks.clear());
  tray();
}
