// The words of the page in the reader's language. Each language is one table: words-en.js, words-de.js.

import de from "./words-de.js";
import en from "./words-en.js";

const TABLES = { en, de };

function choose() {
  const asked = new URLSearchParams(location.search).get("lang");
  if (asked in TABLES) {
    try { localStorage.setItem("finesight-lang", asked); } catch { /* then it lasts for this visit only */ }
    return asked;
  }
  let kept = null;
  try { kept = localStorage.getItem("finesight-lang"); } catch { /* not allowed */ }
  if (kept in TABLES) return kept;
  const wanted = (navigator.languages ?? []).map((name) => name.slice(0, 2).toLowerCase());
  return wanted.find((name) => name in TABLES) ?? "en";
}

export const language = choose();
export const languages = Object.keys(TABLES);
const plural = new Intl.PluralRules(language);
export const number = (count) => count.toLocaleString(language);

/** Returns the words of a key. `{name}` stands for a value; with `count`, the key has the forms `.one` and `.other`. */
export function t(key, values = {}) {
  const table = TABLES[language];
  let text = table[key];
  if (text === undefined && "count" in values) text = table[`${key}.${plural.select(values.count)}`] ?? table[`${key}.other`];
  if (text === undefined) { console.error(`no words for ${key}`); return key; }
  return text.replaceAll(/\{(\w+)\}/g, (_, name) => (typeof values[name] === "number" ? number(values[name]) : values[name]));
}

/** Says whether there are words for a key. */
export const known = (key) => key in TABLES[language];
export const pictures = (count) => t("pictures", { count });

const ATTRIBUTES = { t: null, tLabel: "aria-label", tTitle: "title", tPlaceholder: "placeholder", tAlt: "alt" };

/** Puts the words into a page: data-t is the key of the text, data-t-label that of aria-label, and so on. */
export function translate(root = document) {
  document.documentElement.lang = language;
  for (const [name, attribute] of Object.entries(ATTRIBUTES)) {
    const selector = `[data-${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}]`;
    for (const node of root.querySelectorAll(selector)) {
      if (attribute) node.setAttribute(attribute, t(node.dataset[name]));
      else node.textContent = t(node.dataset[name]);
    }
  }
}
