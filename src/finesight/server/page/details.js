// All that is known of one picture: where it is, what the camera wrote, its label; and a box on it to search by a part.

import { ask } from "./api.js";
import { BoxTool, format } from "./box.js";
import { $, el } from "./dom.js";
import { language, number, t } from "./i18n.js";
import { paint } from "./heat.js";
import { frame } from "./picture.js";
import { opened, overlay } from "./state.js";

const dialog = $("#details");
let current = null;

export function day(taken) {
  const [date, time] = taken.split("T"), shown = new Date(`${date}T00:00:00`);
  return `${shown.toLocaleDateString(language, { dateStyle: "long" })}, ${time.slice(0, 5)}`;
}

const degrees = (value, plus, minus) => `${Math.abs(value).toFixed(4)}° ${value < 0 ? minus : plus}`;

/** Returns the lines of the table: words and value. */
function lines(item, facts) {
  const { camera } = facts;
  return [
    [t("details.path"), facts.path], [t("details.size"), `${number(facts.width)} × ${number(facts.height)}, ${number(Math.max(1, Math.round(facts.bytes / 1000)))} kB`],
    camera?.taken ? [t("details.taken"), day(camera.taken)] : null,
    camera?.camera ? [t("details.camera"), camera.camera] : null,
    camera && camera.latitude !== null ? [t("details.place"), `${degrees(camera.latitude, t("north"), t("south"))}, ${degrees(camera.longitude, t("east"), t("west"))}`] : null,
    facts.label ? [t("label"), facts.label] : null, facts.tags.length ? [t("tag"), facts.tags.join(", ")] : null,
    item.score === undefined ? null : [t("details.score"), item.score.toFixed(3)],
  ].filter(Boolean);
}

export async function details(item) {
  current = item;
  const made = frame(item);
  const tool = new BoxTool(made.node, (box) => { if (box) open(format(box)); });
  $("#details-title").textContent = item.name;
  $("#details-picture").replaceChildren(made.node);
  $("#details-facts").replaceChildren();
  $("#details-part").onclick = () => { if (tool.value) open(format(tool.value)); else { tool.put([250, 250, 500, 500]); tool.node.focus(); } };
  if (!dialog.open) dialog.showModal();
  if (item.id.startsWith("q")) return;
  opened("info", item.id);
  try {
    const facts = await ask(`items/${item.id}`, { params: { features: item.features } });
    if (current !== item) return;
    if (overlay.on) paint(made.canvas, facts, facts.view, facts.mask);
    $("#details-facts").replaceChildren(...lines(item, facts).map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));
  } catch (error) { $("#details-facts").replaceChildren(el("div", { text: error.message })); }
}

function open(box) {
  dialog.close();
  $("#main").dispatchEvent(new CustomEvent("act", { bubbles: true, detail: { action: "open", item: current, box } }));
}

export function setUp() {
  $("#details-like").addEventListener("click", () => open(""));
  dialog.addEventListener("close", () => { $("#details-picture").replaceChildren(); });
}
