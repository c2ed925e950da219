// Small plots of numbers, without axes.

import { colours, prepare, watch } from "./canvas.js";
import { h } from "./dom.js";

/**
 * Return a small plot of numbers, without axes.
 *
 * Options: `values`, or `low` and `high` (an envelope); `lengths` (of the rows of ragged values, which
 * are separated by lines); `height`, `label` (the text alternative).
 */
export function sparkline(options) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const label = options.label ?? "plot of the values";
  const element = h("div", { class: "sparkline", role: "img", "aria-label": label }, canvas);
  const height = options.height ?? 40;
  element.style.setProperty("height", `${height}px`);
  const draw = () => drawSparkline(canvas, element.clientWidth, height, options);
  element.update = (changes) => {
    Object.assign(options, changes);
    if (element.clientWidth) draw();
  };
  watch(element, draw);
  return element;
}

function drawSparkline(canvas, width, height, { values, low = values, high = values, lengths = null }) {
  const pen = prepare(canvas, width, height);
  const colour = colours();
  const count = low?.length ?? 0;
  if (!count) return;
  let least = Infinity;
  let most = -Infinity;
  for (let i = 0; i < count; i += 1) {
    if (low[i] < least) least = low[i];
    if (high[i] > most) most = high[i];
  }
  if (!(most >= least)) return; // all NaN
  if (most === least) [least, most] = [least - 1, most + 1];
  const y = (value) => 2 + (height - 4) * (1 - (value - least) / (most - least));
  pen.fillStyle = colour.line;
  if (least < 0 && most > 0) pen.fillRect(0, Math.round(y(0)), width, 1);
  if (lengths && lengths.length > 1) {
    let end = 0;
    const total = lengths.reduce((sum, each) => sum + each, 0);
    pen.fillStyle = colour["strong-line"];
    for (const length of lengths.subarray ? lengths.subarray(0, -1) : lengths.slice(0, -1)) {
      end += length;
      pen.fillRect(Math.round((end / total) * width), 0, 1, height);
    }
  }
  pen.fillStyle = colour.accent;
  pen.strokeStyle = colour.accent;
  if (low !== high) {
    // One bar for each column of pixels: the range of the values in it.
    const columns = Math.max(1, Math.min(count, Math.floor(width)));
    for (let column = 0; column < columns; column += 1) {
      let [bottom, top] = [Infinity, -Infinity];
      const end = Math.max(Math.floor(((column + 1) * count) / columns), Math.floor((column * count) / columns) + 1);
      for (let i = Math.floor((column * count) / columns); i < end; i += 1) {
        if (low[i] < bottom) bottom = low[i];
        if (high[i] > top) top = high[i];
      }
      if (top < bottom) continue; // NaN
      const left = Math.round((column / columns) * width);
      const wide = Math.max(1, Math.round(((column + 1) / columns) * width) - left);
      pen.fillRect(left, y(top), wide, Math.max(1, y(bottom) - y(top)));
    }
  } else if (count <= 24) {
    const wide = width / count;
    const base = y(Math.max(least, Math.min(most, 0)));
    for (let i = 0; i < count; i += 1) {
      const top = Math.min(y(values[i]), base);
      const tall = Math.max(1.5, Math.abs(y(values[i]) - base));
      if (Number.isNaN(values[i])) continue;
      pen.fillRect(i * wide + 1, Math.min(top, height - tall), Math.max(1, wide - 2), tall);
    }
  } else {
    pen.lineWidth = 1.2;
    pen.beginPath();
    let isPen = false;
    for (let i = 0; i < count; i += 1) {
      if (Number.isNaN(values[i])) isPen = false; // a gap
      else if (isPen) pen.lineTo(((i + 0.5) / count) * width, y(values[i]));
      else pen.moveTo(((i + 0.5) / count) * width, y(values[i]));
      if (!Number.isNaN(values[i])) isPen = true;
    }
    pen.stroke();
  }
}
