// Draws maps of the network over pictures. A map covers the view: the part of the picture that the network saw.

const SIDE = 96;  // pixels of a map once it is smooth
const LONGEST = 240;  // of the canvas, which is stretched over the picture: there may be hundreds

// value -> red, green, blue, opacity: important places are bright and show the picture, the others are dark
const SCALE = [
  [0.0, 12, 16, 42, 0.74], [0.3, 74, 24, 96, 0.6], [0.55, 186, 54, 72, 0.46], [0.78, 242, 132, 44, 0.38],
  [1.0, 255, 214, 92, 0.36],
];
const AGAINST = [38, 120, 255];  // for places that lower the score

function color(value, into, at) {
  if (value < 0) {
    into.set(AGAINST, at);
    into[at + 3] = 255 * 0.75 * Math.min(1, -value);
    return;
  }
  const high = Math.max(1, SCALE.findIndex(([start]) => start >= Math.min(1, value)));
  const [a, b] = [SCALE[high - 1], SCALE[high]];
  const share = (Math.min(1, value) - a[0]) / (b[0] - a[0]);
  for (let i = 0; i < 3; i += 1) into[at + i] = a[i + 1] + share * (b[i + 1] - a[i + 1]);
  into[at + 3] = 255 * (a[4] + share * (b[4] - a[4]));
}

/** Interpolates between the centers of the cells; the border has the value of its nearest cell. */
export function sample(map, x, y) {
  const rows = map.length, columns = map[0].length;
  const clamp = (value, most) => Math.min(most, Math.max(0, value));
  const fx = clamp(x * columns - 0.5, columns - 1), fy = clamp(y * rows - 0.5, rows - 1);
  const left = Math.floor(fx), top = Math.floor(fy);
  const right = Math.min(left + 1, columns - 1), bottom = Math.min(top + 1, rows - 1);
  const u = fx - left, v = fy - top;
  const across = (row) => row[left] * (1 - u) + row[right] * u;
  return across(map[top]) * (1 - v) + across(map[bottom]) * v;
}

function smooth(map, most) {
  const small = document.createElement("canvas");
  small.width = small.height = SIDE;
  const context = small.getContext("2d");
  const image = context.createImageData(SIDE, SIDE);
  for (let y = 0; y < SIDE; y += 1) {
    for (let x = 0; x < SIDE; x += 1) {
      color(sample(map, (x + 0.5) / SIDE, (y + 0.5) / SIDE) / most, image.data, 4 * (y * SIDE + x));
    }
  }
  context.putImageData(image, 0, 0);
  return small;
}

export const largest = (...maps) => Math.max(1e-9, ...maps.flat(2).map(Math.abs));

/** Draws `map` (rows of numbers up to `most`) on a canvas that has the shape of the picture. */
export function paint(canvas, { width, height }, view, map, most = 1) {
  const scale = LONGEST / Math.max(width, height, 1);
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  if (!map?.length || !map[0].length) return;
  const [w, h] = [canvas.width, canvas.height];
  const area = [view.x * w, view.y * h, view.width * w, view.height * h].map(Math.round);
  const [, red, green, blue, veil] = SCALE[0];
  context.fillStyle = `rgb(${red} ${green} ${blue} / ${veil})`;  // the network does not see what lies outside the view
  context.fillRect(0, 0, w, h);
  context.clearRect(...area);
  context.imageSmoothingQuality = "high";
  context.drawImage(smooth(map, most), ...area);
  canvas.dataset.painted = "";
}
