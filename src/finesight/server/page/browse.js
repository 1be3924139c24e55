// Lists all pictures by path, or those whose path contains a text. Loads more when the end comes near.

import { ask } from "./api.js";
import { $, later, say, show } from "./dom.js";
import { filterParams, filtering } from "./filters.js";
import { Grid } from "./grid.js";
import { pictures, t } from "./i18n.js";
import { go, place } from "./state.js";
import { problem, waiting } from "./status.js";
import * as words from "./words.js";

const PAGE = 60;
export const SAMPLES = 12;

/** Fetches pages of a list into a grid while its end is near the window. */
export class Pages {
  constructor(grid, end, fetchPage) {
    Object.assign(this, { grid, fetchPage, total: Infinity, round: 0, loading: false });
    const near = (entries) => { if (entries.at(-1).isIntersecting) this.more(); };
    this.watcher = new IntersectionObserver(near, { rootMargin: "600px" });
    this.end = end;
  }

  async start() {
    this.round += 1;
    Object.assign(this, { total: Infinity, loading: false, fresh: true, offset: 0 });
    this.watcher.disconnect();
    await this.more();
    this.watcher.observe(this.end);
  }

  async more() {
    if (this.loading || (!this.fresh && this.offset >= this.total)) return;
    const round = this.round;
    this.loading = true;
    try {
      const page = await this.fetchPage(this.offset, PAGE);
      if (round !== this.round) return;
      this.total = page.total;
      this.offset += PAGE;  // by the page size: an item that was removed meanwhile is missing in its page
      if (this.fresh) this.grid.show(page.items);
      else this.grid.add(page.items);
      this.fresh = false;
      this.watcher.unobserve(this.end);
      this.watcher.observe(this.end);  // observe again: an element that stayed in sight would not fire
    } catch (error) {
      problem(error, () => this.more());
    } finally {
      if (round === this.round) this.loading = false;
    }
  }
}

export const all = new Grid($("#all"));
const samples = new Grid($("#samples"));
const pages = new Pages(all, $("#all-more"), async (offset, limit) => {
  const page = place.words
    ? await words.page(offset, limit)
    : await ask("items", { params: { offset, limit, text: place.text, ...filterParams() }, onwait: waiting });
  const count = pictures(page.total);
  $("#browse-title").textContent = place.words ? words.title(page.total) : t(place.text ? "browse.text" : filtering() ? "browse.some" : "browse.all", { pictures: count, text: place.text });
  $("#all-none").textContent = t(place.text ? "browse.none" : filtering() ? "filter.none" : "empty");
  show($("#all-none"), page.total === 0);
  if (offset === 0) say($("#browse-title").textContent);
  return page;
});

export function arrive() {
  if ($("#filter").value !== place.text) $("#filter").value = place.text;
  words.present();
  return pages.start();
}

/** Shows a few pictures from all over the folder, so that not all are of the same kind. */
export async function sample(total) {
  show($("#samples-part"), total > 0);
  show($("#empty-words"), total === 0);
  $("#empty-words").textContent = t("empty");
  if (!total) return;
  const count = Math.min(SAMPLES, total);
  try {
    const places = Array.from({ length: count }, (_, n) => Math.floor(((n + 0.5) * total) / count));
    const found = total <= SAMPLES
      ? [await ask("items", { params: { limit: SAMPLES } })]
      : await Promise.all(places.map((offset) => ask("items", { params: { offset, limit: 1 } })));
    samples.show(found.flatMap((page) => page.items));
  } catch (error) {
    problem(error, () => sample(total));
  }
}

export function begin() {
  $("#filter").addEventListener("input", later(200, () => {
    go({ text: $("#filter").value.trim() }, { replace: true });
    pages.start();
  }));
}
