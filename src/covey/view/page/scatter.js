// A point cloud on WebGL2: drag pans or draws a lasso, wheel and keys zoom, click picks.
//
// Positions are CSS pixels of the canvas, or units of the data; `view` has the position of the centre
// and the CSS pixels per unit. Both dimensions have the same scale: distances are what is shown.
// Libraries (regl) compile code at run time, which the Content-Security-Policy of the page forbids.

import { h, placeTip } from "./dom.js";

const MAX_ZOOM = 2000; // times the zoom at which all points are in view
const PICK_RADIUS = 14;
const KEY_RADIUS = 60; // around the centre, in which keys pick a point
const CLICK_DISTANCE = 4;
const LASSO_DISTANCE = 3;
const PAN_STEP = 60;
const MARGIN = 24;
const FEW_COLOURS = 12;
const GOLDEN = 0.6180339887;

/** How prominent a point is: the factor of its size, and its opacity. */
export const FAINT = 0, NORMAL = 1, LARGE = 2, HUGE = 3;

const VERTEX = `#version 300 es
in float x;
in float y;
in vec4 style; // the level of prominence / 255, and the colour
uniform vec2 centre;
uniform vec2 scale;
uniform float size;
uniform float opacity;
out vec4 colour;
void main() {
  int level = int(style.r * 255.0 + 0.5);
  gl_Position = vec4((vec2(x, y) - centre) * scale, -float(level) / 8.0, 1.0);
  gl_PointSize = level < ${LARGE} ? size : max(size * 1.5, float(level) * 5.0);
  colour = vec4(style.gba, level == ${FAINT} ? 0.15 : level == ${NORMAL} ? opacity : 1.0);
}`;

const FRAGMENT = `#version 300 es
precision mediump float;
in vec4 colour;
out vec4 pixel;
void main() {
  if (length(2.0 * gl_PointCoord - 1.0) > 1.0) discard;
  pixel = vec4(colour.rgb * colour.a, colour.a);
}`;

const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

/** Return red, green and blue of a CSS colour, as the upper bytes of an integer. */
export function rgb(colour) {
  const probe = h("span", { style: { color: colour } });
  document.body.append(probe); // variables have their values in the page only
  pen.fillStyle = getComputedStyle(probe).color;
  probe.remove();
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
  return ((blue << 24) | (green << 16) | (red << 8)) >>> 0;
}

/** Return the CSS colour of one of `count` values: hues of equal lightness, far apart. */
export function hue(number, count) {
  const turn = count <= FEW_COLOURS ? number / count : (number * GOLDEN) % 1;
  const angle = (360 * turn).toFixed(1);
  return `light-dark(oklch(56% 0.15 ${angle}), oklch(76% 0.13 ${angle}))`;
}

/** Return whether a point is inside a polygon: a flat list of x and y, by the even-odd rule. */
function isInside(polygon, x, y) {
  let inside = false;
  for (let i = 0, j = polygon.length - 2; i < polygon.length; j = i, i += 2) {
    const [x1, y1, x2, y2] = [polygon[i], polygon[i + 1], polygon[j], polygon[j + 1]];
    if (y1 > y !== y2 > y && x < ((x2 - x1) * (y - y1)) / (y2 - y1) + x1) inside = !inside;
  }
  return inside;
}

/**
 * A point cloud.
 *
 * Args: `x`, `y` (Float32Array), and options `label`, `describe(index)` (text about a point),
 * `announce(text)`, `onpick(index)`, `onlasso(indices)`, `paint()` (returns `rgb` plus the level of
 * each point, a Uint32Array), `signal`. The state of `element` (in its dataset) is "ready" or "unavailable".
 */
export class Scatter {
  constructor(x, y, options) {
    Object.assign(this, { x, y, options, lasso: null, isLassoMode: false });
    this.canvas = h("canvas", {
      class: "cloud-points", tabindex: 0, role: "application", "aria-roledescription": "point cloud",
      "aria-label": options.label, "aria-describedby": "cloud-keys",
    });
    this.canvas.scatter = this; // for tests, and for scripts
    this.outline = h("path", {});
    this.tip = h("div", { class: "cloud-tip", hidden: true });
    this.element = h("div", { class: "cloud", dataset: { state: "ready" } }, this.canvas,
      h("svg", { class: "cloud-lasso", "aria-hidden": "true" }, this.outline), this.tip,
      h("div", { class: "cloud-cross", "aria-hidden": "true" }));
    const least = (values) => values.reduce((low, each) => Math.min(low, each), Infinity);
    const most = (values) => values.reduce((high, each) => Math.max(high, each), -Infinity);
    Object.assign(this, { left: least(x), right: most(x), bottom: least(y), top: most(y) });
    this.gl = this.canvas.getContext("webgl2", { antialias: false, preserveDrawingBuffer: true });
    if (!this.gl) {
      this.element.dataset.state = "unavailable";
      this.canvas.hidden = true;
      this.element.append(h("p", { class: "cloud-message" },
        "The browser has no WebGL2; the point cloud is not shown. The lists work without it."));
      return;
    }
    this.start();
    this.listen();
  }

