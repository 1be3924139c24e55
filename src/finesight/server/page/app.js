// Connects the modules: shows the view that the address names, and handles keys.

import { Problem, ask } from "./api.js";
import * as browse from "./browse.js";
import * as compare from "./compare.js";
import { save } from "./csv.js";
import { $, $$, inDialog, kept, pictures, say, show } from "./dom.js";
import * as explain from "./explain.js";
import { itemAt } from "./grid.js";
import * as groups from "./groups.js";
import * as intake from "./intake.js";
import * as search from "./search.js";
import { FRESH, go, marks, overlay, place, readPlace } from "./state.js";
import { clearProblem, dismiss, health, problem, watch } from "./status.js";
import * as training from "./training.js";

let sampled = -1;  // number of items when the samples of the welcome were loaded

/** Shows the view that the address names. */
function render() {
  const searching = place.view === "search" && place.q !== "";
  show($("#welcome"), place.view === "search" && !searching);
  show($("#browse"), place.view === "browse");
  show($("#groups"), place.view === "groups");
  if (!searching) { search.stop(); show($("#found"), false); document.title = "FineSight"; }
  for (const link of $$("nav [data-go]")) {
    if (link.dataset.go === place.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (searching) search.arrive();
  else if (place.view === "browse") browse.arrive();
  else if (place.view === "groups") groups.arrive();
  else welcome();
  show($("#building-again"), false);
}

/** Loads new samples each time the welcome is opened. While it is shown, `later` only fills it up. */
function welcome(later = false) {
  if (!health || sampled === health.items || (later && sampled >= browse.SAMPLES)) return;
  sampled = health.items;
  browse.sample(health.items);
}

function move(changes) { go(changes); clearProblem(); render(); window.scrollTo({ top: 0 }); }

/** Shows both lists of the picture that is searched for, or of the first one there is. */
async function compareFeatures() {
  const id = place.q || itemAt($("#samples .card"))?.id || (await ask("items", { params: { limit: 1 } })).items[0]?.id;
  if (id) move({ ...FRESH, q: id, features: "both" });
}

/** Starts a new query, without the box but with the same way to compare. */
function moreLike(item) { move({ ...FRESH, q: item.id }); }

function act({ action, item }) {
  if (action === "open") moreLike(item);
  else if (action === "pin") compare.togglePin(item);
  else if (action === "why" && search.query) explain.explain(search.query, item);
  else if (action === "select") {
    marks.select(item);
    say(`${item.name} ${marks.selected.has(item.id) ? "selected" : "no longer selected"}.`);
  }
}

function exportCsv() {
  const items = marks.selected.size ? [...marks.selected.values()] : search.hits.items;
  if (!items.length) { say("There is nothing to export."); return; }
  save(items);
  say(`${pictures(items.length)} exported.`);
}

function takePhoto(file) {
  $$("dialog[open]").forEach((dialog) => dialog.close());
  if (place.view !== "search") move({ ...FRESH, q: "" });
  search.search({ file });
}

// --- keys -----------------------------------------------------------------------------------------------------------

const KEYS = {
  o: () => overlay.set({ on: !overlay.on }),
  b: () => { if (!$("#found").hidden) search.beginBox(); },
  c: () => compare.compare(),
  "?": () => $("#help").showModal(),
  "/": () => {
    if (place.view !== "browse") move({ ...FRESH, view: "browse", q: "" });
    $("#filter").focus();
    $("#filter").select();
  },
  e: () => { const item = itemAt(document.activeElement); if (item && !$("#found").hidden) act({ action: "why", item }); },
  p: () => {
    const inPanel = $("#panel").contains(document.activeElement);
    const item = itemAt(document.activeElement) ?? (inPanel ? search.query : null);
    if (item) act({ action: "pin", item });
  },
  s: () => { const item = itemAt(document.activeElement); if (item) act({ action: "select", item }); },
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const field = event.target.closest?.("input:not([type=checkbox], [type=radio], [type=range]), select, textarea");
  if (field) { if (event.key === "Escape") field.blur(); return; }
  const key = event.key.toLowerCase();
  if (inDialog()) { if (key === "o" && $("#compare").open) KEYS.o(); return; }
  if (key in KEYS) { event.preventDefault(); KEYS[key](); return; }
  if (key === "escape") clearProblem();
  const idle = document.activeElement === document.body || document.activeElement === $("#main");
  if (idle && (key === "arrowdown" || key === "arrowright")) {
    const first = $$(".grid").find((list) => list.offsetParent !== null && list.children.length);
    if (first) { event.preventDefault(); first.querySelector('.open[tabindex="0"]')?.focus(); }
  }
}

// --- controls that are in several places --------------------------------------------------------------------------------

function overlayControls() {
  const pairs = [["#overlay-on", "#overlay"], ["#compare-on", "#compare-overlay"]];
  const shown = () => {
    for (const [box, slider] of pairs) {
      $(box).checked = overlay.on;
      $(slider).value = overlay.strength;
      $(slider).disabled = !overlay.on;
    }
    $(".legend").classList.toggle("off", !overlay.on);
  };
  for (const [box, slider] of pairs) {
    $(box).addEventListener("change", (event) => overlay.set({ on: event.target.checked }));
    $(slider).addEventListener("input", (event) => overlay.set({ strength: Number(event.target.value) }));
  }
  overlay.addEventListener("change", shown);
  overlay.apply();
  shown();
}

function theme() {
  const root = document.documentElement;
  $("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    kept.set("theme", root.dataset.theme);
    say(dark ? "Light colors." : "Dark colors.");
  });
}

function onHealth(now, before) {
  search.offer(now);
  training.present();
  const grown = before !== null && now.items !== before.items;
  if (place.view === "search" && !place.q) welcome(true);
  else if (grown) show($("#building-again"));
}

function begin() {
  readPlace();
  document.addEventListener("act", (event) => act(event.detail));
  document.addEventListener("keydown", onKey);
  addEventListener("popstate", () => {
    readPlace();
    clearProblem();
    $$("dialog[open]").forEach((dialog) => dialog.close());
    render();
  });
  for (const link of $$("[data-go]")) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      move({ ...FRESH, q: "", view: link.dataset.go });
    });
  }
  for (const button of $$("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
  for (const dialog of $$("dialog")) {
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });  // beside it
  }
  for (const button of $$("[data-export]")) button.addEventListener("click", exportCsv);
  $("[data-select-all]").addEventListener("click", () => {
    marks.selectAll(search.hits.items);
    say(`${pictures(marks.selected.size)} selected.`);
  });
  $("#help-open").addEventListener("click", KEYS["?"]);
  $("#building-again").addEventListener("click", () => { render(); if (place.q) search.search(); dismiss(); });
  intake.begin(takePhoto, (words) => problem(new Problem(words, 400)));
  search.begin();
  browse.begin();
  groups.begin(move);
  explain.begin();
  compare.begin();
  training.begin(compareFeatures);
  overlayControls();
  theme();
  watch(onHealth);
  render();
}

begin();
