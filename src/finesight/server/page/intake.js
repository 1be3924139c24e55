// Takes photos that people drop, paste or choose.

import { $, $$, show } from "./dom.js";
import { t } from "./i18n.js";

/** `take(files)` gets the photos; `refuse(words)` says why there is none. */
export function begin(take, refuse) {
  const one = (files) => {
    if (files.length) take([...files]);
  };
  const chooser = $("#file");
  for (const button of $$("[data-choose]")) button.addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => { one(chooser.files); chooser.value = ""; });

  let inside = 0;  // elements entered and not left
  const hide = () => { inside = 0; show($("#dropping"), false); };
  document.addEventListener("dragenter", (event) => {
    event.preventDefault();
    if (!event.dataTransfer?.types.includes("Files")) return;
    inside += 1;
    show($("#dropping"));
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("dragleave", () => { inside -= 1; if (inside <= 0) hide(); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();  // otherwise the browser would open the photo in place of this page
    hide();
    if (event.dataTransfer.files.length) one(event.dataTransfer.files);
    else refuse(t("only.file"));
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) { event.preventDefault(); one(files); }
    else if (!event.target.closest?.("input, textarea")) refuse(t("clipboard"));
  });
}
