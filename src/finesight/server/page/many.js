// Searches by many photos at once: a row for each, and all hits as one table.

import { ask, offer } from "./api.js";
import { cell } from "./csv.js";
import { $, el, say, show } from "./dom.js";
import { filterParams } from "./filters.js";
import { Grid } from "./grid.js";
import { t } from "./i18n.js";
import { place } from "./state.js";

const HITS = 8;
const MOST = 200;
let answers = [], running = 0;

function row(name) {
  const list = el("ul", { class: "grid small-grid" }), words = el("p", { class: "quiet", text: t("many.waiting") });
  const head = el("h2", { text: name });
  const node = el("li", { class: "copies" }, head, words, list);
  $("#many-list").append(node);
  return { list, words, head };
}

async function one(file, shown) {
  const body = new FormData();
  for (const [key, value] of Object.entries({ k: HITS, by: place.by, ...filterParams() })) if (value !== "") body.append(key, value);
  body.append("file", file, file.name);
  const answer = await ask("search", { body });
  answers.push({ name: file.name, hits: answer.hits });
  shown.words.remove();
  shown.head.replaceChildren(el("a", { href: `?q=${answer.query.id}`, text: file.name }));
  new Grid(shown.list).show(answer.hits);
}

/** Searches by one photo after another; a photo that cannot be used has a sentence in its row. */
export async function many(files) {
  const mine = running += 1, taken = files.slice(0, MOST);
  answers = [];
  $("#many-list").replaceChildren();
  show($("#many-export"), false);
  const rows = taken.map((file) => row(file.name));
  for (let n = 0; n < taken.length && mine === running; n += 1) {
    $("#many-title").textContent = t("many.progress", { n: n + 1, total: taken.length });
    try { await one(taken[n], rows[n]); } catch (error) {
      if (mine !== running) return;
      rows[n].words.textContent = error.message;
      if (error.status === undefined) console.error(error);
    }
  }
  if (mine !== running) return;
  $("#many-title").textContent = t("many.done", { count: taken.length });
  if (files.length > MOST) $("#many-title").textContent += ` ${t("many.most", { n: MOST })}`;
  show($("#many-export"), answers.length > 0);
  say($("#many-title").textContent);
}

export const any = () => running > 0;

function save() {
  const rows = answers.flatMap(({ name, hits }) => hits.map((hit, n) => [name, n + 1, hit.path, Number(hit.score.toFixed(6)), hit.id, hit.label]));
  const text = [["query", "place", "path", "score", "id", "label"], ...rows].map((line) => line.map(cell).join(",")).join("\r\n");
  offer(new Blob(["\uFEFF", text, "\r\n"], { type: "text/csv;charset=utf-8" }), "finesight-queries.csv");
}

export function setUp() { $("#many-export").addEventListener("click", save); }