  /** Create the program and the buffers; again after the context was lost. */
  start() {
    const { gl, x, y } = this;
    const program = gl.createProgram();
    for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(type);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    const buffers = [["x", 1, gl.FLOAT, x], ["y", 1, gl.FLOAT, y], ["style", 4, gl.UNSIGNED_BYTE, null]];
    buffers.forEach(([name], at) => gl.bindAttribLocation(program, at, name));
    gl.linkProgram(program);
    gl.useProgram(program);
    this.uniform = (name) => gl.getUniformLocation(program, name);
    buffers.forEach(([, count, type, values], at) => {
      gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
      if (values) gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
      gl.vertexAttribPointer(at, count, type, true, 0, 0);
      gl.enableVertexAttribArray(at);
    });
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    gl.enable(gl.DEPTH_TEST); // prominent points are in front
    gl.depthFunc(gl.LEQUAL);
    this.isPainted = false;
  }

  listen() {
    const { signal } = this.options;
    const on = (name, action) => this.canvas.addEventListener(name, action, { signal, passive: false });
    on("pointerdown", (event) => this.onDown(event));
    on("pointermove", (event) => this.onMove(event));
    on("pointerup", (event) => this.onUp(event));
    on("pointercancel", () => this.release());
    on("pointerleave", () => this.hover(-1));
    on("wheel", (event) => this.onWheel(event));
    on("keydown", (event) => this.onKey(event));
    on("blur", () => this.hover(-1));
    on("webglcontextlost", (event) => event.preventDefault()); // it is restored
    on("webglcontextrestored", () => {
      this.start();
      this.redraw();
    });
    window.addEventListener("covey-theme", () => this.repaint(), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint(), { signal });
    const observer = new ResizeObserver(() => this.resize());
    observer.observe(this.element);
    signal.addEventListener("abort", () => {
      observer.disconnect();
      this.gl.getExtension("WEBGL_lose_context")?.loseContext(); // releases the memory of the GPU
    });
  }

