// The map of the collection: pictures that look alike lie near each other. It zooms, pans, shows thumbnails and selects.

import { Problem, ask, thumb } from "./api.js";
import { $, el, say, show } from "./dom.js";
import { pictures, t } from "./i18n.js";
import { Points, WHOLE, colorOf } from "./points.js";
import { marks, place, go } from "./state.js";
import { problem } from "./status.js";

const THUMBS = 90;  // that are shown at a time
const SIDE = 64;
const MOST_SELECTED = 5000;
let points = null, ids = [], order = [], rest = 0, loaded = false, waiting = false, lasso = null, shownThumbs = "", selecting = false;
const canvas = $("#map-canvas");

async function load() {
  const response = await fetch("api/map").catch(() => { throw new Problem(t("gone"), 0); });
  if (!response.ok) throw new Problem((await response.json()).detail ?? t("refused", { status: String(response.status) }), response.status);
  const data = await response.arrayBuffer(), count = data.byteLength / 16;
  const sent = new Float32Array(data, 0, 2 * count), names = new Float64Array(data, 8 * count, count);
  order = shuffled(count);  // a part of the points is then a fair sample of them
  const places = new Float32Array(2 * count);
  order.forEach((from, n) => places.set(sent.subarray(2 * from, 2 * from + 2), 2 * n));
  ids = Array.from(order, (from) => String(names[from]));
  points = points ?? new Points(canvas);
  points.setPlaces(places);
  loaded = true;
  look();
  await recolor();
  $("#map-title").textContent = t("map.title", { pictures: pictures(count) });
}

/** Shows the part of the map that the address names. */
function look() {
  const [x, y, zoom] = place.at.split(",").map(Number);
  if (Number.isFinite(x + y + zoom)) Object.assign(points.camera, { x, y, zoom: within(zoom) });
  else tell();
}

/** Puts the part of the map that is shown into the address. */
function tell() {
  const { x, y, zoom } = points.camera, whole = x === WHOLE.x && y === WHOLE.y && zoom === WHOLE.zoom;
  if (place.view === "map") go({ at: whole ? "" : [x, y, zoom].map((value) => Number(value.toFixed(7))).join() }, { replace: true });
}

const within = (zoom) => Math.min(400, Math.max(0.5, zoom));

/** Returns the numbers below `count` in an order that looks random and is always the same. */
function shuffled(count) {
  const found = Uint32Array.from({ length: count }, (_, n) => n);
  let state = 1;
  for (let n = count - 1; n > 0; n -= 1) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const other = Math.floor((state / 2 ** 32) * (n + 1));
    [found[n], found[other]] = [found[other], found[n]];
  }
  return found;
}

async function recolor() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const found = place.color === "none" ? { names: [], colors: [] } : await ask("map/colors", { params: { by: place.color } });
  const plain = dark ? [0.6, 0.65, 0.7] : [0.35, 0.4, 0.45], colors = new Float32Array(3 * ids.length);
  const table = found.names.map((name, n) => (name === "" ? plain : colorOf(n, dark)));
  for (let n = 0; n < ids.length; n += 1) colors.set(table[found.colors[order[n]]] ?? plain, 3 * n);
  points.setColors(colors);
  const legend = found.names.slice(0, 24).map((name, n) => {
    const dot = el("i");
    dot.style.background = `rgb(${table[n].map((value) => Math.round(255 * value)).join(" ")})`;
    return el("li", {}, dot, name || t(place.color === "label" ? "map.unlabeled" : "map.top"));
  });
  if (found.names.length > 24) legend.push(el("li", { text: t("map.more", { n: found.names.length - 24 }) }));
  $("#map-legend").replaceChildren(...legend);
  mark();
}

function mark() {
  if (!points || !loaded) return;
  points.setMarks(Float32Array.from(ids, (id) => (marks.selected.has(id) ? 1 : 0)));
  redraw();
}

/** Draws once before the next picture of the screen, however often it is asked for. */
export function redraw() {
  if (waiting || !points) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; points.draw(); thumbs(); });
}

/** Draws while the map moves: where the computer is slow only a part of the points, and all of them at rest. */
function moved() {
  points.hurry();
  redraw();
  clearTimeout(rest);
  rest = setTimeout(() => { points.settle(); tell(); redraw(); }, 200);
}

/** Shows thumbnails where few points are in sight, at most one on the same place. */
function thumbs() {
  const { clientWidth: w, clientHeight: h } = canvas;
  const near = points.inside(0, 0, w, h, 8 * THUMBS);
  const taken = new Set(), chosen = [];
  if (near.length < 8 * THUMBS) {
    for (const n of near) {
      const [x, y] = points.toScreen(points.places[2 * n], points.places[2 * n + 1]);
      const cell = `${Math.round(x / SIDE)} ${Math.round(y / SIDE)}`;
      if (taken.has(cell) || chosen.length >= THUMBS) continue;
      taken.add(cell);
      chosen.push([n, x, y]);
    }
  }
  const key = chosen.map(([n]) => n).join();
  if (key !== shownThumbs) {
    shownThumbs = key;
    const old = new Map([...$("#map-thumbs").children].map((node) => [node.dataset.n, node]));
    $("#map-thumbs").replaceChildren(...chosen.map(([n]) => old.get(String(n)) ?? el("img", { alt: "", src: thumb(ids[n]), "data-n": n, draggable: "false" })));
  }
  [...$("#map-thumbs").children].forEach((node, at) => {
    node.style.transform = `translate(${Math.round(chosen[at][1] - SIDE / 2)}px, ${Math.round(chosen[at][2] - SIDE / 2)}px)`;
  });
}

