// A point cloud: its view, what is drawn, and the points at a position (scatter_input.js: pointer and keys).
//
// Positions are CSS pixels of the canvas, or units of the data; `view` has the position of the centre
// and the CSS pixels per unit. Both dimensions have the same scale: distances are what is shown.

import { colours } from "./charts.js";
import { h } from "./dom.js";
import { PointRenderer } from "./scatter_gl.js";
import { PointIndex } from "./scatter_index.js";
import { ScatterInput } from "./scatter_input.js";

const MAX_ZOOM = 2000; // times the zoom at which all points are in view
const PICK_RADIUS = 14;
const MARGIN = 24;
const SLOW_MS = 45; // a frame that is not smooth
const MAX_STEP = 16;
const FEW_POINTS = 20_000; // not fewer are drawn while the view moves
const SETTLE_MS = 160;
const SLOW_SETTLE_MS = 500;
const LIGHT = { lightness: 0.56, chroma: 0.15 };
const DARK = { lightness: 0.76, chroma: 0.13 };

/** Return the lightness and chroma of points for the current theme. */
export function pointStyle() {
  return getComputedStyle(document.documentElement).colorScheme.includes("dark") ? DARK : LIGHT;
}

/**
 * A point cloud.
 *
 * Args: `points` ({x, y, position, classes}), and options `label`, `describe(index)` (text about a
 * point), `announce(text)`, `onpick(index)`, `onlasso(indices)`, `signal`.
 * The state of `element` (in its dataset) is "ready", "lost" or "unavailable".
 */
export class Scatter {
  constructor(points, options) {
    this.points = points;
    this.options = options;
    this.index = new PointIndex(points.x, points.y);
    this.lasso = null; // x and y of the line that is being drawn, in pixels
    this.isLassoMode = false;
    this.hovered = -1;
    this.step = 1;
    this.isDimmed = false;
    this.canvas = h("canvas", {
      class: "cloud-points", tabindex: 0, role: "application", "aria-roledescription": "point cloud",
      "aria-label": options.label, "aria-describedby": "cloud-keys",
    });
    this.overlay = h("canvas", { class: "cloud-overlay", "aria-hidden": "true" });
    this.tip = h("div", { class: "cloud-tip", hidden: true });
    this.message = h("p", { class: "cloud-message", hidden: true, role: "status" });
    const parts = [this.canvas, this.overlay, this.tip, this.message];
    this.element = h("div", { class: "cloud", dataset: { state: "ready" } }, parts);
    try {
      this.renderer = new PointRenderer(this.canvas, points);
    } catch (error) {
      this.renderer = null;
      this.canvas.hidden = true;
      this.say("unavailable", `${error.message}; the point cloud is not shown. The lists work without it.`);
      return;
    }
    this.listen();
    // For tests, and for scripts: the page coordinates of a point, and the pixels that are drawn.
    this.canvas.pointAt = (index) => this.pointAt(index);
    this.canvas.readPixels = () => this.readPixels();
  }

  say(state, text) {
    this.element.dataset.state = state;
    this.message.hidden = !text;
    this.message.textContent = text;
  }

  listen() {
    const { canvas } = this;
    const { signal } = this.options;
    const on = (name, action) => canvas.addEventListener(name, action, { signal });
    new ScatterInput(this, signal);
    on("focus", () => this.redraw());
    on("blur", () => {
      this.hover(-1);
      this.redraw();
    });
    on("webglcontextlost", (event) => {
      event.preventDefault(); // it is restored
      if (!signal?.aborted) this.say("lost", "The graphics context was lost; waiting for it to be restored.");
    });
    on("webglcontextrestored", () => {
      this.renderer.start();
      this.say("ready", "");
      this.redraw();
    });
    window.addEventListener("covey-theme", () => this.redraw(), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw(), { signal });
    const observer = new ResizeObserver(() => this.resize());
    observer.observe(this.element);
    signal?.addEventListener("abort", () => {
      observer.disconnect();
      clearTimeout(this.timer);
      this.renderer.close();
    });
  }

