// Shows pictures that are copies of one another. "Keep best" tags the others; no file is ever deleted.

import { ask } from "./api.js";
import { Pages } from "./browse.js";
import { $, el, say, show } from "./dom.js";
import { Grid } from "./grid.js";
import { pictures, t } from "./i18n.js";
import { notes } from "./notes.js";
import { go, place } from "./state.js";
import { problem, waiting } from "./status.js";

export const KEEP = "keep", COPY = "duplicate";  // tags
const options = () => ({ threshold: place.threshold, keep: place.keep });
let answers = [];

/** Shows a group as a grid of its own; the best is first and marked. */
class Groups {
  list = $("#copies-list");

  show(found) { this.list.replaceChildren(); answers = []; this.add(found); }

  add(found) {
    for (const group of found) {
      const list = el("ul", { class: "grid small-grid", "aria-label": t(`copies.${group.kind}`) });
      const button = el("button", { type: "button", class: "small", text: t("copies.keep"), onclick: () => keep([group], button) });
      this.list.append(el("li", { class: "copies" },
        el("div", { class: "row between" }, el("h2", { text: t("copies.title", { pictures: pictures(group.items.length), kind: t(`copies.${group.kind}`) }) }), button), list));
      const best = { kind: "up", text: t("copies.best"), title: t(`copies.${place.keep}.title`) };
      new Grid(list).show(group.items.map((item, n) => ({ ...item, change: n ? null : best, facts: `${item.width} × ${item.height}, ${size(item.bytes)}` })));
      answers.push(group);
    }
  }
}

const size = (bytes) => (bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.max(1, Math.round(bytes / 1e3))} kB`);
const pages = new Pages(new Groups(), $("#copies-more"), async (offset, limit) => {
  const found = await ask("duplicates", { params: { ...options(), offset, limit }, onwait: waiting });
  $("#copies-title").textContent = t("copies.count", { count: found.total });
  show($("#copies-none"), found.total === 0);
  $("#copies-none").textContent = t("copies.none");
  show($("#copies-all"), found.total > 0);
  $("#copies-all").textContent = t("copies.keep.all", { n: found.total });
  if (offset === 0) say($("#copies-title").textContent);
  return { total: found.total, items: found.groups };
});

/** Tags the best of each group, and the others as copies of it. */
async function keep(groups, button) {
  const best = groups.map((group) => group.items[0].id), others = groups.flatMap((group) => group.items.slice(1).map((item) => item.id));
  button.disabled = true;
  const done = await notes.give(others, { add_tags: [COPY], remove_tags: [KEEP] }) && await notes.give(best, { add_tags: [KEEP], remove_tags: [COPY] });
  button.disabled = false;
  if (!done) return;
  const words = t("copies.kept", { pictures: pictures(others.length) });
  say(words);
  $("#copies-words").textContent = words;
}

async function keepAll(button) {
  const all = [];
  button.disabled = true;
  try {
    for (let offset = 0, total = 1; offset < total; offset += 500) {
      const page = await ask("duplicates", { params: { ...options(), offset, limit: 500 }, onwait: waiting });
      total = page.total;
      all.push(...page.groups);
    }
  } catch (error) { button.disabled = false; problem(error); return; }
  await keep(all, button);
}

export function arrive() {
  $("#copies-threshold").value = place.threshold;
  $("#copies-threshold-out").textContent = Number(place.threshold).toFixed(2);
  $("#copies-keep").value = place.keep;
  $("#copies-words").textContent = "";
  $("#copies-title").textContent = t("copies.looking");
  show($("#copies-all"), false);
  return pages.start();
}

export function setUp() {
  $("#copies-threshold").addEventListener("input", (event) => { $("#copies-threshold-out").textContent = Number(event.target.value).toFixed(2); });
  $("#copies-threshold").addEventListener("change", (event) => { go({ threshold: Number(event.target.value) }); arrive(); });
  $("#copies-keep").addEventListener("change", (event) => { go({ keep: event.target.value }); arrive(); });
  $("#copies-all").addEventListener("click", (event) => keepAll(event.target));
}
