// Runs a search, and shows the query on the left and the hits on the right.

import { ask } from "./api.js";
import { BoxTool, format, parse } from "./box.js";
import { $, el, later, say, show } from "./dom.js";
import { explain } from "./explain.js";
import { filterParams, filtering } from "./filters.js";
import { Grid } from "./grid.js";
import { paint } from "./heat.js";
import { known, pictures, t } from "./i18n.js";
import { frame } from "./picture.js";
import * as sides from "./sides.js";
import { FRESH, go, marks, place } from "./state.js";
import { clearProblem, first, problem, waiting } from "./status.js";

export const hits = new Grid($("#hits"), { why: true });
export let query = null;  // the query of the last answer, as an item that can be pinned
let shown = "";  // the parameters of that answer

let running = null, tool = null, canvas = null, spaces = [];

function options(features = sides.chosen()) {
  const { k, box, diversity, min } = place;
  return { k, by: sides.byOf(features), features, box, diversity: diversity || "", min_score: min > 0 ? min : "", ...filterParams() };
}

function bodyOf(file) {
  const body = new FormData();
  for (const [name, value] of Object.entries({ ...options(), box: "" })) if (value !== "") body.append(name, value);
  body.append("file", file, file.name || t("pasted"));
  return body;
}

/** Searches by a given photo, or by the picture that the address names. */
export async function search({ file = null } = {}) {
  running?.abort();
  const mine = running = new AbortController();
  clearProblem();
  busy(true, file);
  await first;  // only the server knows which features and spaces the address may name
  if (mine !== running) return;
  const common = { signal: mine.signal, onwait: waiting };
  try {
    const answer = file
      ? await ask("search", { ...common, body: bodyOf(file) })
      : await ask("search", { ...common, params: { query: place.q, ...options() } });
    const params = { ...options("after"), query: answer.query.id, box: file ? "" : place.box };
    const after = sides.wanted() ? await ask("search", { ...common, params }) : null;
    if (mine !== running) return;
    if (file) go({ ...FRESH, q: answer.query.id });
    clearProblem();
    present(answer, after);
  } catch (error) {
    if (mine.signal.aborted) return;
    problem(error, () => search({ file }));
    const stays = query !== null && query.id === place.q;  // what was found before
    show($("#found"), stays);
    show($("#welcome"), !stays);
    if (stays) title();
  } finally {
    if (mine === running) busy(false);
  }
}

export function stop() { running?.abort(); busy(false); }

function busy(wanted, file = null) {
  $("#found").setAttribute("aria-busy", wanted);
  document.body.classList.toggle("looking", wanted);
  if (!wanted) return;
  if (file || !query) $("#found-title").textContent = t("looking");
  say(t("looking"));
}

function present(answer, after) {
  const fresh = answer.query.id !== query?.id;
  const inPanel = $("#panel").contains(document.activeElement);
  shown = question();
  query = { ...answer.query, path: answer.query.path ?? answer.query.name, features: answer.features };
  showQuery(fresh);
  sides.present(hits, answer, after);
  show($("#welcome"), false);
  show($("#found"));
  const count = answer.hits.length;
  title();
  $("#none").textContent = place.min > 0
    ? t("none.score", { score: place.min.toFixed(2) })
    : t(filtering() ? "filter.none" : "none.other");
  show($("#none"), !count);
  chosen(answer.by);
  document.title = `${query.name} · FineSight`;
  say(count ? t("found.say", { pictures: pictures(count), score: answer.hits[0].score.toFixed(2) }) : t("nothing"));
  if (fresh) window.scrollTo({ top: 0 });
  if (fresh && !inPanel) hits.focus();
  openWhy();
}

/** Explains the hit that the address names. */
function openWhy() {
  const item = place.why && sides.find(hits, place.why);
  if (item) explain(query, item);
  else if (place.why) go({ why: "" }, { replace: true });
}

function title() {
  const count = hits.items.length;
  $("#found-title").textContent = count ? t(place.box ? "found.part" : "found", { pictures: pictures(count) }) : t("found.none");
}

