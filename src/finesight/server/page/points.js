// Draws many points by WebGL: a hundred thousand move smoothly. Places are in [0, 1]; the camera says what is in sight.

const SLOW = 32, FAST = 20;  // milliseconds between two pictures
export const WHOLE = { x: 0.5, y: 0.5, zoom: 0.92 };  // all points are in sight
const FEWEST = 4000;  // points that are drawn in any case

const VERTEX = `
attribute vec2 place; attribute vec3 color; attribute float mark;
uniform vec2 middle, scale; uniform float size;
varying vec3 shade; varying float marked;
void main() {
  gl_Position = vec4((place - middle) * scale * 2.0, 0.0, 1.0);
  gl_PointSize = size * (1.0 + 0.7 * mark);
  shade = color; marked = mark;
}`;
const FRAGMENT = `
precision mediump float;
varying vec3 shade; varying float marked;
void main() {
  float far = length(gl_PointCoord - 0.5);
  if (far > 0.5) discard;
  gl_FragColor = vec4(mix(shade, vec3(1.0, 0.35, 0.1), marked), 0.85 * smoothstep(0.5, 0.38, far));
}`;

function compile(gl, kind, text) {
  const shader = gl.createShader(kind);
  gl.shaderSource(shader, text);
  gl.compileShader(shader);
  if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
  return shader;
}

/** Returns a color for a number; numbers near each other have colors far from each other. */
export function colorOf(number, dark) {
  const hue = (number * 0.618034) % 1, light = dark ? 0.66 : 0.45, strong = 0.62;
  return [0, 8, 4].map((n) => {
    const k = (n + hue * 12) % 12;
    return light - strong * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
  });
}

export class Points {
  camera = { ...WHOLE };
  count = 0;
  share = 1;  // of the points that is drawn while the map moves
  moving = false;
  last = 0;

  constructor(canvas) {
    this.canvas = canvas;
    this.gl = canvas.getContext("webgl", { alpha: true, antialias: false, premultipliedAlpha: false });
    if (!this.gl) throw new Error("no WebGL");
    const { gl } = this, program = gl.createProgram();
    gl.attachShader(program, compile(gl, gl.VERTEX_SHADER, VERTEX));
    gl.attachShader(program, compile(gl, gl.FRAGMENT_SHADER, FRAGMENT));
    gl.linkProgram(program);
    gl.useProgram(program);
    this.names = Object.fromEntries(["middle", "scale", "size"].map((name) => [name, gl.getUniformLocation(program, name)]));
    this.buffers = {};
    for (const [name, width] of [["place", 2], ["color", 3], ["mark", 1]]) {
      const at = gl.getAttribLocation(program, name), buffer = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, width, gl.FLOAT, false, 0, 0);
      this.buffers[name] = buffer;
    }
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
  }

  #fill(name, data) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, data, this.gl.STATIC_DRAW);
  }

  setPlaces(places) {
    this.places = places;
    this.count = places.length / 2;
    this.#fill("place", places);
    this.#fill("mark", new Float32Array(this.count));
  }

  setColors(colors) { this.#fill("color", colors); }
  setMarks(marks) { this.#fill("mark", marks); }

  /** Returns pixels for one unit of the map. */
  get unit() { return Math.min(this.canvas.clientWidth, this.canvas.clientHeight) * this.camera.zoom; }

  /** Returns where a place of the map is on the screen, and back. */
  toScreen(x, y) {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    return [w / 2 + (x - this.camera.x) * this.unit, h / 2 - (y - this.camera.y) * this.unit];
  }

  toMap(left, top) {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    return [this.camera.x + (left - w / 2) / this.unit, this.camera.y - (top - h / 2) / this.unit];
  }

  /** Begins or goes on to move: the time since the last picture says how many points can be drawn. */
  hurry() {
    const now = performance.now(), took = now - this.last;
    if (this.moving && took > SLOW && took < 1000) this.share = Math.max(Math.min(1, FEWEST / this.count), this.share / 1.5);
    else if (this.moving && took < FAST) this.share = Math.min(1, this.share * 1.1);
    this.moving = true;
    this.last = now;
  }

  settle() { this.moving = false; }

  draw() {
    const { gl, canvas, camera } = this, ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    gl.viewport(0, 0, w, h);
    gl.clear(gl.COLOR_BUFFER_BIT);
    if (!this.count) return;
    gl.uniform2f(this.names.middle, camera.x, camera.y);
    gl.uniform2f(this.names.scale, this.unit / canvas.clientWidth, this.unit / canvas.clientHeight);
    const usual = this.count > 20_000 ? 3 : this.count > 3000 ? 5 : 8;
    gl.uniform1f(this.names.size, ratio * Math.min(16, usual * Math.max(1, Math.sqrt(camera.zoom))));
    gl.drawArrays(gl.POINTS, 0, this.moving ? Math.ceil(this.share * this.count) : this.count);
  }

  /** Returns the numbers of the points in a rectangle of the screen. */
  inside(left, top, right, bottom, most = Infinity) {
    const [x0, y1] = this.toMap(left, top), [x1, y0] = this.toMap(right, bottom), found = [];
    const { places } = this;
    for (let n = 0; n < this.count && found.length < most; n += 1) {
      const x = places[2 * n], y = places[2 * n + 1];
      if (x >= x0 && x <= x1 && y >= y0 && y <= y1) found.push(n);
    }
    return found;
  }

  /** Returns the number of the point nearest to a place of the screen, within some pixels; -1 if there is none. */
  nearest(left, top, within = 14) {
    const [x, y] = this.toMap(left, top), { places } = this;
    let best = (within / this.unit) ** 2, found = -1;
    for (let n = 0; n < this.count; n += 1) {
      const far = (places[2 * n] - x) ** 2 + (places[2 * n + 1] - y) ** 2;
      if (far < best) { best = far; found = n; }
    }
    return found;
  }
}
