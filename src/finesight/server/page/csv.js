// Writes selected pictures to a CSV file that spreadsheets open.

import { offer } from "./api.js";

/** Quotes a text where needed, and puts an apostrophe before what a spreadsheet would run as a formula. */
export function cell(value) {
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : value;
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function table(items) {
  const score = (item) => (item.score === undefined ? "" : Number(item.score.toFixed(6)));
  const rows = items.map((item) => [item.path ?? item.name, score(item), item.id, item.label ?? "", (item.tags ?? []).join(";")]);
  return [["path", "score", "id", "label", "tags"], ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export function save(items, name = "finesight.csv") {
  offer(new Blob(["\uFEFF", table(items)], { type: "text/csv;charset=utf-8" }), name);
}