function showQuery(fresh) {
  if (fresh || !tool) {
    const made = frame(query);
    canvas = made.canvas;
    $("#query").replaceChildren(made.node);
    tool = new BoxTool(made.node, boxed);
  }
  if (place.box) unfold(true);
  if (!tool.drag) tool.put(place.box ? parse(place.box) : null);
  paint(canvas, query, query.view, query.mask);
  $("#query-name").textContent = query.name;
  boxButtons();
  markQuery();
}

const soon = later(300, () => search());

function boxed(box) {
  const text = format(box);
  go({ box: text }, { replace: Boolean(text && place.box) });
  boxButtons();
  soon();
}

function boxButtons() {
  const there = Boolean(tool?.value);
  show($("#box-clear"), there);
  show($("#box-add"), !there);
  $("#box-hint").classList.toggle("free", !there);
  $("#box-hint").textContent = t(there ? "part.there" : "part.hint");
}

/** Begins a box; on a phone the picture has to be large for it. */
export function beginBox() { unfold(true); tool?.begin(); }

/** Opens or folds the choices, which are folded on a phone so that the hits come first. */
function unfold(wanted) {
  $("#panel").classList.toggle("open", wanted);
  $("#found").classList.toggle("unfolded", wanted);
  $("#panel-toggle").setAttribute("aria-expanded", wanted);
}

function markQuery() {
  const there = query !== null && marks.pinned(query.id);
  $("#query-pin").setAttribute("aria-pressed", there);
  $("#query-pin").textContent = t(there ? "pinned" : "pin");
}

/** Fills the choice "compare by" with the spaces of the index. */
export function offer(health) {
  if (sides.offer(health) && query !== null && !$("#found").hidden) search();
  const found = sides.spaces();
  if (found.join() === spaces.join()) return;
  spaces = found;
  $("#by div").replaceChildren(...found.map((space, index) => {
    const key = `by.${space.split("-")[0]}`, [label, hint] = known(key) ? [t(key), t(`${key}.title`)] : [space, ""];
    const choose = () => { go({ by: index ? space : "" }); search(); };
    const input = el("input", { type: "radio", name: "by", value: space, onchange: choose });
    return el("label", { title: hint }, input, el("span", { text: label }));
  }));
  show($("#by"), found.length > 1);
  chosen(place.by || found[0]);
}

function offerAgain() { const known = sides.health(); if (known) offer(known); }

function chosen(by) { for (const input of document.querySelectorAll('#by input')) input.checked = input.value === by; }

function controls() {
  $("#k").value = [...$("#k").options].some((option) => Number(option.value) === place.k) ? place.k : 24;
  $("#min").value = place.min;
  $("#diversity").value = place.diversity;
  words();
}

function words() {
  const [min, diversity] = [Number($("#min").value), Number($("#diversity").value)];
  $("#min-out").textContent = min > 0 ? min.toFixed(2) : t("min.any");
  $("#diversity-out").textContent = diversity > 0 ? diversity.toFixed(1) : t("variety.none");
}

/** Shows what the changed address names. */
export function arrive() {
  controls();
  offerAgain();
  if (query !== null) show($("#found"));
  if (query === null || question() !== shown) search();
  else openWhy();
}

function question() {
  const { q, features, by, box, k, min, diversity } = place;
  return JSON.stringify([q, features, by, box, k, min, diversity, filterParams()]);
}

export function begin() {
  sides.begin(() => { offerAgain(); search(); });
  const value = (name) => Number($(`#${name}`).value);
  const changed = later(250, () => {
    go({ k: value("k"), min: value("min"), diversity: value("diversity") }, { replace: true });
    search();
  });
  for (const name of ["k", "min", "diversity"]) $(`#${name}`).addEventListener("input", () => { words(); changed(); });
  $("#panel-toggle").addEventListener("click", () => unfold(!$("#panel").classList.contains("open")));
  $("#box-add").addEventListener("click", beginBox);
  $("#box-clear").addEventListener("click", () => { tool.set(null); $("#box-add").focus(); });
  $("#query-pin").addEventListener("click", (event) => {
    event.target.dispatchEvent(new CustomEvent("act", { bubbles: true, detail: { action: "pin", item: query } }));
  });
  $("#more").open = matchMedia("(min-width: 900px)").matches;
  marks.addEventListener("change", markQuery);
}
