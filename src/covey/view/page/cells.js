// Values of examples as elements: images, strings, audio, numbers, and small plots of arrays.
//
// The summary of a value is what /api/examples returns: a string, a number, {id, name} of a class, or
// an object whose `kind` is string (a long one), image, audio, bytes, array, ragged or sparse.

import { url } from "./api.js";
import { sparkline } from "./charts.js";
import { className as shownName, countOf, display, formatBytes, formatNumber, h } from "./dom.js";
import { hash } from "./router.js";
import { plotValues } from "./store.js";

const ORDER = ["image", "audio", "string", "ragged", "array", "sparse", "number", "class", "bytes"];
const SIDES = [64, 128, 256, 512, 1024];
const PLOT_HEIGHT = 48;

/** Return the kind of a summary; arrays that the server displays as an image have a `picture`. */
export function kindOf(summary) {
  if (typeof summary === "string") return "string";
  if (summary === null || typeof summary !== "object") return "number";
  if (!summary.kind) return "class";
  return summary.picture ? "image" : summary.kind;
}

/** Return the feature that stands for an example: an image if it has one. */
export function mainFeature(example) {
  const names = Object.keys(example.values ?? {});
  const rank = (name) => ORDER.indexOf(kindOf(example.values[name]));
  return names.sort((a, b) => rank(a) - rank(b))[0] ?? null;
}

/** Return the string of a summary; a long string is `{text, length}`. */
function stringOf(summary) {
  return typeof summary === "string" ? summary : summary.text;
}

/** Return a string as paragraphs of text: its line breaks stay, other control characters are visible. */
export function textElement(text, limit) {
  const lines = display(text.replaceAll("\n", "\u2424"), limit).split("\u2424");
  return h("div", { class: "value-text", dir: "auto" }, lines.join("\n"));
}

/** Return one line about the summary of a value. */
export function describe(summary) {
  const kind = kindOf(summary);
  if (kind === "string") return display(stringOf(summary), 200);
  if (kind === "number") return formatNumber(summary);
  if (kind === "class") return shownName(summary.name, 200);
  if (kind === "bytes") return `${countOf(summary.bytes, "byte")} ${display(summary.start ?? "", 60)}`;
  if (summary.kind === "image") {
    if (!summary.format) return `image of unknown format, ${formatBytes(summary.bytes)}`;
    const { format, height, width, channels, bytes } = summary;
    return `${format} ${height} × ${width}, ${countOf(channels, "channel")}, ${formatBytes(bytes)}`;
  }
  const parts = [];
  if (kind === "audio" && summary.seconds !== null) {
    parts.push(`${formatNumber(summary.seconds)} s at ${formatNumber(summary.sample_rate)} Hz`);
  }
  const { dtype } = summary;
  const shape = summary.shape?.join(" × ") || "scalar";
  if (kind === "ragged") parts.push(`${dtype}, ${countOf(summary.rows, "row")}, ${countOf(summary.values, "value")}`);
  else if (kind === "sparse") parts.push(`${dtype} ${shape}, ${formatNumber(summary.values)} stored`);
  else parts.push(`${dtype} ${shape}`);
  if (summary.min !== null && summary.min !== undefined) {
    parts.push(`${formatNumber(summary.min)} to ${formatNumber(summary.max)}, mean ${formatNumber(summary.mean)}`);
  }
  if (summary.nan) parts.push(`${formatNumber(summary.nan)} NaN`);
  return parts.join("; ");
}

/**
 * Return the element of a value.
 *
 * Options: `size` (pixels of the side that is shown), `isLarge` (in the dialog: players, whole texts).
 */
export function valueElement(context, split, example, name, { size = 128, isLarge = false } = {}) {
  const summary = example.values[name];
  const kind = kindOf(summary);
  const about = `${display(name, 60)}: ${describe(summary)}`;
  if (kind === "image") return imageElement(split, example.id, name, summary, size);
  if (kind === "string") return textElement(stringOf(summary), isLarge ? 20_000 : 400);
  if (kind === "audio") return audioElement(split, example.id, name, about, isLarge);
  if (kind === "class") {
    const isLabel = name === context.overview.label;
    const href = isLabel ? hash("classes", { split, class: summary.id }) : null;
    return h(isLabel ? "a" : "span", { href }, shownName(summary.name));
  }
  if (["array", "ragged", "sparse"].includes(kind)) return arrayElement(split, example.id, name, summary, isLarge);
  return h("span", { class: kind === "number" ? "value-number" : "mono" }, describe(summary));
}

function imageElement(split, id, feature, summary, size) {
  if (summary.kind === "image" && !summary.format) return h("span", { class: "muted" }, describe(summary));
  const wanted = size * Math.min(2, window.devicePixelRatio || 1);
  const side = SIDES.find((each) => each >= wanted) ?? SIDES[SIDES.length - 1];
  const [height, width] = summary.kind === "image" ? [summary.height, summary.width] : summary.picture;
  const image = h("img", {
    class: Math.max(height, width) <= 128 ? "value-image pixelated" : "value-image",
    alt: `${display(feature, 60)}, ${height} × ${width}`,
    decoding: "async",
    draggable: "false",
    src: url("image", { split, id, feature, side }),
  });
  image.addEventListener("error", () => {
    if (image.hasAttribute("src")) image.replaceWith(h("span", { class: "muted" }, "The image cannot be decoded."));
  });
  return image;
}

