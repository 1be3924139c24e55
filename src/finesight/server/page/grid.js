// A grid of pictures. One of them is current: arrow keys choose it, and letter keys act on it.

import { el, icon } from "./dom.js";
import { heat, image, paintAttention } from "./picture.js";
import { marks, overlay } from "./state.js";

const items = new WeakMap();  // card -> item
const grids = new Set();

/** Returns the item of the card that has the focus, or null. */
export const itemAt = (node) => items.get(node?.closest?.(".card")) ?? null;

function act(card, action) {
  card.dispatchEvent(new CustomEvent("act", { bubbles: true, detail: { action, item: items.get(card) } }));
}

function button(card, action, name, ...children) {
  const toggles = action === "pin" || action === "select";
  return el("button", {
    type: "button", class: `do ${action}`, tabindex: "-1", "aria-label": name, title: name,
    "aria-pressed": toggles ? "false" : undefined, onclick: () => act(card, action),
  }, ...children);
}

function makeCard(item, why) {
  const card = el("li", { class: "card", "data-id": item.id });
  items.set(card, item);
  const score = item.score === undefined ? null : item.score.toFixed(2);
  const words = [item.path, score === null ? null : `score ${score}`, item.change?.title].filter(Boolean).join(", ");
  const open = { type: "button", class: "open", tabindex: "-1", title: "More like this", onclick: () => act(card, "open") };
  card.append(
    el("button", { ...open, "aria-label": `${words}. More like this` },
      image(item.id, { lazy: true }), heat(),
      item.change ? el("span", { class: `change ${item.change.kind}`, text: item.change.text, title: item.change.title }) : null),
    el("div", { class: "foot" },
      el("span", { class: "name", text: item.name, title: item.path }),
      score === null ? null : el("span", { class: "score", text: score, title: "1 is the same picture" })),
    el("div", { class: "actions" },
      why ? button(card, "why", `Why is ${item.name} alike?`, "Why?") : null,
      button(card, "pin", `Pin ${item.name} to compare`, icon("pin")),
      button(card, "select", `Select ${item.name}`, icon("check"))),
  );
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
    cards[target]?.querySelector(".open").focus();
  }
}

marks.addEventListener("change", () => grids.forEach((grid) => grid.mark()));
overlay.addEventListener("change", () => grids.forEach((grid) => grid.paintSeen()));
