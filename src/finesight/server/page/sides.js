// Features before and after training: which are searched, and what changed between the two.

import { $, $$, say, show } from "./dom.js";
import { Grid } from "./grid.js";
import { pictures, t } from "./i18n.js";
import { go, place } from "./state.js";

const later = new Grid($("#after-hits"), { why: true });
let known = null;  // the last health

export const health = () => known;
const names = () => known?.features.map((one) => one.name) ?? [];
const both = () => names().length > 1;

/** Says whether both lists are to be shown. */
export const wanted = () => place.features === "both" && both();

/** Returns the features that the first list is searched by, as the API names them; "" for the default. */
export function chosen() {
  if (wanted()) return "before";
  return names().includes(place.features) ? place.features : "";
}

const spacesOf = (name) => known?.features.find((one) => one.name === (name || known.default_features))?.spaces ?? [];

/** Returns the spaces to choose among; none where two lists are compared, each by its own. */
export const spaces = () => (wanted() ? [] : spacesOf(chosen()));

/** Returns the space of the address, if those features have it. */
export const byOf = (features) => (wanted() || !spacesOf(features).includes(place.by) ? "" : place.by);

/** Takes new facts; returns whether the results on the page are of other features now. */
export function offer(now) {
  const before = known;
  known = now;
  show($("#features"), both());
  mark();
  if (before === null || before === now) return false;
  const grown = place.features && before.features.length !== now.features.length;
  const switched = !place.features && before.default_features !== now.default_features;
  if (switched) say(t(`features.${now.default_features}`));
  return Boolean(grown) || switched;
}

function mark() {
  const used = wanted() ? "both" : chosen() || known?.default_features;
  for (const input of $$("#features input")) input.checked = input.value === used;
}

/** Shows the answer, or both of them with what changed. */
export function present(hits, answer, after) {
  const items = answer.hits.map((hit) => ({ ...hit, features: answer.features }));
  const others = after?.hits.map((hit) => ({ ...hit, features: after.features })) ?? [];
  $("#sides").classList.toggle("two", after !== null);
  for (const node of [$("#before-title"), $("#after-side"), $("#change-words")]) show(node, after !== null);
  if (after !== null) changes(items, others);
  hits.show(items);
  later.show(others);
}

/** Returns how the address names a hit: its id, and the list if there are two. */
export const nameOf = (item) => (wanted() && item.features === "after" ? `after.${item.id}` : item.id);
export const find = (hits, name) => [...hits.items, ...later.items].find((item) => nameOf(item) === name);

/** Marks in both lists what is not in the other, and by how many places the others moved. */
function changes(items, others) {
  const places = new Map(items.map((item, n) => [item.id, n]));
  const stay = new Set(others.map((item) => item.id));
  others.forEach((item, n) => {
    const moved = places.has(item.id) ? places.get(item.id) - n : null;
    if (moved === null) item.change = { kind: "new", text: t("change.new"), title: t("change.new.title") };
    else if (moved) {
      const title = t(moved > 0 ? "change.up" : "change.down", { count: Math.abs(moved) });
      item.change = { kind: moved > 0 ? "up" : "down", text: `${moved > 0 ? "▲" : "▼"} ${Math.abs(moved)}`, title };
    }
  });
  for (const item of items) {
    if (!stay.has(item.id)) item.change = { kind: "gone", text: t("change.gone"), title: t("change.gone.title") };
  }
  const fresh = others.filter((item) => item.change?.kind === "new").length;
  const moved = others.filter((item) => item.change).length - fresh;
  $("#change-words").textContent = fresh + moved === 0
    ? t("change.none")
    : t("change.words", { count: fresh, pictures: pictures(others.length), moved });
}

export function begin(search) {
  for (const input of $$("#features input")) {
    input.addEventListener("change", () => {
      go({ features: input.value === known?.default_features ? "" : input.value });
      search();
    });
  }
}
