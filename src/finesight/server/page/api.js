// Sends requests to the server. Every failure becomes a Problem with a sentence to show.

const TRIES = 4;
const WORDS = {
  401: "A token is needed: load this page again, or open the address that the server printed when it started.",
  404: "That is not there, or it was removed.",
  408: "The upload took too long. Try again, or send a smaller photo.",
  413: "The photo is too large. Send a smaller one.",
  415: "That is not a picture that can be read. Send a JPEG, PNG, WebP, GIF, BMP or TIFF.",
  503: "The server is busy. Try again in a moment.",
};
const GONE = "The server does not answer. Is it still running? Start it again with “finesight serve”.";

export class Problem extends Error {
  constructor(words, status) { super(words); this.status = status; }
  /** Says whether trying again may help. */
  get passing() { return this.status === 0 || this.status === 408 || this.status >= 500; }
}

const pause = (seconds, signal) => new Promise((go, stop) => {
  const timer = setTimeout(go, 1000 * seconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); stop(signal.reason); }, { once: true });
});

async function sentence(response) {
  try {
    const { detail } = await response.json();
    if (typeof detail === "string" && detail && response.status !== 401) return detail;
  } catch { /* not ours: a proxy's page */ }
  return WORDS[response.status] ?? `The server refused the request (${response.status}).`;
}

/** Returns the JSON of an answer. Asks a busy server again a few times, after the seconds it names. */
export async function ask(path, { params = {}, body = null, post = false, signal = null, onwait = null } = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const address = `api/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetch(address, { method: body || post ? "POST" : "GET", body, signal });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Problem(GONE, 0);
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

const known = new Map();  // id and features -> promise of {view, mask, …}
const KEPT = 2000;

/** Returns view and mask of an image of the index, which it loads once. */
export function facts(id, features = "") {
  const key = `${id} ${features}`;
  if (!known.has(key)) {
    if (known.size >= KEPT) known.delete(known.keys().next().value);
    const answer = ask(`items/${id}`, { params: { features } });
    answer.catch(() => known.delete(key));
    known.set(key, answer);
  }
  return known.get(key);
}
