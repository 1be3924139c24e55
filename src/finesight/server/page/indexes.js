// The page at / of a server that has several indexes: a choice of them.

import { ask } from "./api.js";
import { $, el } from "./dom.js";
import { pictures, t, translate } from "./i18n.js";

translate();
try {
  const { indexes } = await ask("indexes");
  $("#indexes").replaceChildren(...indexes.map(({ name, items, samples }) => el("li", {},
    el("a", { class: "group", href: `i/${name}/`, "aria-label": t("index.of", { name, pictures: pictures(items) }) },
      el("div", { class: "strip" }, ...samples.map((id) => el("img", { alt: "", src: `i/${name}/api/items/${id}/thumb` }))),
      el("span", {}, el("b", { text: name }), " ", el("span", { class: "quiet", text: pictures(items) }))))));
} catch (error) { $("#indexes").replaceChildren(el("li", { text: error.message })); }
