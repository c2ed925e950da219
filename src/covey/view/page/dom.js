// Elements and texts. Every string of a dataset becomes a text node or an attribute, never markup.

const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "hidden"]);
const SVG = new Set(["svg", "path"]);

/**
 * Return a new element.
 *
 * Properties: `class`, `dataset` (an object), `style` (an object of CSS properties), `on*` (event
 * listeners); everything else is an attribute. null, undefined and false are omitted.
 */
export function h(tag, properties = {}, ...children) {
  const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return fill(element, children);
}

/** Replace the content of an element by strings, numbers, nodes and nested lists of them. */
export function fill(element, ...children) {
  const shown = children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
  element.replaceChildren(...shown.map((each) => (each instanceof Node ? each : String(each))));
  return element;
}

/** Return an element for an error, which replaces the content that failed. */
export function errorBox(error) {
  return h("p", { class: "error", role: "alert" }, display(error.message ?? error, 2000));
}

/** Return a button. */
export function button(text, onclick, properties = {}) {
  return h("button", { type: "button", onclick, ...properties }, text);
}

/** Place a tip beside a position: a percentage of the width. */
export function placeTip(tip, left) {
  tip.style.setProperty("left", left > 50 ? "auto" : `calc(${left}% + 10px)`);
  tip.style.setProperty("right", left > 50 ? `calc(${100 - left}% + 10px)` : "auto");
}

const INTEGERS = new Intl.NumberFormat("en-US");

/** Return a number as text: 12,345 or 0.1235. */
export function formatNumber(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? INTEGERS.format(value) : String(Number(value.toPrecision(4)));
}

/** Return "1 example" or "12 examples". */
export function countOf(count, singular, plural = `${singular}s`) {
  return `${formatNumber(count)} ${count === 1 ? singular : plural}`;
}

/** Return a size as text: 12 B, 3.4 kB, 5.6 MB. */
export function formatBytes(bytes) {
  const unit = Math.max(0, Math.min(5, Math.floor(Math.log10(Math.max(1, bytes)) / 3)));
  return `${unit === 0 ? bytes : (bytes / 1000 ** unit).toFixed(1)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
}

const CONTROL = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

function visible(characters) {
  return characters.join("").replace(CONTROL, (each) => `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/** Return a string of the dataset for display: control characters are visible, the length is bounded. */
export function display(text, limit = 200) {
  const all = [...String(text).slice(0, 4 * limit)];
  return all.length > limit ? `${visible(all.slice(0, limit - 1))}…` : visible(all);
}

/**
 * Return a class name for display. A long one is cut in its middle, because names often differ at their ends, and
 * has its id, so that no two cut names are equal.
 */
export function className(name, limit = 200, id = null) {
  if (!String(name).trim()) return "(empty)";
  const all = [...String(name)];
  if (all.length <= limit) return visible(all);
  const end = id === null ? "" : ` (${id})`;
  const half = Math.max(2, Math.floor((limit - 1 - end.length) / 2));
  return `${visible(all.slice(0, half))}…${visible(all.slice(-half))}${end}`;
}

/** Return a function that calls `action` once, `wait` ms after the last call. */
export function debounce(action, wait) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), wait);
  };
}
