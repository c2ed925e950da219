// Elements of the page. Every string of a dataset becomes a text node or an attribute, never markup.

const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate"]);

/**
 * Return a new element.
 *
 * Properties: `class`, `dataset` (an object), `style` (an object of CSS properties), `on*` (event
 * listeners); everything else is an attribute. null, undefined and false are omitted.
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Append strings, numbers, nodes and nested lists of them. */
export function append(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Replace the content of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

const INTEGERS = new Intl.NumberFormat("en-US");

/** Return a number as text: 12,345 or 0.1235. */
export function formatNumber(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return INTEGERS.format(value);
  return String(Number(value.toPrecision(4)));
}

/** Return "1 example" or "12 examples". */
export function countOf(count, singular, plural = `${singular}s`) {
  return `${formatNumber(count)} ${count === 1 ? singular : plural}`;
}

/** Return a size as text: 12 B, 3.4 kB, 5.6 MB. */
export function formatBytes(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? bytes : bytes.toFixed(1)} ${units[unit]}`;
}

const CONTROL = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** Return a string of the dataset for display: control characters are visible, the length is bounded. */
export function display(text, limit = 200) {
  const long = [...String(text).slice(0, 4 * limit)];
  const short = long.length > limit ? `${long.slice(0, limit - 1).join("")}…` : long.join("");
  return short.replace(CONTROL, (each) => `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/** Return a class name for display; an empty one would be a link or a button without a name. */
export function className(name, limit = 200) {
  return String(name).trim() === "" ? "(empty)" : display(name, limit);
}

/** Return a function that calls `action` once, `wait` ms after the last call. */
export function debounce(action, wait) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), wait);
  };
}
