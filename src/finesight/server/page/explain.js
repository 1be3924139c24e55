// Shows why two pictures are alike: which places of both, and which learned parts, made the score.

import { ask } from "./api.js";
import { $, el, say, show } from "./dom.js";
import { largest, paint } from "./heat.js";
import { frame } from "./picture.js";
import { place } from "./state.js";

const dialog = $("#explain");
const LEAST = 0.005;  // smaller shares are added up in one line
let running = null;

const percent = (share) => `${Math.round(100 * share)} %`;

/** Paints one entry of the list on both pictures. `most` is shared by the two, so that they can be compared. */
function painter(answer, sides) {
  return ({ query, hit }) => {
    const most = largest(query, hit);
    paint(sides[0].canvas, sides[0].item, answer.query.view, query, most);
    paint(sides[1].canvas, sides[1].item, answer.hit.view, hit, most);
  };
}

function entry(name, note, share, maps, { draw, choose }) {
  const bar = el("span", { class: "bar" }, el("i"));
  bar.firstChild.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  const button = el("button", { type: "button", class: "part", "aria-pressed": "false" },
    el("span", { class: "part-name" }, name, note ? el("small", { text: note }) : null),
    bar, el("span", { class: "part-share", text: percent(share) }));
  button.addEventListener("pointerenter", () => draw(maps));
  button.addEventListener("focus", () => draw(maps));
  button.addEventListener("click", () => choose(button, maps));
  return el("li", {}, button);
}

function list(answer, draw) {
  let chosen = { query: answer.query.map, hit: answer.hit.map };
  const choose = (button, maps) => {
    chosen = maps;
    for (const other of $("#parts").querySelectorAll(".part")) other.setAttribute("aria-pressed", other === button);
    draw(maps);
  };
  const tools = { draw, choose }, score = answer.score || 1;
  const rows = [entry("Everything", "", 1, chosen, tools)];
  const parts = answer.projections.filter((one) => Math.abs(one.share / score) >= LEAST);
  parts.forEach((one, n) => rows.push(entry(`Part ${n + 1}`, `projection ${one.k}`, one.share / score, one, tools)));
  const rest = 1 - parts.reduce((sum, one) => sum + one.share, 0) / score;
  if (parts.length && rest >= LEAST) rows.push(el("li", { class: "rest", text: `All other parts: ${percent(rest)}` }));
  $("#parts").replaceChildren(...rows);
  $("#parts").onpointerleave = () => draw(chosen);
  rows[0].firstChild.setAttribute("aria-pressed", "true");
  draw(chosen);
}

function words(answer) {
  show($("#parts"));
  const score = `The score is ${answer.score.toFixed(2)}.`, [first] = answer.projections;
  $("#explain-words").textContent = `${score} The bright places made most of it: there the two pictures are alike.`;
  $("#parts-hint").textContent = first
    ? "The network has learned to look for certain parts. Choose one to see where it is in both pictures. "
      + "The bar shows its share of the score."
    : "This network has learned no separate parts, but the bright places are exact.";
  say(first ? `${score} Part 1 made ${percent(first.share / (answer.score || 1))} of it.` : score);
}

export async function explain(query, item) {
  running?.abort();
  const mine = running = new AbortController();
  const sides = [query, item].map((one) => ({ item: one, ...frame(one) }));
  const titles = ["Your picture", "This one"];
  $("#explain-pair").replaceChildren(...sides.map((side, n) => el("figure", {}, side.node,
    el("figcaption", {}, el("b", { text: titles[n] }), " ",
      el("span", { class: "name", text: side.item.name, title: side.item.path })))));
  $("#parts").replaceChildren();
  $("#parts-hint").textContent = "";
  $("#explain-words").textContent = "Looking at both pictures…";
  dialog.setAttribute("aria-busy", "true");
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  try {
    const by = item.features === query.features ? place.by : "";
    const params = { query: query.id, hit: item.id, features: item.features, by, box: place.box };
    const answer = await ask("explain", { params, signal: mine.signal });
    words(answer);
    list(answer, painter(answer, sides));
  } catch (error) {
    if (!mine.signal.aborted) $("#explain-words").textContent = error.message;
  } finally {
    if (mine === running) dialog.removeAttribute("aria-busy");
  }
}

export function begin() {
  dialog.addEventListener("close", () => running?.abort());
  const slider = $("#explain-heat");
  const apply = () => dialog.style.setProperty("--heat", slider.value / 100);
  slider.addEventListener("input", apply);
  apply();
}
