// The bar that filters pictures by folder, label and tag. What it says is in the address; lists and searches use it.

import { ask } from "./api.js";
import { $, $$, el, show } from "./dom.js";
import { number, t } from "./i18n.js";
import { notes } from "./notes.js";
import { go, place } from "./state.js";

export const NAMES = ["folder", "label", "tag", "since", "until", "camera"];
const UNLABELED = "\u0000none";  // no label can be called so

/** Returns what the API takes. */
export function filterParams() {
  const { folder, label, tag, since, until, camera } = place;
  return { folder, tag, since, until, camera, label: label === UNLABELED ? "" : label, labeled: label === UNLABELED ? "false" : "" };
}

export const filtering = () => NAMES.some((name) => place[name]);
export const NONE = Object.fromEntries(NAMES.map((name) => [name, ""]));

let folders = [], camera = { shown: false, dated: 0, cameras: [] };

function fill(select, all, options) {
  const name = select.dataset.filter;
  select.replaceChildren(el("option", { value: "", text: all }), ...options.map(([value, text]) => el("option", { value, text })));
  if (place[name] && !options.some(([value]) => value === place[name])) select.append(el("option", { value: place[name], text: place[name] }));
  select.value = place[name];
  select.classList.toggle("used", Boolean(place[name]));
}

const counted = (one) => [one.name, `${one.name} (${number(one.count)})`];

/** Shows the choices and what is chosen. */
export function present() {
  for (const bar of $$(".filters")) {
    fill($('[data-filter="folder"]', bar), t("filter.folders"), folders.map(counted));
    const unlabeled = [UNLABELED, t("filter.unlabeled", { count: notes.unlabeled })];
    fill($('[data-filter="label"]', bar), t("filter.labels"), [...notes.labels.map(counted), unlabeled]);
    fill($('[data-filter="tag"]', bar), t("filter.tags"), notes.tags.map(counted));
    fill($('[data-filter="camera"]', bar), t("filter.cameras"), camera.cameras.map(counted));
    show($('[data-filter="camera"]', bar).parentElement, camera.cameras.length > 0 || Boolean(place.camera));
    for (const name of ["since", "until"]) {
      const input = $(`[data-filter="${name}"]`, bar);
      input.value = place[name];
      Object.assign(input, { min: camera.first ?? "", max: camera.last ?? "" });
      show(input.parentElement, camera.dated > 0 || Boolean(place[name]));
    }
    show($("[data-unfilter]", bar), filtering());
    bar.classList.toggle("on", filtering());
  }
}

export async function loadFolders() {
  try {
    folders = (await ask("folders")).folders;
    camera = await ask("camera");
    present();
    if (camera.reading || camera.known === 0) setTimeout(loadFolders, camera.shown ? 5000 : 600_000);  // dates come while files are read
  } catch { /* the bar is without them */ }
}

export function setUp(changed) {
  for (const select of $$("[data-filter]")) {
    select.addEventListener("change", () => { go({ [select.dataset.filter]: select.value }); present(); changed(); });
  }
  for (const button of $$("[data-unfilter]")) button.addEventListener("click", () => { go(NONE); present(); changed(); });
  $("#browse-toggle").addEventListener("click", (event) => {  // on a phone the pictures come first
    event.target.setAttribute("aria-expanded", $("#browse").classList.toggle("unfolded"));
  });
  notes.addEventListener("change", present);
  present();
  loadFolders();
}
