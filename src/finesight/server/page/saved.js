// Saved views and pins, which the server keeps, and a link to what is shown.

import { ask } from "./api.js";
import { $, el, say } from "./dom.js";
import { t } from "./i18n.js";
import { marks } from "./state.js";
import { problem } from "./status.js";

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

/** Copies the address of what is shown. */
export async function copyLink() {
  const sentPicture = new URLSearchParams(location.search).get("q")?.startsWith("q");
  try {
    await navigator.clipboard.writeText(location.href);
    const words = t(sentPicture ? "link.upload" : "link.copied");
    $("#saved-words").textContent = words;
    say(words);
  } catch { $("#saved-words").textContent = t("copy.not"); }
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
  $("#copy-link").addEventListener("click", copyLink);
  $("#saved-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const query = new URLSearchParams(location.search);
    if (query.get("q")?.startsWith("q")) { $("#saved-words").textContent = t("saved.upload"); return; }
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
