// Shows the training in the background, and whether it helped.

import { ask } from "./api.js";
import { $, kept, say, show } from "./dom.js";
import { known, language, t } from "./i18n.js";
import { health, problem, refresh } from "./status.js";

let said = "";

function timeLeft(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 50) return t("left.seconds");
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return minutes <= 1 ? t("left.minute") : t("left.minutes", { n: minutes });
  return t("left.hours", { n: Math.round(minutes / 60) });
}

/** Returns what the server says in English; in another language what that state is called. */
const inWords = (state, words) => (language === "en" || !known(`state.${state}`) ? words : t(`state.${state}`));

function running({ words, step, total, seconds_left: left }) {
  const percent = total ? `${Math.floor((100 * step) / total)} %` : "";
  bar(total ? step : null, total);
  return [inWords("running", words), [percent, timeLeft(left)].filter(Boolean).join(", ")];
}

function indexing({ words }) {
  const { progress } = health;
  const counted = progress?.phase === "embedding" && progress.total > 0;
  bar(counted ? progress.done : null, progress?.total ?? 0);
  return [inWords("indexing", words), counted ? t("training.added", progress) : ""];
}

function bar(value, max) {
  if (value === null) { $("#training-bar").removeAttribute("value"); return; }
  $("#training-bar").max = max;
  $("#training-bar").value = value;
}

/** Returns the words of an ended training: the verdict, or that there are new pictures. */
function ended({ state, words, new_images: fresh }) {
  const more = fresh ? t("training.new", { count: fresh }) : "";
  const { verdict } = health;
  const told = verdict && inWords(`verdict.${verdict.verdict.replace(" ", "-")}.${verdict.kept}`, verdict.words);
  return [state === "done" && told ? told : inWords(state, words), more];
}

/** Shows what the health says of the training. */
export function present() {
  const { training, verdict } = health;
  const shown = training && !["off", "waiting"].includes(training.state);
  const busy = shown && ["running", "indexing"].includes(training.state);
  if (!shown) { show($("#training"), false); return; }
  const [words, more] = busy ? (training.state === "running" ? running : indexing)(training) : ended(training);
  const closed = !busy && kept.get("training-closed") === words + more;
  show($("#training"), !closed);
  $("#training").classList.toggle("problem", training.state === "failed");
  $("#training-words").textContent = words;
  $("#training-more").textContent = more;
  show($("#training-bar"), busy);
  const both = health.features.length > 1;
  show($("#training-judge"), !busy && both && verdict?.verdict === "cannot tell");
  show($("#training-both"), !busy && both);
  show($("#training-go"), training.can_start);
  $("#training-go").textContent = t(known(`training.${training.state}`) ? `training.${training.state}` : "training.go");
  show($("#training-close"), !busy);
  if (!busy && said !== words) { if (said) say(words); said = words; }
}

export function begin(compare) {
  $("#training-both").addEventListener("click", compare);
  $("#training-close").addEventListener("click", () => {
    kept.set("training-closed", $("#training-words").textContent + $("#training-more").textContent);
    show($("#training"), false);
  });
  $("#training-go").addEventListener("click", async () => {
    try { await ask("training", { post: true }); } catch (error) { problem(error); }
    refresh();
  });
}
