// Charts on a canvas: bars, histograms and lines. Colours are tokens of style.css.
//
// Each function returns an element with `update(options)`. A range input under the chart is its keyboard
// access: it moves the cursor, and tells screen readers what is there.

import { colours, formatTick, powers, prepare, ticks, watch } from "./canvas.js";
import { formatNumber, h } from "./dom.js";

export { sparkline } from "./sparkline.js";
export { colours, formatTick, prepare, ticks } from "./canvas.js";

const MARGIN = { left: 46, right: 10, top: 8, bottom: 22 };

/** The parts that bars and lines share: canvas, cursor, tooltip, keyboard access and summary. */
class Chart {
  constructor(options) {
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.tip = h("div", { class: "chart-tip", hidden: true, "aria-hidden": "true" });
    this.plot = h("div", { class: "chart-plot" }, this.canvas, this.tip);
    this.range = h("input", { type: "range", class: "chart-range", min: 0, step: 1, value: 0 });
    this.caption = h("figcaption", { class: "visually-hidden" });
    this.element = h("figure", { class: "chart" }, this.plot, this.range, this.caption);
    this.cursor = -1;
    this.element.update = (changes) => this.update(changes);
    this.plot.addEventListener("pointermove", (event) => this.moveTo(this.at(event.offsetX), event.offsetX));
    this.plot.addEventListener("pointerleave", () => this.moveTo(-1));
    this.plot.addEventListener("click", (event) => this.choose(this.at(event.offsetX)));
    this.range.addEventListener("input", () => this.moveTo(Number(this.range.value)));
    this.range.addEventListener("focus", () => this.moveTo(Number(this.range.value)));
    this.range.addEventListener("blur", () => this.moveTo(-1));
    this.range.addEventListener("keydown", (event) => event.key === "Enter" && this.choose(Number(this.range.value)));
    this.options = {};
    this.update(options);
    watch(this.plot, () => this.draw());
  }

  /** Change options, and draw again. */
  update(changes) {
    this.options = { ...this.options, ...changes };
    const { height = 180, title = "Chart", summary = "", onclick } = this.options;
    this.plot.style.setProperty("height", `${height}px`);
    this.plot.classList.toggle("chart-clickable", Boolean(onclick));
    this.range.max = Math.max(0, this.count - 1);
    this.range.disabled = this.count === 0;
    this.range.setAttribute("aria-label", onclick ? `${title}; Enter opens` : title);
    this.caption.textContent = `${title}. ${summary}`;
    this.cursor = -1;
    this.describe(Number(this.range.value));
    if (this.plot.isConnected && this.plot.clientWidth) this.draw();
  }

  get width() {
    return Math.max(1, this.plot.clientWidth - MARGIN.left - MARGIN.right);
  }

  get height() {
    return Math.max(1, (this.options.height ?? 180) - MARGIN.top - MARGIN.bottom);
  }

  describe(index) {
    this.range.setAttribute("aria-valuetext", this.count ? this.text(Math.min(index, this.count - 1)) : "empty");
  }

  moveTo(index) {
    if (index === this.cursor) return;
    this.cursor = index;
    this.tip.hidden = index < 0;
    if (index >= 0) {
      this.range.value = index;
      this.describe(index);
      this.tip.textContent = this.text(index);
      const left = MARGIN.left + this.x(index);
      const limit = this.plot.clientWidth - this.tip.offsetWidth - 2;
      this.tip.style.setProperty("left", `${Math.max(0, Math.min(limit, left + 10))}px`);
    }
    if (this.plot.clientWidth) this.draw();
  }

  choose(index) {
    if (index >= 0 && this.options.onclick) this.options.onclick(index);
  }

