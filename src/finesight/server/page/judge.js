// The judging view: shows a question, sends the answer, and draws how certain the result is.

import { Problem } from "./api.js";
import { $, $$, el, say, show } from "./dom.js";
import { language, number, t, translate } from "./i18n.js";

const KEYS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "both", ArrowDown: "neither" };
const picture = (image) => `api/judge/images/${image}`;
const DIGITS = { minimumFractionDigits: 1, maximumFractionDigits: 1 };
const points = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toLocaleString(language, DIGITS)}`;

let state = null;
let busy = false;  // an answer is on its way
let going = false;  // on, although more answers are hardly worth it
let waiting = 0;  // a timer that asks for the verdict

async function send(path, method = "GET") {
  let response;
  try {
    response = await fetch(`api/judge${path}`, { method });
  } catch {
    throw new Problem(t("judge.gone"), 0);
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(content.detail ?? t("refused", { status: String(response.status) }), response.status);
  return content;
}

/** Asks the server, shows what it says, and tells of a failure in words. */
async function talk(path, method) {
  if (busy) return;
  busy = true;
  $("#main").setAttribute("aria-busy", "true");
  try {
    state = await send(path, method);
    show($("#alert"), false);
    draw();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 409) { state = await send("").catch(() => state); draw(); return; }  // another tab was quicker
    $("#alert-words").textContent = error.message;
    show($("#alert"));
  } finally {
    busy = false;
    $("#main").setAttribute("aria-busy", "false");
  }
}

function choose(choice) {
  if (busy || !asking()) return;
  const button = $(`[data-choice="${choice}"]`);
  button.classList.add("chosen");
  talk(`/answers?question=${state.question.number}&choice=${choice}`, "POST").finally(() => button.classList.remove("chosen"));
}

function undo() { if (state?.answers) { going = false; talk("/undo", "POST"); } }

/** Says whether a question is to be shown. */
function asking() { return Boolean(state?.question) && (state.state === "asking" ? !state.names : going); }

function draw() {
  const open = asking();
  const title = $("#end-title");
  const ended = !open && $("#end").hidden;
  show($("#ask"), open);
  show($("#end"), !open);
  show($("#progress"), state.disagree > 0);
  show($("#undo"), state.answers > 0);
  show($("#reveal"), open && state.answers > 0);
  $("#count").textContent = t("judge.count", { count: state.answers });
  drawInterval();
  if (open) drawQuestion(); else drawEnd();
  if (ended) title.focus();
}

function drawQuestion() {
  const { question, ahead } = state;
  for (const [selector, image] of [["#query img", question.query], ['[data-choice="left"] img', question.left], ['[data-choice="right"] img', question.right]]) {
    const shown = $(selector);
    if (shown.dataset.image !== String(image)) { shown.dataset.image = image; shown.src = picture(image); }
  }
  for (const image of ahead) new Image().src = picture(image);  // likely next: then they are there already
  $("#ask").dataset.question = question.number;
  say(t("judge.question", { n: question.number, words: $("#interval-words").textContent }));
}

function endTitle() {
  if (state.state === "exhausted" && !state.disagree) return t("judge.nothing");
  return t(`judge.${state.state}`, { winner: state.winner });
}

function drawEnd() {
  $("#end-title").textContent = endTitle();
  $("#end-words").textContent = state.words ?? "";
  const counts = $("#end-counts");
  counts.replaceChildren();
  if (state.names && state.answers) {
    const rows = [[state.names.b, state.names.for_b], [state.names.a, state.names.for_a], [t("judge.ties"), state.ties]];
    for (const [name, count] of rows) counts.append(el("dt", { text: name }), el("dd", { text: number(count) }));
  }
  show($("#go-on"), Boolean(state.question));
  $("#end-verdict").textContent = state.verdict ?? "";
  show($("#end-verdict"), Boolean(state.verdict));
  say($("#end-title").textContent);
  clearTimeout(waiting);
  if (state.state === "decided" && !state.verdict) waiting = setTimeout(lookForVerdict, 2000);
}

/** Asks again for a while: the verdict on the run is written after the last answer. */
async function lookForVerdict(tries = 10) {
  if (busy || asking()) return;
  const fresh = await send("").catch(() => null);
  if (fresh?.state === "decided" && fresh.verdict) { state = fresh; draw(); }
  else if (tries > 1) waiting = setTimeout(() => lookForVerdict(tries - 1), 3000);
}

/** Draws the interval. The axis ends where one of the two would be better on every picture that they disagree on. */
function drawInterval() {
  const x = (value) => 200 + (190 * value) / Math.max(1, (100 * state.disagree) / state.images);
  const bar = $("#interval-bar");
  bar.setAttribute("x", x(state.low).toFixed(1));
  bar.setAttribute("width", Math.max(2, x(state.high) - x(state.low)).toFixed(1));
  $("#interval-mean").setAttribute("cx", x(state.difference).toFixed(1));
  for (const [name, value] of [["low", state.low], ["high", state.high]]) {
    const text = $(`#interval-${name}`);
    text.setAttribute("x", Math.min(380, Math.max(20, x(value))).toFixed(1));
    text.textContent = points(value);
  }
  $("#interval-words").textContent = words();
}

function words() {
  const range = t("judge.range", { low: points(state.low), high: points(state.high) });
  if (!state.answers || state.state === "decided" || state.state === "exhausted") return range;
  const left = state.clicks_left;
  if (left === null || left > 2000) return `${range} ${t("judge.no.lead")}`;
  return `${range} ${t("judge.more", { count: left })}`;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in KEYS && asking()) {
    event.preventDefault();  // the arrows would scroll
    if (!event.repeat) choose(KEYS[event.key]);
  } else if ((event.key === "Backspace" || event.key.toLowerCase() === "u") && !event.repeat) {
    event.preventDefault();
    undo();
  }
});
for (const button of $$("[data-choice]")) button.addEventListener("click", () => choose(button.dataset.choice));
for (const image of $$(".shown img")) {
  image.addEventListener("error", () => { image.alt = t("judge.missing"); });
}
$("#undo").addEventListener("click", undo);
$("#reveal").addEventListener("click", () => talk("?reveal=true"));
$("#go-on").addEventListener("click", () => { going = true; talk(""); });
$("#alert-retry").addEventListener("click", () => talk(""));
for (const words of $$("#end-words, #end-verdict")) words.lang = "en";  // sentences of the server
translate();
document.title = `${t("judge.title")} · FineSight`;
talk("");
