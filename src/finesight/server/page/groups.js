// Shows groups of pictures that look alike, or all pictures of one group.

import { ask } from "./api.js";
import { Pages } from "./browse.js";
import { $, el, number, pictures, say, show } from "./dom.js";
import { Grid } from "./grid.js";
import { image } from "./picture.js";
import { addressOf, go, place } from "./state.js";
import { problem, waiting } from "./status.js";

const SHOWN = 8;  // pictures of a group in the list
const grid = new Grid($("#group"));
const options = () => ({ method: place.method, count: place.method === "kmeans" ? place.count : "" });
const pages = new Pages(grid, $("#group-more"), async (offset, limit) => {
  const page = await ask(`clusters/${place.group}`, { params: { ...options(), offset, limit }, onwait: waiting });
  $("#groups-title").textContent = `A group of ${pictures(page.size)}`;
  return { total: page.size, items: page.items };
});
let round = 0;

function row(cluster) {
  const name = `Group of ${pictures(cluster.size)}`, href = addressOf({ group: String(cluster.id) });
  const link = el("a", { class: "group", href, "data-group": cluster.id, "aria-label": name },
    el("div", { class: "strip" }, ...cluster.items.slice(0, SHOWN).map((id) => image(id, { lazy: true }))),
    el("span", { class: "quiet", text: pictures(cluster.size) }));
  return el("li", {}, link);
}

async function list() {
  const mine = round += 1;
  $("#groups-title").textContent = "Groups";
  show($("#groups-none"));
  $("#groups-none").textContent = "Grouping the pictures…";
  try {
    const found = await ask("clusters", { params: options(), onwait: waiting });
    if (mine !== round) return;
    $("#groups-list").replaceChildren(...found.clusters.map(row));
    const count = found.clusters.length;
    $("#groups-title").textContent = count === 1 ? "1 group" : `${number(count)} groups`;
    const lone = found.unclustered;
    const rest = lone ? `${pictures(lone)} ${lone === 1 ? "is" : "are"} in no group.` : "";
    $("#groups-none").textContent = count ? rest : `No groups were found. ${rest}`;
    show($("#groups-none"), !count || Boolean(rest));
    say($("#groups-title").textContent);
  } catch (error) {
    if (mine !== round) return;
    $("#groups-list").replaceChildren();
    if (error.status === 404 || error.status === 501) $("#groups-none").textContent = "This server cannot make groups.";
    else { show($("#groups-none"), false); problem(error, list); }
  }
}

/** Shows what the changed address names. */
export function arrive() {
  const one = place.group !== "";
  $("#groups-method").value = place.method;
  $("#groups-count").value = place.count;
  show($("#groups-count-part"), place.method === "kmeans");
  show($("#groups-list"), !one);
  show($("#groups-words"), !one);
  show($("#group"), one);
  show($("#groups-choices"), !one);
  show($("#groups-back"), one);
  show($("#groups-none"), false);
  if (!one) return list();
  round += 1;
  grid.show([]);
  return pages.start();
}

export function begin(move) {
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
