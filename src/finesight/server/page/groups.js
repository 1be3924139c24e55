// Shows groups of pictures that look alike, or all pictures of one group.

import { ask } from "./api.js";
import { Pages } from "./browse.js";
import { $, el, say, show } from "./dom.js";
import { Grid } from "./grid.js";
import { pictures, t } from "./i18n.js";
import * as mine from "./mine.js";
import { image } from "./picture.js";
import { addressOf, go, place } from "./state.js";
import { problem, waiting } from "./status.js";

const SHOWN = 8;  // pictures of a group in the list
const grid = new Grid($("#group"));
const options = () => ({ method: place.method, count: place.method === "kmeans" ? place.count : "" });
let own = false;  // whether groups of one's own are shown
const pages = new Pages(grid, $("#group-more"), async (offset, limit) => {
  if (own) {
    const found = await ask(`groups/${place.group}`, { params: { offset, limit }, onwait: waiting });
    $("#groups-title").textContent = found.name ? t("mine.of", { name: found.name, pictures: pictures(found.size) }) : t("group.of", { pictures: pictures(found.size) });
    return { total: found.size, items: found.items };
  }
  const page = await ask(`clusters/${place.group}`, { params: { ...options(), offset, limit }, onwait: waiting });
  $("#groups-title").textContent = t("group.of", { pictures: pictures(page.size) });
  return { total: page.size, items: page.items };
});
let round = 0;

function row(cluster) {
  const name = t("group.name", { pictures: pictures(cluster.size) }), href = addressOf({ group: String(cluster.id) });
  const link = el("a", { class: "group", href, "data-group": cluster.id, "aria-label": name },
    el("div", { class: "strip" }, ...cluster.items.slice(0, SHOWN).map((id) => image(id, { lazy: true }))),
    el("span", { class: "quiet", text: pictures(cluster.size) }));
  return el("li", {}, link);
}

async function list() {
  const mine = round += 1;
  $("#groups-title").textContent = t("groups");
  show($("#groups-none"));
  $("#groups-none").textContent = t("groups.making");
  try {
    const found = await ask("clusters", { params: options(), onwait: waiting });
    if (mine !== round) return;
    $("#groups-list").replaceChildren(...found.clusters.map(row));
    const count = found.clusters.length;
    $("#groups-title").textContent = t("groups.count", { count });
    const lone = found.unclustered;
    const rest = lone ? t("groups.rest", { count: lone }) : "";
    $("#groups-none").textContent = count ? rest : `${t("groups.none")} ${rest}`;
    show($("#groups-none"), !count || Boolean(rest));
    say($("#groups-title").textContent);
  } catch (error) {
    if (mine !== round) return;
    $("#groups-list").replaceChildren();
    if (error.status === 404 || error.status === 501) $("#groups-none").textContent = t("groups.cannot");
    else { show($("#groups-none"), false); problem(error, list); }
  }
}

/** Shows what the changed address names. */
export async function arrive() {
  const mineRound = round += 1;
  $("#groups-title").textContent = t("groups");
  try { await mine.load(); } catch { /* the groups that were found are shown */ }
  if (mineRound !== round || place.view !== "groups") return undefined;
  own = mine.shown();
  const one = place.group !== "";
  show($("#mine-tools"), own && !one);
  show($("#found-tools"), !own && !one);
  show($("#mine-back"), mine.exists());
  mine.presentMove();
  $("#mine-words").textContent = "";
  $("#groups-method").value = place.method;
  $("#groups-count").value = place.count;
  show($("#groups-count-part"), place.method === "kmeans");
  show($("#groups-list"), !one);
  show($("#groups-words"), !one);
  $("#groups-words").textContent = t(own ? "mine.words" : "groups.words");
  show($("#group"), one);
  show($("#groups-choices"), !one && !own);
  show($("#groups-back"), one);
  show($("#groups-none"), false);
  if (!one && own) return mine.list();
  if (!one) return list();
  round += 1;
  grid.show([]);
  return pages.start();
}

export function begin(move) {
  mine.setUp(arrive);
  $("#groups-method").addEventListener("change", (event) => { go({ method: event.target.value }); arrive(); });
  $("#groups-count").addEventListener("change", (event) => {
    if (!event.target.checkValidity()) { event.target.reportValidity(); return; }
    go({ count: event.target.value });
    arrive();
  });
  $("#groups-back").addEventListener("click", () => move({ group: "" }));
  $("#groups-list").addEventListener("click", (event) => {
    const link = event.target.closest("[data-group]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    move({ group: link.dataset.group });
  });
}
