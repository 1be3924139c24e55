// Saved views and pins, which the server keeps, and a link to what is shown.

import { ask } from "./api.js";
import { $, $$, el, say } from "./dom.js";
import { t } from "./i18n.js";
import { marks, place } from "./state.js";
import { problem } from "./status.js";

const SHOWN = 4000;  // milliseconds
let views = [], sent = "";

function present(saved) {
  views = saved.views;
  $("#saved-none").hidden = views.length > 0;
  $("#saved-list").replaceChildren(...views.map((view) => el("li", { class: "row between" },
    el("a", { href: view.address, text: view.name }),
    el("button", { type: "button", class: "small", text: t("saved.remove"), "aria-label": t("saved.remove.of", view), onclick: () => keep(view.name, null) }))));
}

async function keep(name, address) {
  try {
    present(await ask("saved", { json: { name, address } }));
    say(t(address === null ? "saved.removed" : "saved.say", { name }));
    $("#saved-words").textContent = t(address === null ? "saved.removed" : "saved.say", { name });
  } catch (error) { $("#saved-words").textContent = error.message; }
}

const sentPhoto = () => place.q.startsWith("q");

/** Copies the address of what is shown; returns words. */
async function copyLink() {
  if (place.view === "many") return t("saved.upload");
  try { await navigator.clipboard.writeText(location.href); } catch { return t("copy.not"); }
  return t(sentPhoto() ? "link.upload" : "link.copied");
}

/** Copies the link, and says so: in a window with a line for it, or else on the button for a while. */
async function onCopy({ target }) {
  const words = await copyLink(), line = $("[data-words]", target.closest("dialog"));
  say(words);
  (line ?? target).textContent = words;
  if (!line) setTimeout(() => { target.textContent = t("link"); }, SHOWN);
}

function open() {
  $("#saved-words").textContent = "";
  $("#saved-name").value = document.title === "FineSight" ? $("main section:not([hidden]) h1")?.textContent ?? "" : document.title.replace(" · FineSight", "");
  $("#saved").showModal();
}

/** Sends the pins when they changed; photos that were sent are forgotten by the server, so they are not kept. */
async function keepPins() {
  const ids = marks.pins.map((item) => item.id).filter((id) => !id.startsWith("q"));
  if (ids.join() === sent) return;
  sent = ids.join();
  try { await ask("pins", { json: { ids } }); } catch (error) { if (error.status !== 409) problem(error); }
}

export async function setUp() {
  $("#saved-open").addEventListener("click", open);
  for (const button of $$("[data-copy-link]")) button.addEventListener("click", onCopy);
  $("#saved-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const query = new URLSearchParams(location.search);
    if (sentPhoto() || place.view === "many") { $("#saved-words").textContent = t("saved.upload"); return; }
    query.delete("lang");
    keep($("#saved-name").value.trim(), `?${query}`);
  });
  try {
    const saved = await ask("saved");
    present(saved);
    sent = saved.pins.map((item) => item.id).join();
    if (!marks.pins.length) { marks.pins = saved.pins; marks.tell(); }
  } catch (error) { problem(error); }
  marks.addEventListener("change", keepPins);
}