  /** Draw the horizontal lines and their numbers; `y` maps a value to a position. */
  drawAxis(pen, colour, values, y) {
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const value of values) {
      const top = Math.round(MARGIN.top + y(value)) + 0.5;
      pen.fillStyle = colour.line;
      pen.fillRect(MARGIN.left, top - 0.5, this.width, 1);
      pen.fillStyle = colour.muted;
      pen.fillText(formatTick(value), MARGIN.left - 6, top);
    }
  }

  /** Draw texts under the axis: pairs of a position and a text. Those that would overlap are omitted. */
  drawLabels(pen, colour, labels) {
    pen.fillStyle = colour.muted;
    pen.textBaseline = "top";
    pen.textAlign = "left";
    let end = -Infinity;
    for (const [position, text] of labels) {
      const wide = pen.measureText(text).width;
      const left = Math.max(2, Math.min(MARGIN.left + position - wide / 2, this.plot.clientWidth - wide - 2));
      if (left < end + 8) continue;
      pen.fillText(text, left, MARGIN.top + this.height + 6);
      end = left + wide;
    }
  }
}

class Bars extends Chart {
  get count() {
    return this.options.values.length;
  }

  text(index) {
    const { label = String, values, unit = "" } = this.options;
    return `${label(index)}: ${formatNumber(values[index])}${unit && ` ${unit}`}`;
  }

  at(offset) {
    const index = Math.floor(((offset - MARGIN.left) / this.width) * this.count);
    return index >= 0 && index < this.count ? index : -1;
  }

  x(index) {
    return ((index + 0.5) / this.count) * this.width;
  }

  draw() {
    const { values, log = false, gap = 1 } = this.options;
    const pen = prepare(this.canvas, this.plot.clientWidth, this.options.height ?? 180);
    const colour = colours();
    const { width, height, count } = this;
    let high = 0;
    for (let i = 0; i < count; i += 1) if (values[i] > high) high = values[i];
    const share = log ? (value) => (value > 0 ? Math.log(2 * value) / Math.log(2 * high) : 0) : (value) => value / high;
    const marks = log ? powers(high) : ticks(0, high, 3);
    this.drawAxis(pen, colour, high ? marks : [0], (value) => height * (1 - (high ? share(value) : 0)));
    if (!high) return;
    // More bars than pixels: each column of pixels is the highest of its bars.
    const columns = Math.min(count, Math.max(1, Math.floor(width)));
    const space = width / columns >= 4 ? gap : 0;
    const marked = this.cursor < 0 ? -1 : Math.min(columns - 1, Math.floor(((this.cursor + 0.5) / count) * columns));
    for (let column = 0; column < columns; column += 1) {
      const last = Math.max(Math.floor(((column + 1) * count) / columns), Math.floor((column * count) / columns) + 1);
      let value = 0;
      for (let i = Math.floor((column * count) / columns); i < last; i += 1) if (values[i] > value) value = values[i];
      if (!value) continue;
      const tall = Math.max(1, height * share(value));
      pen.fillStyle = column === marked ? colour.second : colour.accent;
      // Whole pixels: bars that touch would else show stripes.
      const left = Math.round((column * width) / columns);
      const wide = Math.max(1, Math.round(((column + 1) * width) / columns) - left - space);
      pen.fillRect(MARGIN.left + left, MARGIN.top + height - tall, wide, tall);
    }
    this.drawLabels(pen, colour, this.options.xLabels?.(this) ?? []);
  }
}

/**
 * Return a bar chart.
 *
 * Options: `values`, `label(index)`, `log`, `height`, `title`, `summary` (the text alternative), `unit`,
 * `onclick(index)`, `xLabels(chart)` (pairs of a position and a text).
 */
export function barChart(options) {
  const ranks = (chart) => [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const index = Math.round(share * (chart.count - 1));
    return [chart.x(index), formatNumber(index + 1)];
  });
  return new Bars({ xLabels: ranks, ...options }).element;
}

/**
 * Return a histogram.
 *
 * Options: `edges` (one more than `counts`), `counts`, `log`, `height`, `title`, `summary`, `unit`,
 * `onclick(index)`.
 */
