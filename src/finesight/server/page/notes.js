// Labels and tags: gives them to the selected pictures, takes changes back, and saves what is selected.

import { ask, save } from "./api.js";
import { $, el, say, show } from "./dom.js";
import { cards, refocus, retell } from "./grid.js";
import { pictures, t } from "./i18n.js";
import { marks } from "./state.js";
import { problem } from "./status.js";

const QUICK = 9;  // labels that the number keys give
const MOST_AT_ONCE = 20_000, MOST_ZIPPED = 500;

class Notes extends EventTarget {
  labels = []; tags = []; unlabeled = 0; change = null;
  recent = [];  // labels in the order in which the number keys give them

  async load() {
    try {
      Object.assign(this, await ask("labels"));
    } catch (error) { problem(error); return; }
    const known = this.labels.map((one) => one.name);
    this.recent = [...this.recent.filter((name) => known.includes(name)), ...known.filter((name) => !this.recent.includes(name))].slice(0, QUICK);
    this.dispatchEvent(new Event("change"));
  }

  /** Labels or tags pictures: `{label}`, `{add_tags}` or `{remove_tags}`. */
  async give(ids, what) {
    if (!ids.length) { say(t("label.nothing")); return false; }
    try {
      for (let start = 0; start < ids.length; start += MOST_AT_ONCE) {
        this.#done(await ask("labels", { json: { ids: ids.slice(start, start + MOST_AT_ONCE), ...what } }));
      }
    } catch (error) { problem(error); return false; }
    if (what.label && !this.recent.includes(what.label)) this.recent = [...this.recent, what.label].slice(-QUICK);
    await this.load();
    return true;
  }

  async undo() {
    if (this.change === null) { say(t("undo.none")); return; }
    try {
      const back = await ask("labels/undo", { json: { change: this.change } });
      this.#done(back);
      say(t("undo.say", { pictures: pictures(back.changed) }));
    } catch (error) { problem(error); }
    await this.load();
  }

  #done(answer) { this.change = answer.change; retell(answer.notes); }
}

export const notes = new Notes();

/** Returns the pictures to act on: the selected ones, or else the one that has the focus. */
function targets(current) {
  if (marks.selected.size) return [...marks.selected.values()];
  return current ? [current] : [];
}

export async function label(name, current = null) {
  const items = targets(current);
  if (await notes.give(items.map((item) => item.id), { label: name })) {
    say(name ? t("label.say", { pictures: pictures(items.length), label: name }) : t("unlabel.say", { pictures: pictures(items.length) }));
  }
}

async function tag(name, remove = false) {
  const items = targets(null);
  if (!name || !(await notes.give(items.map((item) => item.id), remove ? { remove_tags: [name] } : { add_tags: [name] }))) return;
  say(t(remove ? "untag.say" : "tag.say", { pictures: pictures(items.length), tag: name }));
}

/** Gives the label of a number key, and goes on to the next picture where none is selected. */
export async function quick(number, current) {
  const name = notes.recent[number - 1];
  if (name === undefined) { say(t("label.no.key", { n: number })); return; }
  const next = !marks.selected.size && current ? cards(current).next : null;
  await label(name, current);
  next?.querySelector(".open").focus();
}

/** Opens the field for a label or a tag, for the picture that has the focus if none is selected. */
export function begin(field, current) {
  if (!marks.selected.size && current) marks.select(current);
  if (!marks.selected.size) { say(t("label.nothing")); return; }
  $(field).focus();
  $(field).select();
}

function present() {
  const options = (list) => list.map((one) => el("option", { value: one.name }));
  $("#label-names").replaceChildren(...options(notes.labels));
  $("#tag-names").replaceChildren(...options(notes.tags));
  $("#quick").replaceChildren(...notes.recent.map((name, n) => el("button", {
    type: "button", class: "small chip", onclick: () => label(name), title: t("label.key", { n: n + 1 }),
  }, el("kbd", { text: String(n + 1) }), ` ${name}`)));
  for (const button of document.querySelectorAll("[data-undo]")) show(button, notes.change !== null);
}

async function copyPaths() {
  const paths = [...marks.selected.values()].map((item) => item.path ?? item.name);
  try {
    await navigator.clipboard.writeText(`${paths.join("\n")}\n`);
    say(t("copied.paths", { pictures: pictures(paths.length) }));
    $("#tray-words").textContent = t("copied.paths", { pictures: pictures(paths.length) });
  } catch { problem(Object.assign(new Error(t("copy.not")), { status: 400 })); }
}

async function download() {
  const ids = [...marks.selected.keys()].filter((id) => !id.startsWith("q"));
  if (ids.length > MOST_ZIPPED) { problem(Object.assign(new Error(t("zip.many", { n: MOST_ZIPPED })), { status: 400 })); return; }
  $("#tray-words").textContent = t("zip.making");
  try { await save("zip", { ids }, "finesight.zip"); $("#tray-words").textContent = ""; } catch (error) { $("#tray-words").textContent = ""; problem(error); }
}

export function setUp() {
  notes.addEventListener("change", present);
  marks.addEventListener("change", () => { $("#tray-words").textContent = ""; });
  $("#label-form").addEventListener("submit", (event) => {
    event.preventDefault();
    label($("#label-input").value.trim());
    $("#label-input").value = "";
    refocus();
  });
  $("#label-clear").addEventListener("click", () => label(""));
  $("#tag-form").addEventListener("submit", (event) => {
    event.preventDefault();
    tag($("#tag-input").value.trim());
    $("#tag-input").value = "";
    refocus();
  });
  $("#tag-remove").addEventListener("click", () => { tag($("#tag-input").value.trim(), true); $("#tag-input").value = ""; });
  for (const button of document.querySelectorAll("[data-undo]")) button.addEventListener("click", () => notes.undo());
  $("#copy-paths").addEventListener("click", copyPaths);
  $("#zip").addEventListener("click", download);
  notes.load();
}