  // Coordinates.

  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height) return;
    const isFitted = !this.view || this.view.zoom === this.fitted;
    Object.assign(this, { width, height, ratio: window.devicePixelRatio || 1 });
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    if (isFitted) this.fit();
    this.draw();
  }

  /** Show all points. */
  fit() {
    const zoomX = Math.max(1, this.width - 2 * MARGIN) / (this.right - this.left || 1);
    const zoomY = Math.max(1, this.height - 2 * MARGIN) / (this.top - this.bottom || 1);
    this.fitted = Math.min(zoomX, zoomY);
    this.view = { x: (this.left + this.right) / 2, y: (this.bottom + this.top) / 2, zoom: this.fitted };
    this.redraw();
  }

  toData(px, py) {
    const { x, y, zoom } = this.view;
    return [x + (px - this.width / 2) / zoom, y - (py - this.height / 2) / zoom];
  }

  toPixel(index) {
    const { x, y, zoom } = this.view;
    return [this.width / 2 + (this.x[index] - x) * zoom, this.height / 2 - (this.y[index] - y) * zoom];
  }

  pan(dx, dy) {
    // The centre stays among the points, so that they are not lost.
    this.view.x = Math.max(this.left, Math.min(this.right, this.view.x - dx / this.view.zoom));
    this.view.y = Math.max(this.bottom, Math.min(this.top, this.view.y + dy / this.view.zoom));
    this.redraw();
  }

  /** Zoom by a factor; the data position at a pixel stays there. */
  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const [x, y] = this.toData(px, py);
    const zoom = Math.max(this.fitted / 4, Math.min(this.fitted * MAX_ZOOM, this.view.zoom * factor));
    this.view = { x: x - (px - this.width / 2) / zoom, y: y + (py - this.height / 2) / zoom, zoom };
    this.redraw();
  }

  /** Return the point nearest to a pixel, at most `radius` away; -1 if there is none. */
  pick(px, py, radius = PICK_RADIUS) {
    const [x, y] = this.toData(px, py);
    let [found, least] = [-1, (radius / this.view.zoom) ** 2];
    for (let i = 0; i < this.x.length; i += 1) {
      const distance = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
      if (distance <= least) [found, least] = [i, distance];
    }
    return found;
  }

  /** Return the points inside a polygon of pixels, by default in view: a flat list of x and y. */
  inside(polygon = [0, 0, this.width, 0, this.width, this.height, 0, this.height]) {
    const corners = [];
    for (let i = 0; i < polygon.length; i += 2) corners.push(...this.toData(polygon[i], polygon[i + 1]));
    const found = [];
    for (let i = 0; i < this.x.length; i += 1) if (isInside(corners, this.x[i], this.y[i])) found.push(i);
    return found;
  }

  // Drawing.

  /** Draw in the next frame, with other colours or levels. */
  repaint() {
    this.isPainted = false;
    this.redraw();
  }

  redraw() {
    this.frame ??= this.gl && requestAnimationFrame(() => {
      this.frame = null;
      if (this.width) this.draw();
    });
  }

  draw() {
    const { gl, canvas, view, ratio } = this;
    if (gl.isContextLost()) return;
    if (!this.isPainted) gl.bufferData(gl.ARRAY_BUFFER, this.options.paint(), gl.DYNAMIC_DRAW);
    this.isPainted = true;
    const count = Math.max(1, this.x.length);
    const spread = 0.7 * Math.sqrt((this.width * this.height) / count);
    const size = Math.max(1.5, Math.min(11, Math.min(7, spread) * Math.sqrt(view.zoom / this.fitted)));
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.uniform2f(this.uniform("centre"), view.x, view.y);
    const scale = 2 * view.zoom * ratio;
    gl.uniform2f(this.uniform("scale"), scale / canvas.width, scale / canvas.height);
    gl.uniform1f(this.uniform("size"), size * ratio);
    gl.uniform1f(this.uniform("opacity"), count > 20_000 ? 0.65 : 0.85);
    gl.drawArrays(gl.POINTS, 0, this.x.length);
    this.hover(-1);
  }

  hover(index) {
    this.tip.hidden = index < 0;
    if (index < 0) return;
    this.tip.textContent = this.options.describe(index);
    const [x, y] = this.toPixel(index);
    placeTip(this.tip, (100 * x) / this.width);
    this.tip.style.setProperty("top", `${Math.max(0, Math.min(y - 12, this.height - 30))}px`);
  }

  // Input.

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  onDown(event) {
    if (event.button !== 0 || this.start0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.start0 = this.at(event);
    Object.assign(this, { last: this.start0, isClick: true });
    if (event.shiftKey || this.isLassoMode) this.lasso = [...this.start0];
  }

  onMove(event) {
    const [x, y] = this.at(event);
    if (!this.start0) return this.hover(this.pick(x, y));
    if (Math.hypot(x - this.start0[0], y - this.start0[1]) > CLICK_DISTANCE) this.isClick = false;
    if (this.lasso) {
      // A browser reports the moves of one frame as one event.
      for (const [a, b] of [...(event.getCoalescedEvents?.() ?? []).map((each) => this.at(each)), [x, y]]) {
        if (Math.hypot(a - this.lasso.at(-2), b - this.lasso.at(-1)) >= LASSO_DISTANCE) this.lasso.push(a, b);
      }
      this.outline.setAttribute("d", `M${this.lasso.join(" ")}Z`);
    } else if (!this.isClick) this.pan(x - this.last[0], y - this.last[1]);
    this.last = [x, y];
  }

  /** End a drag. */
  release() {
    Object.assign(this, { start0: null, lasso: null });
    this.outline.setAttribute("d", "");
  }

  onUp() {
    if (!this.start0) return;
    const { lasso, isClick, last } = this;
    this.release();
    const found = isClick ? this.pick(...last) : -1;
    if (found >= 0) this.options.onpick(found);
    else if (!isClick && lasso?.length >= 6) this.options.onlasso(this.inside(lasso));
  }

  onWheel(event) {
    event.preventDefault();
    const change = Math.max(-400, Math.min(400, event.deltaY * (event.deltaMode === 1 ? 30 : 1)));
    this.zoom(Math.exp(-change * (event.ctrlKey ? 0.01 : 0.0018)), ...this.at(event));
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (moves[event.key]) this.pan(...moves[event.key].map((each) => each * PAN_STEP));
    else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") this.fit();
    else if (event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation(); // the page has keys, too
    const found = this.pick(this.width / 2, this.height / 2, KEY_RADIUS);
    if (found < 0) return;
    if (event.key === "Enter") this.options.onpick(found);
    else this.options.announce(this.options.describe(found));
  }
}
