// Offers the other indexes of a server that has several: the path of the page names its own.

import { $, show } from "./dom.js";

export async function offerIndexes() {
  const [, root, own] = /^(.*\/)i\/([^/]+)\/$/.exec(location.pathname) ?? [];
  if (!own) return;
  try {
    const { indexes } = await (await fetch(`${root}api/indexes`)).json();
    $("#indexes").replaceChildren(...indexes.map((one) => new Option(one.name, one.name, false, one.name === own)));
    show($("#indexes-part"));
    $("#indexes").addEventListener("change", (event) => { location.href = `${root}i/${event.target.value}/`; });
  } catch { /* then there is no choice */ }
}
