// Shows why two pictures are alike: which places of both, and which learned parts, made the score.

import { ask } from "./api.js";
import { $, el, say, show } from "./dom.js";
import { largest, paint } from "./heat.js";
import { t } from "./i18n.js";
import { frame } from "./picture.js";
import { nameOf } from "./sides.js";
import { opened, place } from "./state.js";

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

const called = (one, n) => one.name || t("explain.part", { n: n + 1 });

/** Makes the line of one part, with a button that lets people name it. */
function part(one, n, share, tools) {
  const line = entry(called(one, n), t("explain.projection", { k: String(one.k) }), share, one, tools);
  const rename = el("button", { type: "button", class: "small", text: t("part.name"), "aria-label": t("part.name.of", { name: called(one, n) }) });
  rename.addEventListener("click", () => {
    const input = el("input", { type: "text", value: one.name, maxlength: "100", "aria-label": t("part.name.of", { name: called(one, n) }) });
    const done = async () => {
      const name = input.value.trim();
      if (name !== one.name) {
        try { await ask("parts", { json: { k: one.k, name, features: tools.features } }); one.name = name; } catch (error) { $("#explain-words").textContent = error.message; }
      }
      const fresh = part(one, n, share, tools);
      line.replaceWith(fresh);
      fresh.querySelector(".small").focus();
    };
    input.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === "Escape") { event.preventDefault(); if (event.key === "Escape") input.value = one.name; input.blur(); } });
    input.addEventListener("blur", done, { once: true });
    rename.replaceWith(input);
    input.focus();
  });
  line.classList.add("with-name");
  line.append(rename);
  return line;
}

function list(answer, draw, features) {
  let chosen = { query: answer.query.map, hit: answer.hit.map };
  const choose = (button, maps) => {
    chosen = maps;
    for (const other of $("#parts").querySelectorAll(".part")) other.setAttribute("aria-pressed", other === button);
    draw(maps);
  };
  const tools = { draw, choose, features }, score = answer.score || 1;
  const rows = [entry(t("explain.all"), "", 1, chosen, tools)];
  const parts = answer.projections.filter((one) => Math.abs(one.share / score) >= LEAST);
  parts.forEach((one, n) => rows.push(part(one, n, one.share / score, tools)));
  const rest = 1 - parts.reduce((sum, one) => sum + one.share, 0) / score;
  if (parts.length && rest >= LEAST) rows.push(el("li", { class: "rest", text: t("explain.rest", { share: percent(rest) }) }));
  $("#parts").replaceChildren(...rows);
  $("#parts").onpointerleave = () => draw(chosen);
  rows[0].firstChild.setAttribute("aria-pressed", "true");
  draw(chosen);
}

function words(answer) {
  show($("#parts"));
  const score = t("explain.score", { score: answer.score.toFixed(2) }), [first] = answer.projections;
  $("#explain-words").textContent = `${score} ${t("explain.words")}`;
  $("#parts-hint").textContent = t(first ? "explain.hint" : "explain.no.parts");
  say(first ? `${score} ${t("explain.say", { share: percent(first.share / (answer.score || 1)) })}` : score);
}

export async function explain(query, item) {
  running?.abort();
  opened("why", nameOf(item));
  const mine = running = new AbortController();
  const sides = [query, item].map((one) => ({ item: one, ...frame(one) }));
  const titles = [t("explain.yours"), t("explain.this")];
  $("#explain-pair").replaceChildren(...sides.map((side, n) => el("figure", {}, side.node,
    el("figcaption", {}, el("b", { text: titles[n] }), " ",
      el("span", { class: "name", text: side.item.name, title: side.item.path })))));
  $("#parts").replaceChildren();
  $("#parts-hint").textContent = "";
  $("#explain-words").textContent = t("explain.looking");
  dialog.setAttribute("aria-busy", "true");
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  try {
    const by = item.features === query.features ? place.by : "";
    const params = { query: query.id, hit: item.id, features: item.features, by, box: place.box };
    const answer = await ask("explain", { params, signal: mine.signal });
    words(answer);
    list(answer, painter(answer, sides), item.features ?? null);
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
