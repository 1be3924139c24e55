// Searches by words, where the server has a text model. What fits best is shown in the list of pictures.

import { ask } from "./api.js";
import { $, $$, show } from "./dom.js";
import { filterParams } from "./filters.js";
import { pictures, t } from "./i18n.js";
import { FRESH, place } from "./state.js";
import { waiting } from "./status.js";

const MOST = 200;
let found = [];

/** Returns a part of what fits the words of the address, in the form of a list of pictures. */
export async function page(offset, limit) {
  const params = { words: place.words, k: MOST, text: place.text, ...filterParams() };
  if (offset === 0) found = (await ask("words", { params, onwait: waiting })).hits.map((hit) => ({ ...hit, fits: true }));
  return { total: found.length, items: found.slice(offset, offset + limit) };
}

export const title = (total) => (total ? t("words.found", { pictures: pictures(total), words: place.words }) : t("words.none"));

/** Shows what the address says in every field. */
export function present() { for (const form of $$("form.words")) form.elements.words.value = place.words; }

/** Shows the fields if the server has a text model. */
export function offer(health) { for (const form of $$("form.words")) show(form, health.words); }

export function setUp(move) {
  for (const form of $$("form.words")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const words = form.elements.words.value.trim();
      if (words || place.words) move({ ...FRESH, q: "", view: "browse", words });
      $("#browse-title").focus();
    });
  }
}
