// A grid of pictures. One of them is current: arrow keys choose it, and letter keys act on it.

import { el, icon } from "./dom.js";
import { t } from "./i18n.js";
import { heat, image, paintAttention } from "./picture.js";
import { marks, overlay } from "./state.js";

const items = new WeakMap();  // card -> item
const grids = new Set();
let last = null;  // the card that had the focus last

/** Returns the item of the card that has the focus, or null. */
export const itemAt = (node) => items.get(node?.closest?.(".card")) ?? null;

function act(card, action, event = null) {
  card.dispatchEvent(new CustomEvent("act", { bubbles: true, detail: { action, item: items.get(card), shift: event?.shiftKey ?? false, card } }));
}

/** Returns the card of an item that is in sight of the user, and the one after it. */
export function cards(item) {
  const found = document.querySelectorAll(`.card[data-id="${item.id}"]`);
  const own = [...found].find((card) => card.contains(document.activeElement)) ?? [...found].find((card) => card.offsetParent !== null);
  return { own, next: own?.nextElementSibling ?? null };
}

/** Gives the focus back to the picture that had it before a field was opened, so that keys act on it. */
export function refocus() {
  const card = last?.isConnected && last.offsetParent !== null ? last : null;
  if (card) card.querySelector(".open").focus({ preventScroll: true });
  else document.activeElement?.blur();
}

/** Returns the items between two cards of one grid, both included. */
export function between(from, to) {
  const all = [...to.parentElement.children], [a, b] = [all.indexOf(from), all.indexOf(to)];
  return a < 0 || b < 0 ? [] : all.slice(Math.min(a, b), Math.max(a, b) + 1).map((card) => items.get(card));
}

/** Takes over what is written about pictures now. */
export function retell(notes) {
  const now = new Map(notes.map((note) => [note.id, note]));
  for (const list of [marks.selected.values(), marks.pins]) for (const item of list) Object.assign(item, now.get(item.id));
  for (const grid of grids) {
    for (const card of grid.cards) {
      const item = items.get(card), note = now.get(item.id);
      if (note) { Object.assign(item, note); tell(card, item); }
    }
  }
}

/** Shows label and tags on a card. */
function tell(card, item) {
  const chips = [item.label ? el("span", { class: "chip label", text: item.label }) : null,
    ...(item.tags ?? []).map((name) => el("span", { class: "chip", text: name }))].filter(Boolean);
  card.querySelector(".notes").replaceChildren(...chips);
  card.querySelector(".open").setAttribute("aria-label", t("card", { words: words(item) }));
}

function words(item) {
  return [item.path, item.label ? t("label.is", item) : null, item.tags?.length ? t("tags.are", { tags: item.tags.join(", ") }) : null,
    item.score === undefined ? null : t("score", { score: item.score.toFixed(2) }), item.change?.title].filter(Boolean).join(", ");
}

function button(card, action, name, ...children) {
  const toggles = action === "pin" || action === "select";
  return el("button", {
    type: "button", class: `do ${action}`, tabindex: "-1", "aria-label": name, title: name,
    "aria-pressed": toggles ? "false" : undefined, onclick: (event) => act(card, action, event),
  }, ...children);
}

function makeCard(item, why) {
  const card = el("li", { class: "card", "data-id": item.id });
  items.set(card, item);
  const score = item.score === undefined ? null : item.score.toFixed(2);
  const open = { type: "button", class: "open", tabindex: "-1", title: t("like"), onclick: (event) => act(card, event.shiftKey ? "select" : "open", event) };
  card.append(...[
    el("button", open,
      image(item.id, { lazy: true }), heat(),
      item.change ? el("span", { class: `change ${item.change.kind}`, text: item.change.text, title: item.change.title }) : null),
    el("div", { class: "foot" },
      el("span", { class: "name", text: item.name, title: item.path }),
      score === null ? null : el("span", { class: "score", text: score, title: t(item.fits ? "score.words" : "score.title") })),
    item.facts ? el("div", { class: "facts quiet", text: item.facts }) : null,
    el("div", { class: "notes" }),
    el("div", { class: "actions" },
      why ? button(card, "why", t("why.of", item), t("why")) : null,
      button(card, "info", t("info.of", item), icon("info")),
      button(card, "pin", t("pin.of", item), icon("pin")),
      button(card, "select", t("select.of", item), icon("check"))),
  ].filter(Boolean));
  tell(card, item);
  return card;
}

export class Grid {
  constructor(list, { why = false } = {}) {
    Object.assign(this, { list, why });
    const look = (entries) => entries.forEach((entry) => this.#appear(entry));
    this.seen = new IntersectionObserver(look, { rootMargin: "200px" });
    list.addEventListener("keydown", (event) => this.#move(event));
    list.addEventListener("focusin", (event) => this.#current(event.target.closest(".card")));
    grids.add(this);
  }

  get cards() { return [...this.list.children]; }
  get items() { return this.cards.map((card) => items.get(card)); }

  show(found) {
    this.seen.disconnect();
    this.list.replaceChildren();
    this.add(found);
  }

  add(found) {
    const cards = found.map((item) => makeCard(item, this.why));
    this.list.append(...cards);
    cards.forEach((card) => this.seen.observe(card));
    if (!this.list.querySelector('.open[tabindex="0"]')) this.#current(this.list.firstElementChild);
    this.mark();
  }

  focus() { this.list.querySelector('.open[tabindex="0"]')?.focus({ preventScroll: true }); }

  mark() {
    for (const card of this.cards) {
      const { id } = items.get(card);
      const [pinned, selected] = [marks.pinned(id), marks.selected.has(id)];
      card.classList.toggle("pinned", pinned);
      card.classList.toggle("selected", selected);
      card.querySelector(".pin").setAttribute("aria-pressed", pinned);
      card.querySelector(".select").setAttribute("aria-pressed", selected);
    }
  }

  /** Loads masks only of the cards that are in sight. */
  paintSeen() { if (overlay.on) this.cards.filter((card) => card.dataset.near).forEach((card) => this.#paint(card)); }

  #appear({ target, isIntersecting }) {
    target.dataset.near = isIntersecting ? "1" : "";
    if (isIntersecting && overlay.on) this.#paint(target);
  }

  #paint(card) {
    const canvas = card.querySelector(".heat");
    if (canvas.dataset.painted === undefined) paintAttention(canvas, items.get(card)).catch(() => {});
  }

  #current(card) {
    if (!card) return;
    if (card.contains(document.activeElement)) last = card;
    for (const old of this.list.querySelectorAll('[tabindex="0"]')) old.tabIndex = -1;
    for (const node of card.querySelectorAll("button")) node.tabIndex = 0;
  }

  #move(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const cards = this.cards, at = cards.indexOf(event.target.closest(".card"));
    const top = cards[0]?.offsetTop, row = cards.findIndex((card) => card.offsetTop !== top);
    const columns = row < 0 ? cards.length : row;
    const last = cards.length - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -at, End: last - at };
    if (at < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const wanted = at + steps[event.key];
    const target = event.key === "ArrowDown" ? Math.min(wanted, last) : wanted;
    if (event.shiftKey && cards[target]) marks.selectAll(between(cards[at], cards[target]));
    cards[target]?.querySelector(".open").focus();
  }
}

function forget() { for (const grid of grids) if (!grid.list.isConnected) grids.delete(grid); }

marks.addEventListener("change", () => { forget(); grids.forEach((grid) => grid.mark()); });
overlay.addEventListener("change", () => grids.forEach((grid) => grid.paintSeen()));
