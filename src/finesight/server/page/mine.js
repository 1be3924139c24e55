// Groups of one's own: begun from the groups that were found, then named, merged, split and given as labels.

import { ask } from "./api.js";
import { $, el, say, show } from "./dom.js";
import { retell } from "./grid.js";
import { pictures, t } from "./i18n.js";
import { notes } from "./notes.js";
import { image } from "./picture.js";
import { addressOf, go, marks, place } from "./state.js";
import { problem, waiting } from "./status.js";

const SHOWN = 8;
let state = { version: null, groups: [], rest: 0 };
const chosen = new Set();  // groups that are ticked

export const exists = () => state.version !== null;

/** Says whether the address names groups of one's own: by default they are shown as soon as there are any. */
export function shown() {
  const found = place.mine === "no" || (!place.mine && (place.count !== "" || place.method !== "kmeans"));
  return exists() && !found;
}
export const named = (id) => state.groups.find((one) => one.id === id)?.name ?? "";

export async function load() { state = await ask("groups", { onwait: waiting }); return state; }

let before = Promise.resolve();  // changes are sent one after the other: each names the version that the one before it left

/** Sends one change and shows what it left. A new name is there already: drawing all anew would lose what is being typed. */
function change(action, more, words) {
  const done = before.then(() => send(action, more, words));
  before = done;
  return done;
}

async function send(action, more, words) {
  try {
    state = await ask("groups", { json: { version: state.version, action, ...more }, onwait: waiting });
    for (const id of chosen) if (!state.groups.some((one) => one.id === id)) chosen.delete(id);
    if (action === "rename") tools();
    else list();
    if (words) say(words);
    return true;
  } catch (error) {
    problem(error);
    if (error.status === 409) { await load(); list(); }
    return false;
  }
}

function row(group) {
  const name = el("input", { type: "text", value: group.name, maxlength: "100", placeholder: t("mine.name"), "aria-label": t("mine.name.of", { pictures: pictures(group.size) }), list: "label-names", autocomplete: "off" });
  const tick = el("input", { type: "checkbox" });
  tick.checked = chosen.has(group.id);
  tick.addEventListener("change", () => { if (tick.checked) chosen.add(group.id); else chosen.delete(group.id); tools(); });
  const link = el("a", { class: "strip", href: addressOf({ group: String(group.id) }), "data-group": group.id }, ...group.items.slice(0, SHOWN).map((id) => image(id, { lazy: true })));
  const split = el("button", { type: "button", class: "small", text: t("mine.split"), disabled: group.size < 2,
    onclick: () => change("split", { groups: [group.id], parts: 2 }, t("mine.split.say")) });
  const tell = () => {
    const title = name.value.trim() || t("mine.unnamed");
    tick.setAttribute("aria-label", t("mine.tick", { name: title }));
    link.setAttribute("aria-label", t("mine.open", { name: title, pictures: pictures(group.size) }));
    split.setAttribute("aria-label", t("mine.split.of", { name: title }));
  };
  name.addEventListener("change", () => { tell(); change("rename", { groups: [group.id], name: name.value.trim() }, t("mine.named", { name: name.value.trim() })); });
  tell();
  return el("li", { class: "group", "data-mine": group.id }, link,
    el("div", { class: "row between" }, el("label", { class: "row" }, tick, el("span", { class: "quiet", text: pictures(group.size) })), name, split));
}

function tools() {
  $("#mine-merge").disabled = chosen.size < 2;
  $("#mine-merge").textContent = chosen.size < 2 ? t("mine.merge") : t("mine.merge.n", { n: chosen.size });
  $("#mine-apply").disabled = !state.groups.some((one) => one.name);
}

/** Shows all groups. */
export function list() {
  const found = state.groups.map(row);
  const focus = document.activeElement?.closest?.("[data-mine]")?.dataset.mine;
  $("#groups-list").replaceChildren(...found);
  if (focus) $(`[data-mine="${focus}"] input[type="text"]`)?.focus();
  $("#groups-title").textContent = t("mine.count", { count: state.groups.length });
  $("#groups-none").textContent = state.rest ? t("groups.rest", { count: state.rest }) : "";
  show($("#groups-none"), state.rest > 0);
  tools();
}

/** Begins with the groups that are shown. */
async function start(method, count, features) {
  try {
    state = await ask("groups/start", { json: { method, count, features }, onwait: waiting });
    chosen.clear();
    return true;
  } catch (error) { problem(error); return false; }
}

async function apply() {
  try {
    const done = await ask("groups/apply", { json: { version: state.version, groups: [] } });
    retell(done.notes);
    await notes.load();
    const words = t("mine.applied", { pictures: pictures(done.changed) });
    say(words);
    $("#mine-words").textContent = words;
  } catch (error) { problem(error); }
}

/** Fills the choice of the group that selected pictures are moved to. */
export function presentMove() {
  const inGroup = place.view === "groups" && place.group !== "" && shown();
  show($("#mine-move-part"), inGroup && marks.selected.size > 0);
  if (!inGroup) return;
  const others = state.groups.filter((one) => String(one.id) !== place.group);
  $("#mine-move").replaceChildren(el("option", { value: "", text: t("mine.move") }), el("option", { value: "new", text: t("mine.move.new") }),
    ...others.map((one) => el("option", { value: one.id, text: `${one.name || t("mine.unnamed")} (${one.size})` })));
}

export function setUp(arrive) {
  $("#mine-start").addEventListener("click", async () => {
    const count = place.method === "kmeans" && place.count ? Number(place.count) : null;
    if (await start(place.method, count, null)) { go({ mine: "yes", group: "" }); arrive(); }
  });
  $("#mine-merge").addEventListener("click", () => change("merge", { groups: [...chosen] }, t("mine.merged")).then((done) => { if (done) { chosen.clear(); list(); } }));
  $("#mine-apply").addEventListener("click", apply);
  $("#mine-undo").addEventListener("click", () => change("undo", {}, t("mine.undone")).then((done) => { if (done && !exists()) arrive(); }));
  $("#mine-found").addEventListener("click", () => { go({ mine: "no", group: "" }); arrive(); });
  $("#mine-back").addEventListener("click", () => { go({ mine: "yes", group: "" }); arrive(); });
  $("#mine-move").addEventListener("change", async (event) => {
    const to = event.target.value, ids = [...marks.selected.keys()];
    if (!to) return;
    if (await change("move", { ids, groups: to === "new" ? [] : [Number(to)] }, t("mine.moved", { pictures: pictures(ids.length) }))) {
      marks.clear();
      if (!state.groups.some((one) => String(one.id) === place.group)) go({ group: "" });
      arrive();
    }
  });
  marks.addEventListener("change", presentMove);
}
