// Holds the state: what the address says, what is pinned and selected, and how strongly attention is shown.

import { $, kept } from "./dom.js";

export const MOST_PINS = 4;
const START = {
  view: "search", q: "", features: "", by: "", box: "", k: 24, min: 0, diversity: 0, text: "", words: "", method: "kmeans", count: "", group: "",
  folder: "", label: "", tag: "", since: "", until: "", camera: "", mine: "", threshold: 0.98, keep: "largest", color: "folder", at: "", why: "", info: "", compare: "",
};

/** The settings in the address bar. */
export const place = { ...START };

export function readPlace() {
  const given = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(START)) {
    const text = given.get(name);
    place[name] = text === null ? value : typeof value === "number" ? Number(text) || value : text;
  }
}

export function addressOf(changes) {
  const wanted = { ...place, ...changes };
  const pairs = Object.entries(wanted).filter(([name, value]) => value !== START[name]);
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "./";
}

/** Changes the address, with a step in the history unless `replace`. */
export function go(changes, { replace = false } = {}) {
  const address = addressOf(changes);
  Object.assign(place, changes);
  if (replace) history.replaceState(null, "", address);
  else if (address !== (location.search || "./")) history.pushState(null, "", address);
}

/** Settings that a new search does not keep. */
export const FRESH = { view: "search", box: "", group: "", text: "", words: "", at: "", why: "", info: "", compare: "" };

const WINDOWS = { why: "#explain", info: "#details", compare: "#compare" };

/** Puts into the address which window is open, and what it shows. */
export function opened(name, value) {
  $(WINDOWS[name]).dataset.named = value;
  go({ [name]: value }, { replace: true });
}

/** Takes a window out of the address when it is closed, unless the address names something else by now. */
export function watchWindows() {
  for (const [name, selector] of Object.entries(WINDOWS)) {
    $(selector).addEventListener("close", ({ target }) => { if (place[name] === target.dataset.named) go({ [name]: "" }, { replace: true }); });
  }
}

class Marks extends EventTarget {
  pins = [];  // items, and what is known of their masks
  selected = new Map();  // id -> item

  pinned(id) { return this.pins.some((item) => item.id === id); }

  /** Returns false when there is no room for another. */
  pin(item) {
    if (this.pinned(item.id)) this.pins = this.pins.filter((other) => other.id !== item.id);
    else if (this.pins.length < MOST_PINS) this.pins = [...this.pins, item];
    else return false;
    this.tell();
    return true;
  }

  select(item) {
    if (!this.selected.delete(item.id)) this.selected.set(item.id, item);
    this.tell();
  }

  selectAll(items) { items.forEach((item) => this.selected.set(item.id, item)); this.tell(); }

  clear() { this.selected.clear(); this.tell(); }
  tell() { this.dispatchEvent(new Event("change")); }
}

export const marks = new Marks();

class Overlay extends EventTarget {
  on = kept.get("overlay") === "on";
  strength = Math.min(100, Math.max(5, Number(kept.get("overlay-strength")) || 70));

  set({ on = this.on, strength = this.strength }) {
    Object.assign(this, { on, strength });
    kept.set("overlay", on ? "on" : "off");
    kept.set("overlay-strength", strength);
    this.apply();
    this.dispatchEvent(new Event("change"));
  }

  apply() { document.documentElement.style.setProperty("--heat", this.on ? this.strength / 100 : 0); }
}

export const overlay = new Overlay();
