// Connects the modules: shows the view that the address names, and handles keys.

import { Problem, ask } from "./api.js";
import * as browse from "./browse.js";
import * as cardbox from "./cardbox.js";
import * as compare from "./compare.js";
import * as copies from "./copies.js";
import * as detail from "./details.js";
import { save } from "./csv.js";
import { $, $$, inDialog, kept, say, show } from "./dom.js";
import * as explain from "./explain.js";
import * as filters from "./filters.js";
import { between, cards, itemAt } from "./grid.js";
import * as groups from "./groups.js";
import { pictures, t, translate } from "./i18n.js";
import * as intake from "./intake.js";
import * as many from "./many.js";
import * as map from "./map.js";
import * as notes from "./notes.js";
import * as saved from "./saved.js";
import * as search from "./search.js";
import { offerIndexes } from "./several.js";
import { FRESH, go, marks, overlay, place, readPlace, watchWindows } from "./state.js";
import { clearProblem, dismiss, health, problem, watch } from "./status.js";
import * as training from "./training.js";
import * as words from "./words.js";

let sampled = -1;  // number of items when the samples of the welcome were loaded

/** Shows the view that the address names. */
function render() {
  const searching = place.view === "search" && place.q !== "";
  show($("#welcome"), place.view === "search" && !searching);
  show($("#browse"), place.view === "browse");
  show($("#groups"), place.view === "groups");
  show($("#copies"), place.view === "copies");
  show($("#many"), place.view === "many");
  show($("#map"), place.view === "map");
  show($("#many-none"), !many.any());
  if (!searching) { search.stop(); show($("#found"), false); document.title = "FineSight"; }
  for (const link of $$("nav [data-go]")) {
    if (link.dataset.go === place.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  filters.present();
  if (searching) search.arrive();
  else if (place.view === "browse") browse.arrive();
  else if (place.view === "groups") groups.arrive();
  else if (place.view === "copies") copies.arrive();
  else if (place.view === "map") map.arrive();
  else if (place.view !== "many") welcome();
  show($("#building-again"), false);
  openWindow();
}

/** Opens the window that the address names; `search` opens that of a hit. */
async function openWindow() {
  const { info, compare: pins } = place;
  try {
    if (info) {
      const item = await ask(`items/${encodeURIComponent(info)}`);
      if (place.info === info) detail.details(item);
    } else if (pins) {
      const { items } = await ask("items/list", { json: { ids: pins.split(",") } });
      if (place.compare === pins) compare.compare(items);
    }
  } catch (error) { problem(error); }
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
function moreLike(item, box = "") { move({ ...FRESH, q: item.id, box }); }

let anchor = null;  // the card that was selected last: with Shift, all from there are selected

function act({ action, item, shift = false, card = null, box = "" }) {
  if (action === "open") moreLike(item, box);
  else if (action === "info") detail.details(item);
  else if (action === "pin") compare.togglePin(item);
  else if (action === "why" && search.query) explain.explain(search.query, item);
  else if (action === "select") {
    const range = shift && anchor?.isConnected && card ? between(anchor, card) : [];
    anchor = card ?? cards(item).own;
    if (range.length) { marks.selectAll(range); say(t("tray.selected", { n: marks.selected.size })); return; }
    marks.select(item);
    say(t(marks.selected.has(item.id) ? "selected.say" : "unselected.say", item));
  }
}

function exportCsv() {
  const items = marks.selected.size ? [...marks.selected.values()] : search.hits.items;
  if (!items.length) { say(t("export.none")); return; }
  save(items);
  say(t("exported", { pictures: pictures(items.length) }));
}

/** Selects all pictures that are listed. */
function selectAll() {
  const lists = $$(".grid").filter((list) => list.offsetParent !== null);
  const found = lists.flatMap((list) => [...list.children].map(itemAt));
  marks.selectAll(found);
  say(t("tray.selected", { n: marks.selected.size }));
}

function takePhotos(files) {
  $$("dialog[open]").forEach((dialog) => dialog.close());
  if (files.length > 1) { move({ ...FRESH, q: "", view: "many" }); many.many(files); return; }
  const [file] = files;
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
  a: () => selectAll(),
  i: () => { const item = itemAt(document.activeElement) ?? search.query; if (item) detail.details(item); },
  l: () => notes.begin("#label-input", itemAt(document.activeElement)),
  t: () => notes.begin("#tag-input", itemAt(document.activeElement)),
  u: () => notes.notes.undo(),
  s: () => { const item = itemAt(document.activeElement); if (item) act({ action: "select", item }); },
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const field = event.target.closest?.("input:not([type=checkbox], [type=radio], [type=range]), select, textarea");
  if (field) { if (event.key === "Escape") field.blur(); return; }
  const key = event.key.toLowerCase();
  if (inDialog()) { if (key === "o" && $("#compare").open) KEYS.o(); return; }
  if (/^[1-9]$/.test(key)) { event.preventDefault(); notes.quick(Number(key), itemAt(document.activeElement)); return; }
  if (key in KEYS) { event.preventDefault(); KEYS[key](); return; }
  if (key === "escape") { clearProblem(); if (marks.selected.size) marks.clear(); }
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
    say(t(dark ? "theme.light" : "theme.dark"));
  });
}

function onHealth(now, before) {
  if (before !== null && now.items !== before.items) { filters.loadFolders(); notes.notes.load(); }
  search.offer(now);
  words.offer(now);
  training.present();
  const grown = before !== null && (now.items !== before.items || now.encoder.fingerprint !== before.encoder.fingerprint);
  if (grown) map.forget();
  if (place.view === "search" && !place.q) welcome(true);
  else if (grown) show($("#building-again"));
}

function begin() {
  translate();
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
  watchWindows();
  for (const dialog of $$("dialog")) {
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });  // beside it
  }
  for (const button of $$("[data-export]")) button.addEventListener("click", exportCsv);
  for (const button of $$("[data-select-all]")) button.addEventListener("click", selectAll);
  $("#help-open").addEventListener("click", KEYS["?"]);
  $("#building-again").addEventListener("click", () => { render(); if (place.q) search.search(); dismiss(); });
  intake.begin(takePhotos, (words) => problem(new Problem(words, 400)));
  search.begin();
  browse.begin();
  groups.begin(move);
  words.setUp(move);
  explain.begin();
  compare.begin();
  notes.setUp();
  copies.setUp();
  detail.setUp();
  cardbox.setUp();
  many.setUp();
  map.setUp();
  saved.setUp();
  filters.setUp(() => (place.view === "browse" ? browse.arrive() : search.search()));
  training.begin(compareFeatures);
  overlayControls();
  theme();
  offerIndexes();
  watch(onHealth);
  render();
}

begin();
