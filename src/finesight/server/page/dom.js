// Makes elements. Text is always inserted as text and never as markup, because file names can hold anything.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Makes an element: el("button", {class: "small", text: "Go", onclick: …}, child, …); other names are attributes. */
export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export const show = (node, wanted = true) => { node.hidden = !wanted; };

/** Says words to screen readers. */
export function say(words) {
  const live = $("#live");
  live.textContent = live.textContent === words ? `${words} ` : words;  // a change, so that screen readers say the same words again
}

export function later(milliseconds, work) {
  let timer = 0;
  return (...values) => { clearTimeout(timer); timer = setTimeout(() => work(...values), milliseconds); };
}

export const inDialog = () => $("dialog[open]") !== null;

/** Keeps settings for the next visit, unless the browser forbids it. */
export const kept = {
  get(name) { try { return localStorage.getItem(`finesight-${name}`); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(`finesight-${name}`, value); } catch { /* then it lasts for this visit only */ } },
};
