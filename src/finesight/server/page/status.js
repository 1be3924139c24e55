// Shows the state of the server: what went wrong, and how far the index is built.

import { ask } from "./api.js";
import { $, say, show } from "./dom.js";
import { known, pictures, t } from "./i18n.js";

const BUILDING = 1000, KEPT_UP = 2000, ALONE = 20_000, GONE = 3000;  // milliseconds between two questions

const READY = 10_000;  // milliseconds that the page says the index is ready, unless there is a button to click

let again = null, gone = false, told = null, ready = false;
export let refresh = () => {};  // asks at once
export let health = null;
export let first = Promise.resolve();  // done when the server has been asked once

/** Shows an error as a sentence, with a button that calls `retry` where trying again may help. */
export function problem(error, retry = null) {
  if (error?.status === undefined) console.error(error);
  again = error.passing ? retry : null;
  const ours = error?.status !== undefined;
  $("#alert-words").textContent = ours ? error.message : t("broken");
  show($("#alert-retry"), again !== null);
  show($("#alert"));
  $("#alert").classList.remove("mild");
}

/** Says in how many seconds a busy server is asked again; 0 when it has answered. */
export function waiting(seconds) {
  if (!seconds) { clearProblem(); return; }
  $("#alert-words").textContent = t("busy", { n: Math.ceil(seconds) });
  show($("#alert-retry"), false);
  show($("#alert"));
  $("#alert").classList.add("mild");
}

export function clearProblem() { again = null; show($("#alert"), false); }

/** Polls for ever, and calls `changed(health, before)` after every answer. */
export function watch(changed) {
  let timer = 0;
  const look = async () => {
    clearTimeout(timer);
    try {
      const before = health;
      health = await ask("health");
      if (gone) { gone = false; if (told) { clearProblem(); say(t("answers")); } told = null; }
      present(before);
      changed(health, before);
    } catch (error) {
      if (!gone) problem(told = error, look);
      gone = true;
    }
    const usual = health?.training ? KEPT_UP : ALONE;
    timer = setTimeout(look, gone ? GONE : health?.status === "building" ? BUILDING : usual);
  };
  refresh = look;
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  $("#alert-retry").addEventListener("click", () => { const work = again; clearProblem(); work?.(); });
  $("#alert-close").addEventListener("click", clearProblem);
  first = look();
}

/** Hides the message about a finished index. */
export function dismiss() {
  ready = false;
  if (health?.status !== "building" && !health?.problem) show($("#building"), false);
}

function finished() {
  ready = true;
  say(t("ready", { pictures: pictures(health.items) }));
  setTimeout(() => { if ($("#building-again").hidden) dismiss(); }, READY);
}

function present(before) {
  $("#count").textContent = pictures(health.items);
  const { progress } = health;
  const building = health.status === "building";
  const grown = before !== null && before.items !== health.items;
  if ((before?.status === "building" || grown) && !building && !health.problem) finished();
  if (building) ready = false;
  const again = building && health.training?.state === "indexing";  // the words are with those of the training
  show($("#building"), (building && !again) || ready || Boolean(health.problem));
  $("#building").classList.toggle("problem", Boolean(health.problem));
  show($("#building-bar"), building);
  show($("#building-more"), building && health.items > 0);
  if (building) {
    const counted = progress.phase === "embedding" && progress.total > 0;
    $("#building-words").textContent = counted
      ? t("building.counted", progress)
      : t(known(`building.${progress.phase}`) ? `building.${progress.phase}` : "building.other");
    if (counted) { $("#building-bar").max = progress.total; $("#building-bar").value = progress.done; }
    else $("#building-bar").removeAttribute("value");
  } else if (health.problem) {
    $("#building-words").textContent = health.problem;
  } else if (ready) {
    $("#building-words").textContent = t("ready", { pictures: pictures(health.items) });
  }
  const { method, resolution, pooling } = health.encoder;
  const network = `${method}, ${pooling}, ${resolution} px`;
  $("#about").textContent = t("about", { version: health.version, pictures: pictures(health.items), network });
}