let playing = null;

/** Play a sound of a card; only one plays at a time. */
function playButton(address, label) {
  const names = { "aria-label": `Play ${label}`, "aria-pressed": "false" };
  const button = h("button", { type: "button", class: "play", ...names }, "▶");
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    const isPlaying = button.getAttribute("aria-pressed") === "true";
    playing?.pause();
    if (isPlaying) return;
    playing = new Audio(address);
    button.setAttribute("aria-pressed", "true");
    const stop = () => button.setAttribute("aria-pressed", "false");
    for (const each of ["pause", "ended", "error"]) playing.addEventListener(each, stop);
    playing.play().catch(stop);
  });
  return button;
}

function audioElement(split, id, feature, about, isLarge) {
  const address = url("audio", { split, id, feature });
  const height = isLarge ? 96 : PLOT_HEIGHT;
  const player = isLarge
    ? h("audio", { controls: true, preload: "none", src: address, "aria-label": about })
    : playButton(address, display(feature, 60));
  const wave = plot(split, id, feature, about, height);
  return h("div", { class: isLarge ? "value-audio value-large" : "value-audio" }, player, wave);
}

/** Return a plot whose values are loaded. */
function plot(split, id, feature, label, height) {
  const element = sparkline({ values: [], height, label });
  plotValues(split, id, feature).then(
    ({ arrays }) => {
      if (arrays.low) element.update({ low: arrays.low, high: arrays.high, lengths: arrays.lengths });
      else element.update({ values: arrays.values, low: arrays.values, high: arrays.values, lengths: arrays.lengths });
    },
    (error) => element.replaceWith(h("span", { class: "muted" }, display(error.message, 200))),
  );
  return element;
}

function arrayElement(split, id, feature, summary, isLarge) {
  const about = describe(summary);
  const isNumber = summary.min !== undefined;
  const size = summary.values ?? summary.shape.reduce((product, each) => product * each, 1);
  if (size === 0) return h("span", { class: "muted" }, "empty");
  // JSON has no NaN; a value of a sparse tensor is a pair of an index and a value.
  const entry = (each) => (Array.isArray(each) ? `[${each[0]}] ${each[1] ?? "NaN"}` : each ?? "NaN");
  const first = (summary.first ?? []).map(entry);
  const list = first.map((each) => (typeof each === "number" ? formatNumber(each) : display(each, 60))).join(", ");
  const text = h("div", { class: "value-list" }, size > first.length ? `${list}, …` : list);
  if (!isNumber || size < 2 || summary.kind === "sparse") {
    return h("div", { class: "value-array" }, text, isLarge && h("div", { class: "muted" }, about));
  }
  const range = `${formatNumber(summary.min)} to ${formatNumber(summary.max)}`;
  return h(
    "div",
    { class: "value-array" },
    plot(split, id, feature, `${display(feature, 60)}: ${about}`, isLarge ? 96 : PLOT_HEIGHT),
    h("div", { class: "muted value-about" }, isLarge ? about : range),
    isLarge && text,
  );
}

/** Return the name of the class of an example, or null. */
export function className(example) {
  return example.class ? shownName(example.class.name, 80) : null;
}

/** Return the error of an example without the path of its shard. */
function reason({ error, shard }) {
  return shard && error.startsWith(`${shard}: `) ? error.slice(shard.length + 2) : error;
}

/**
 * Return the card of an example in a grid.
 *
 * Options: `size` (pixels of its side), `onopen(example)`, `feature` (what it shows; the main feature by
 * default), `isSelectable` (a checkbox; by default yes), `hasClass` (whether it names the class;
 * by default yes).
 */
export function exampleCard(context, split, example, options = {}) {
  const { size = 128, onopen, feature, isSelectable = true, hasClass = true } = options;
  if (!example || example.isLoading) return h("div", { class: "card card-loading", "aria-busy": "true" });
  const name = feature && feature in (example.values ?? {}) ? feature : mainFeature(example);
  const title = [`Example ${formatNumber(example.id)}`, className(example)].filter(Boolean).join(", ");
  let content = h("span", { class: "muted" }, "no features");
  if (example.error) {
    content = h("span", { class: "card-error" }, h("strong", {}, "Cannot be read: "), display(reason(example), 300));
  } else if (name !== null) content = valueElement(context, split, example, name, { size });
  const open = h(
    "button",
    { type: "button", class: "card-open", dataset: { focus: "", id: example.id }, "aria-label": `${title}: details`,
      onclick: () => onopen?.(example) },
  );
  const box = isSelectable && h("input", {
    type: "checkbox", class: "card-box", title: "Select (key x)", "aria-label": `Select example ${example.id}`,
    checked: context.selection.has(split, example.id),
    onchange: (event) => context.selection.toggle(split, example.id, event.target.checked),
  });
  const label = (hasClass && className(example)) || "";
  const caption = h("div", { class: "card-caption" }, box,
    h("span", { class: "card-class", title: label || null }, label), h("span", { class: "muted" }, `#${example.id}`));
  // The button is an overlay: players and plots are not inside it.
  const value = h("div", { class: "card-value" }, content);
  return h("div", { class: example.error ? "card card-broken" : "card" }, value, open, caption);
}
