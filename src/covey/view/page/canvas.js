// Drawing on a canvas: when, in which colours, with which numbers on an axis.

const drawn = new Map(); // elements in the page, and the functions that draw them
const all = new WeakMap();

const observer = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.isConnected && target.clientWidth) {
      drawn.set(target, all.get(target));
      all.get(target)();
    } else drawn.delete(target);
  }
});

/** Draw all charts of the page again. */
function redraw() {
  for (const [element, draw] of drawn) {
    if (element.isConnected) draw();
    else drawn.delete(element);
  }
}

/** Call `draw` when an element comes into the page, when its size changes, and when the theme changes. */
export function watch(element, draw) {
  all.set(element, draw);
  observer.observe(element);
}

window.addEventListener("covey-theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

/** Return the colours of the current theme. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ground", "raised", "line", "strong-line", "text", "muted", "accent", "second", "error"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Return the 2D context of a canvas that has the pixels of its element, with a unit of one CSS pixel. */
export function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

/** Return a number for an axis: 12K, 0.25. */
export function formatTick(value) {
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(1);
  return Math.abs(value) < 1000 ? String(Number(value.toPrecision(3))) : COMPACT.format(value);
}

/** Return about `count` round numbers from `low` to `high`. */
export function ticks(low, high, count = 4) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => span / each <= count + 0.5) ?? span;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k += 1) found.push(k * step);
  return found;
}

/** Return the powers of ten up to `high`; at most about five. */
export function powers(high) {
  const found = [];
  for (let each = 1; each <= high; each *= 10) found.push(each);
  return found.length > 5 ? found.filter((_, i) => i % Math.ceil(found.length / 5) === 0) : found;
}
