// Sends requests to the server. Every failure becomes a Problem with a sentence to show.

import { known, language, t } from "./i18n.js";

const TRIES = 4;

export class Problem extends Error {
  constructor(words, status) { super(words); this.status = status; }
  /** Says whether trying again may help. */
  get passing() { return this.status === 0 || this.status === 408 || this.status >= 500; }
}

const pause = (seconds, signal) => new Promise((go, stop) => {
  const timer = setTimeout(go, 1000 * seconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); stop(signal.reason); }, { once: true });
});

/** Returns what the server says, which is English, or else the words for its status. */
async function sentence(response) {
  const { status } = response, words = known(`status.${status}`) ? t(`status.${status}`) : null;
  try {
    const { detail } = await response.json();
    if (typeof detail === "string" && detail && status !== 401 && (language === "en" || !words)) return detail;
  } catch { /* not ours: a proxy's page */ }
  return words ?? t("refused", { status: String(status) });
}

const JSON_TYPE = { "Content-Type": "application/json" };

function request(body, json, post, signal) {
  if (json !== null) return { method: "POST", body: JSON.stringify(json), headers: JSON_TYPE, signal };
  return { method: body || post ? "POST" : "GET", body, signal };
}

/** Returns the JSON of an answer. Asks a busy server again a few times, after the seconds it names. */
export async function ask(path, { params = {}, body = null, json = null, post = false, signal = null, onwait = null } = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const address = `api/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetch(address, request(body, json, post, signal));
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Problem(t("gone"), 0);
    }
    if (response.ok) {
      if (attempt > 1) onwait?.(0);
      return response.json();
    }
    const words = await sentence(response);
    if (response.status !== 503 || attempt === TRIES) throw new Problem(words, response.status);
    const seconds = Math.min(5, Math.max(0.5, Number(response.headers.get("Retry-After")) || 1));
    onwait?.(seconds);
    await pause(seconds, signal);
  }
}

export const thumb = (id) => `api/items/${id}/thumb`;
export const large = (id) => `api/items/${id}/image`;

const loaded = new Map();  // id and features -> promise of {view, mask, …}
const KEPT = 2000;

/** Returns view and mask of an image of the index, which it loads once. */
export function facts(id, features = "") {
  const key = `${id} ${features}`;
  if (!loaded.has(key)) {
    if (loaded.size >= KEPT) loaded.delete(loaded.keys().next().value);
    const answer = ask(`items/${id}`, { params: { features } });
    answer.catch(() => loaded.delete(key));
    loaded.set(key, answer);
  }
  return loaded.get(key);
}

/** Offers data as a file to save. */
export function offer(blob, name) {
  const address = URL.createObjectURL(blob), link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Sends a request whose answer is a file, and offers it to save. */
export async function save(path, json, name) {
  let response;
  try { response = await fetch(`api/${path}`, request(null, json, true, null)); } catch { throw new Problem(t("gone"), 0); }
  if (!response.ok) throw new Problem(await sentence(response), response.status);
  offer(await response.blob(), name);
}
