// Charts of bars, and small plots of a value, as SVG.
//
// A path of SVG, stretched to its element, needs no code for sizes and themes. A library (uPlot) would
// save only the path: keys, texts, themes and small plots are needed with it, too.

import { formatNumber, h, placeTip } from "./dom.js";

const MAX_BARS = 600; // more values than this share a bar, which has the height of the highest
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

function formatTick(value) {
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(1);
  return Math.abs(value) < 1000 ? String(Number(value.toPrecision(3))) : COMPACT.format(value);
}

/** Return about `count` round numbers from `low` to `high`. */
function ticks(low, high, count = 4) {
  const power = 10 ** Math.floor(Math.log10((high - low) / count));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => (high - low) / each <= count + 0.5);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k += 1) found.push(k * step);
  return found;
}

/** Return the path of a line; a value that is not a number is a gap. */
function linePath(points) {
  let isDrawn = false;
  return points.map(([x, y]) => {
    const command = Number.isFinite(y) ? `${isDrawn ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}` : "";
    isDrawn = command !== "";
    return command;
  }).join("");
}

function drawing(path) {
  return h("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("path", { "vector-effect": "non-scaling-stroke", ...path }));
}

/** Return a small plot without axes of `plot`: `low` values, and `high` ones if each point is a range. */
export function smallPlot({ low, high = low }, label, height = 44) {
  const isNumber = (value) => value !== null && Number.isFinite(value);
  let [least, most] = [Math.min(...low.filter(isNumber)), Math.max(...high.filter(isNumber))];
  if (most === least) [least, most] = [least - 1, most + 1];
  const point = (value, i) => [((i + 0.5) * 1000) / low.length,
    isNumber(value) ? 97 - (94 * (value - least)) / (most - least) : NaN];
  const lines = high === low ? [low.map(point)] : low.map((each, i) => [point(each, i), point(high[i], i)]);
  const plot = drawing({ class: high === low ? "line" : "line range", d: lines.map(linePath).join("") });
  return h("div", { class: "small-plot", role: "img", "aria-label": label, style: { height: `${height}px` } }, plot);
}

/**
 * Return a chart of bars.
 *
 * Options: `values`, `describe(index)` (one line about a bar), `isLog`, `marks` (shares of the width, texts, and
 * their widths), `title`, `summary` (the text alternative), `height`, `onclick(index)`.
 */
export function barChart({ values, describe, isLog = false, marks, title, summary, height = 110, onclick }) {
  const count = values.length;
  const high = values.reduce((most, each) => Math.max(most, each), 1);
  const top = (value) => (isLog ? 100 * (1 - Math.log(2 * value) / Math.log(2 * high)) : 100 * (1 - value / high));
  const bars = new Array(Math.min(count, MAX_BARS)).fill(100);
  values.forEach((value, i) => {
    const bar = Math.floor((i * bars.length) / count);
    if (value > 0) bars[bar] = Math.min(bars[bar], top(value), 99);
  });
  const width = 1000 / bars.length;
  const gap = bars.length > 100 ? 0 : 0.08;
  const path = bars.map((y, i) => (y < 100
    ? `M${(i * width).toFixed(2)} 100V${y.toFixed(2)}H${((i + 1 - gap) * width).toFixed(2)}V100z` : "")).join("");
  const label = (name, text, style) => h("span", { class: name, style, "aria-hidden": "true" }, text);
  const levels = isLog ? [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7].filter((each) => each <= high) : ticks(0, high);
  const cursor = label("chart-cursor", "", {});
  const tip = label("chart-tip", "", {});
  const plot = h("div", { class: "chart-plot", style: { height: `${height}px` } },
    levels.map((value) => label("chart-level", formatTick(value), { top: `${top(value)}%` })),
    drawing({ class: "bars", d: path }), cursor, tip, marks.map(([left, text, share = 1]) =>
      label("chart-mark", text, { left: `${100 * left}%`, "max-width": `${100 * share}%` })));

  function move(index) {
    for (const each of [cursor, tip]) each.hidden = index < 0;
    if (index < 0) return;
    range.value = index;
    range.setAttribute("aria-valuetext", describe(index));
    tip.textContent = describe(index);
    const at = (100 * (index + 0.5)) / count;
    cursor.style.setProperty("left", `${at}%`);
    placeTip(tip, at);
  }

  const nearest = (event) => {
    const { left, width: wide } = plot.getBoundingClientRect();
    return Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - left) / wide) * count)));
  };
  const range = h("input", {
    type: "range", class: "chart-range", min: 0, max: count - 1, value: 0, "aria-valuetext": describe(0),
    "aria-label": onclick ? `${title}; Enter opens` : title,
    oninput: () => move(Number(range.value)), onfocus: () => move(Number(range.value)), onblur: () => move(-1),
    onkeydown: (event) => event.key === "Enter" && onclick?.(Number(range.value)),
  });
  plot.addEventListener("pointermove", (event) => move(nearest(event)));
  plot.addEventListener("pointerleave", () => move(-1));
  plot.addEventListener("click", (event) => onclick?.(nearest(event)));
  move(-1);
  return h("figure", { class: onclick ? "chart chart-clickable" : "chart" }, plot, range,
    h("figcaption", { class: "visually-hidden" }, `${title}. ${summary}`));
}

/** Return a chart of a histogram: `edges` (one more than `counts`) and `counts`. */
export function histogram({ edges, counts }, unit, title) {
  // Bins of integers are bounded by halves: 0.5, 1.5 is the bin of 1.
  const isInteger = edges.every((each) => Math.abs((each % 1) * 2) === 1);
  const name = (index) => {
    const [low, high] = isInteger ? [edges[index] + 0.5, edges[index + 1] - 0.5] : [edges[index], edges[index + 1]];
    return low === high ? formatNumber(low) : `${formatNumber(low)} to ${formatNumber(high)}`;
  };
  const [low, high] = [edges[0], edges.at(-1)];
  const peak = counts.indexOf(Math.max(...counts));
  return barChart({
    values: counts, title, describe: (i) => `${name(i)}: ${formatNumber(counts[i])}`,
    marks: ticks(low, high, 3).map((value) => [(value - low) / (high - low || 1), formatTick(value)]),
    summary: `${unit} from ${formatNumber(low)} to ${formatNumber(high)}; most: ${name(peak)}.`,
  });
}