export function histogram({ edges, counts, ...options }) {
  // Bins of integers are bounded by halves: 0.5, 1.5 is the bin of 1.
  const isInteger = edges.length > 1 && edges.every((each) => Math.abs((each % 1) * 2) === 1);
  const label = (index) => {
    const [low, high] = isInteger ? [edges[index] + 0.5, edges[index + 1] - 0.5] : [edges[index], edges[index + 1]];
    return low === high ? formatNumber(low) : `${formatNumber(low)} to ${formatNumber(high)}`;
  };
  const marks = (chart) => {
    const wanted = ticks(edges[0], edges[edges.length - 1], 4);
    const span = edges[edges.length - 1] - edges[0] || 1;
    return wanted.map((value) => [((value - edges[0]) / span) * chart.width, formatTick(value)]);
  };
  return new Bars({ values: counts, label, xLabels: marks, unit: "values", ...options }).element;
}

class Lines extends Chart {
  get count() {
    return this.options.x.length;
  }

  text(index) {
    const { x, series, xLabel = "", format = formatNumber } = this.options;
    const values = series.map(({ name, values: each }) => `${name} ${format(each[index])}`);
    return `${xLabel} ${formatNumber(x[index])}: ${values.join(", ")}`.trim();
  }

  get bounds() {
    const { x } = this.options;
    const low = x[0] ?? 0;
    return [low, (x[x.length - 1] ?? 1) - low || 1];
  }

  at(offset) {
    const { x } = this.options;
    const [low, span] = this.bounds;
    const wanted = low + ((offset - MARGIN.left) / this.width) * span;
    let best = -1;
    for (let i = 0; i < x.length; i += 1) {
      if (best < 0 || Math.abs(x[i] - wanted) < Math.abs(x[best] - wanted)) best = i;
    }
    return best;
  }

  x(index) {
    return this.place(this.options.x[index]);
  }

  place(value) {
    const [low, span] = this.bounds;
    return ((value - low) / span) * this.width;
  }

  draw() {
    const { x, series, marker = null, yMin = null, yMax = null } = this.options;
    const pen = prepare(this.canvas, this.plot.clientWidth, this.options.height ?? 180);
    const colour = colours();
    const { height } = this;
    let low = yMin ?? Infinity;
    let high = yMax ?? -Infinity;
    for (const { values } of series) {
      for (const value of values) {
        if (yMin === null && value < low) low = value;
        if (yMax === null && value > high) high = value;
      }
    }
    if (!(high > low)) [low, high] = [Number.isFinite(low) ? low : 0, (Number.isFinite(low) ? low : 0) + 1];
    const y = (value) => height * (1 - (value - low) / (high - low));
    this.drawAxis(pen, colour, ticks(low, high, 4), y);
    const [begin, span] = this.bounds;
    const marks = ticks(begin, begin + span, 4);
    this.drawLabels(pen, colour, marks.map((value) => [this.place(value), formatTick(value)]));
    // Lines differ in their dashes, too: colour alone tells nothing to some.
    series.forEach(({ values, dash = [] }, number) => {
      pen.strokeStyle = number % 2 ? colour.second : colour.accent;
      pen.lineWidth = 2;
      pen.setLineDash(dash.length || number === 0 ? dash : [6, 3 + number]);
      pen.beginPath();
      for (let i = 0; i < x.length; i += 1) pen.lineTo(MARGIN.left + this.place(x[i]), MARGIN.top + y(values[i]));
      pen.stroke();
    });
    pen.setLineDash([]);
    pen.fillStyle = colour.text;
    if (marker !== null && marker >= begin && marker <= begin + span) {
      pen.fillRect(MARGIN.left + this.place(marker), MARGIN.top, 1, height);
    }
    if (this.cursor < 0) return;
    pen.fillStyle = colour["strong-line"];
    pen.fillRect(MARGIN.left + this.x(this.cursor), MARGIN.top, 1, height);
    for (const { values } of series) {
      pen.beginPath();
      pen.arc(MARGIN.left + this.x(this.cursor), MARGIN.top + y(values[this.cursor]), 3.5, 0, 2 * Math.PI);
      pen.fillStyle = colour.text;
      pen.fill();
    }
  }
}

/**
 * Return a line chart.
 *
 * Options: `x` (ascending), `series` (a list of `{name, values, dash}`), `xLabel`, `yMin`, `yMax`,
 * `format(value)`, `marker` (an x that is marked), `height`, `title`, `summary`, `onclick(index)`.
 */
export function lineChart(options) {
  return new Lines(options).element;
}