function zoomAt(factor, left = canvas.clientWidth / 2, top = canvas.clientHeight / 2) {
  const before = points.toMap(left, top);
  points.camera.zoom = within(points.camera.zoom * factor);
  const after = points.toMap(left, top);
  points.camera.x += before[0] - after[0];
  points.camera.y += before[1] - after[1];
  moved();
}

function pan(dx, dy) { points.camera.x -= dx / points.unit; points.camera.y += dy / points.unit; moved(); }

async function open(n) {
  if (n < 0) return;
  $("#main").dispatchEvent(new CustomEvent("act", { bubbles: true, detail: { action: "open", item: { id: ids[n] } } }));
}

/** Selects the pictures inside a line that was drawn around them. */
async function selectInside(line) {
  const xs = line.map(([x]) => x), ys = line.map(([, y]) => y);
  const rough = points.inside(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys));
  const found = rough.filter((n) => inLine(points.toScreen(points.places[2 * n], points.places[2 * n + 1]), line));
  const items = await describe(found.slice(0, MOST_SELECTED).map((n) => ids[n]));
  marks.selectAll(items);
  say(t("tray.selected", { n: marks.selected.size }));
}

/** Says whether a point lies inside a closed line: a ray from it crosses the line an odd number of times. */
function inLine([x, y], line) {
  let inside = false;
  for (let a = 0, b = line.length - 1; a < line.length; b = a, a += 1) {
    const [xa, ya] = line[a], [xb, yb] = line[b];
    if ((ya > y) !== (yb > y) && x < ((xb - xa) * (y - ya)) / (yb - ya) + xa) inside = !inside;
  }
  return inside;
}

/** Asks for the names of pictures, which the map does not have. */
async function describe(wanted) {
  const found = [];
  for (let start = 0; start < wanted.length; start += 500) {
    const answer = await ask("items/list", { json: { ids: wanted.slice(start, start + 500) } });
    found.push(...answer.items);
  }
  return found;
}

function drawLasso() { $("#map-line").setAttribute("points", (lasso ?? []).map((point) => point.join(",")).join(" ")); }

function pointers() {
  const down = new Map();
  let moved = false;
  const at = (event) => { const area = canvas.getBoundingClientRect(); return [event.clientX - area.left, event.clientY - area.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    down.set(event.pointerId, at(event));
    moved = false;
    if (event.shiftKey || selecting) lasso = [at(event)];
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before || !points) return;
    const now = at(event), other = [...down].find(([id]) => id !== event.pointerId)?.[1];
    if (Math.hypot(now[0] - before[0], now[1] - before[1]) > 3) moved = true;
    if (lasso) { lasso.push(now); drawLasso(); } else if (other) {
      const gap = (a) => Math.max(10, Math.hypot(a[0] - other[0], a[1] - other[1]));
      zoomAt(gap(now) / gap(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else if (moved) pan(now[0] - before[0], now[1] - before[1]); else return;
    down.set(event.pointerId, now);
  });
  const up = (event) => {
    down.delete(event.pointerId);
    if (lasso) { const line = lasso; lasso = null; drawLasso(); if (line.length > 2) selectInside(line).catch(problem); } else if (!moved && event.type === "pointerup") open(points?.nearest(...at(event), 26) ?? -1);
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); if (points) zoomAt(Math.exp(-event.deltaY * 0.0015), ...at(event)); }, { passive: false });
}

function keys(event) {
  const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  if (!points || event.ctrlKey || event.metaKey) return;
  if (event.key in steps) pan(...steps[event.key]);
  else if (event.key === "+" || event.key === "=") zoomAt(1.4);
  else if (event.key === "-") zoomAt(1 / 1.4);
  else if (event.key === "Enter") open(points.nearest(canvas.clientWidth / 2, canvas.clientHeight / 2, Infinity));
  else return;
  event.preventDefault();
  event.stopPropagation();
}

export async function arrive() {
  $("#map-color").value = place.color;
  if (loaded) { look(); recolor().catch(problem); return; }
  $("#map-title").textContent = t("map.making");
  try { await load(); } catch (error) {
    $("#map-title").textContent = t("map");
    problem(error.message === "no WebGL" ? new Problem(t("map.no.gl"), 400) : error, arrive);
  }
}

/** Forgets the map, because the index has changed. */
export function forget() { loaded = false; }

export function setUp() {
  pointers();
  canvas.addEventListener("keydown", keys);
  $("#map-in").addEventListener("click", () => points && zoomAt(1.6));
  $("#map-out").addEventListener("click", () => points && zoomAt(1 / 1.6));
  $("#map-all").addEventListener("click", () => { if (points) { Object.assign(points.camera, WHOLE); tell(); redraw(); } });
  $("#map-lasso").addEventListener("click", (event) => { selecting = !selecting; event.target.setAttribute("aria-pressed", selecting); });
  $("#map-color").addEventListener("change", (event) => { go({ color: event.target.value }); recolor().catch(problem); });
  marks.addEventListener("change", mark);
  addEventListener("resize", redraw);
  show($("#map-thumbs"));
}