  // Coordinates.

  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    const isFitted = !this.view || this.view.zoom === this.fitted;
    [this.width, this.height, this.ratio] = [width, height, ratio];
    for (const each of [this.canvas, this.overlay]) {
      each.width = Math.round(width * ratio);
      each.height = Math.round(height * ratio);
    }
    if (isFitted) this.fit();
    this.draw();
  }

  /** Show all points. */
  fit() {
    const { left, right, bottom, top } = this.index;
    const zoomX = Math.max(1, this.width - 2 * MARGIN) / (right - left || 1);
    const zoomY = Math.max(1, this.height - 2 * MARGIN) / (top - bottom || 1);
    this.fitted = Math.min(zoomX, zoomY);
    this.view = { x: (left + right) / 2, y: (bottom + top) / 2, zoom: this.fitted };
    this.redraw();
  }

  /** Return the data position of a pixel of the canvas. */
  toData(px, py) {
    const { x, y, zoom } = this.view;
    return [x + (px - this.width / 2) / zoom, y - (py - this.height / 2) / zoom];
  }

  /** Return the pixel of the canvas of a data position. */
  toPixel(x, y) {
    return [this.width / 2 + (x - this.view.x) * this.view.zoom, this.height / 2 - (y - this.view.y) * this.view.zoom];
  }

  /** Return {x, y} of a point in the page (of the viewport of the browser). */
  pointAt(index) {
    const [x, y] = this.toPixel(this.points.x[index], this.points.y[index]);
    const box = this.canvas.getBoundingClientRect();
    return { x: box.left + x, y: box.top + y };
  }

  pan(dx, dy) {
    const { left, right, bottom, top } = this.index;
    // The centre stays among the points, so that they are not lost.
    this.view.x = Math.max(left, Math.min(right, this.view.x - dx / this.view.zoom));
    this.view.y = Math.max(bottom, Math.min(top, this.view.y + dy / this.view.zoom));
    this.redraw(true);
  }

  /** Zoom by a factor; the data position at a pixel stays there. */
  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const [x, y] = this.toData(px, py);
    const zoom = Math.max(this.fitted / 4, Math.min(this.fitted * MAX_ZOOM, this.view.zoom * factor));
    this.view = { x: x - (px - this.width / 2) / zoom, y: y + (py - this.height / 2) / zoom, zoom };
    this.redraw(true);
  }

  /** Move the view so that a point is in it. */
  reveal(index) {
    if (!this.view) return;
    const [px, py] = this.toPixel(this.points.x[index], this.points.y[index]);
    if (px > MARGIN && py > MARGIN && px < this.width - MARGIN && py < this.height - MARGIN) return;
    this.view.x = this.points.x[index];
    this.view.y = this.points.y[index];
    this.redraw();
  }

  // Drawing.

  /** Mark points (see scatter_gl.js); null removes the mark. */
  mark(name, options) {
    this.renderer?.mark(name, options);
    this.redraw();
  }

  /** Draw all points faintly, so that marked ones stand out. */
  dim(isDimmed) {
    this.isDimmed = isDimmed;
    this.redraw();
  }

  /** Draw in the next frame; `isMoving`: with fewer points if frames are slow. */
  redraw(isMoving = false) {
    if (isMoving) {
      this.isMoving = true;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        this.isMoving = false;
        this.redraw();
      }, this.step > 1 ? SLOW_SETTLE_MS : SETTLE_MS);
    }
    if (this.frame || !this.renderer) return;
    this.frame = requestAnimationFrame((now) => {
      this.frame = 0;
      if (!this.width) return;
      if (this.isMoving && this.wasMoving) this.adapt(now - this.lastFrame);
      this.lastFrame = now;
      this.wasMoving = this.isMoving;
      this.draw();
    });
  }

  /** Draw every second, fourth, ... point while the view moves, until frames are smooth. */
  adapt(elapsed) {
    const isMany = this.points.x.length / this.step > FEW_POINTS;
    if (elapsed > SLOW_MS && elapsed < 1000 && isMany) this.step = Math.min(MAX_STEP, this.step * 2);
  }

  style() {
    const count = Math.max(1, this.points.x.length);
    const spread = 0.7 * Math.sqrt((this.width * this.height) / count);
    const closer = Math.sqrt(this.view.zoom / this.fitted);
    const size = Math.max(1.5, Math.min(11, Math.min(7, spread) * closer));
    const alpha = this.isDimmed ? 0.18 : count > 20_000 ? 0.65 : 0.85;
    return { ...pointStyle(), size: size * this.ratio, alpha, ratio: this.ratio, tokens: colours() };
  }

  draw() {
    if (!this.renderer || !this.view) return;
    const view = { ...this.view, zoom: this.view.zoom * this.ratio };
    const begin = performance.now();
    this.renderer.draw(view, this.style(), this.isMoving ? this.step : 1);
    if (!this.isMeasured) {
      this.isMeasured = true;
      this.renderer.finish().then((isDrawn) => isDrawn && this.setStep(performance.now() - begin));
    }
    this.drawOverlay();
  }

  /** Choose how many points are drawn while the view moves, from the time of a frame with all. */
  setStep(elapsed) {
    while (elapsed > SLOW_MS * this.step && this.step < MAX_STEP && this.points.x.length / this.step > FEW_POINTS) {
      this.step *= 2;
    }
  }

  /** Draw now; return {pixels, width, height}: RGBA, the bottom row first. */
  async readPixels() {
    this.draw();
    const { width, height } = this.canvas;
    return { pixels: await this.renderer.readPixels(), width, height };
  }

  drawOverlay() {
    const pen = this.overlay.getContext("2d");
    const { accent, text } = colours();
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.lineWidth = 2;
    if (this.lasso) {
      pen.strokeStyle = accent;
      pen.setLineDash([6, 4]);
      pen.beginPath();
      for (let i = 0; i < this.lasso.length; i += 2) pen.lineTo(this.lasso[i], this.lasso[i + 1]);
      pen.closePath();
      pen.globalAlpha = 0.12;
      pen.fillStyle = accent;
      pen.fill();
      pen.globalAlpha = 1;
      pen.stroke();
      pen.setLineDash([]);
    }
    if (this.hovered >= 0) {
      const [x, y] = this.toPixel(this.points.x[this.hovered], this.points.y[this.hovered]);
      pen.strokeStyle = text;
      pen.beginPath();
      pen.arc(x, y, 8, 0, 2 * Math.PI);
      pen.stroke();
    }
    if (this.canvas.matches(":focus-visible")) this.drawCrosshair(pen, text);
  }

  /** The position at which Enter picks a point. */
  drawCrosshair(pen, colour) {
    const [x, y] = [this.width / 2, this.height / 2];
    pen.strokeStyle = colour;
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      pen.moveTo(x + 5 * dx, y + 5 * dy);
      pen.lineTo(x + 14 * dx, y + 14 * dy);
    }
    pen.stroke();
  }

  /** Return the point nearest to a pixel, at most PICK_RADIUS away; -1 if there is none. */
  pick(px, py, radius = PICK_RADIUS) {
    return this.index.nearest(...this.toData(px, py), radius / this.view.zoom);
  }

  hover(index) {
    if (index === this.hovered) return;
    this.hovered = index;
    this.tip.hidden = index < 0;
    if (index >= 0) {
      this.tip.textContent = this.options.describe(index);
      const [x, y] = this.toPixel(this.points.x[index], this.points.y[index]);
      const isRight = x > this.width / 2;
      this.tip.style.setProperty("left", isRight ? "auto" : `${x + 14}px`);
      this.tip.style.setProperty("right", isRight ? `${this.width - x + 14}px` : "auto");
      this.tip.style.setProperty("top", `${Math.max(0, Math.min(y - 12, this.height - 30))}px`);
    }
    this.drawOverlay();
  }

  /** Return the points inside a polygon of pixels: a flat list of x and y. */
  inside(polygon) {
    const found = [];
    for (let i = 0; i < polygon.length; i += 2) found.push(...this.toData(polygon[i], polygon[i + 1]));
    return this.index.inside(found);
  }

  /** Return the points in view. */
  inView() {
    const [left, top] = this.toData(0, 0);
    const [right, bottom] = this.toData(this.width, this.height);
    return this.index.inBox(left, bottom, right, top);
  }
}
