// Values of examples as elements: images, strings, audio, numbers, and small plots of arrays.
//
// The summary of a value is what /api/examples returns: a string, a number, {id, name} of a class, or
// an object whose `kind` is string (a long one), image, audio, bytes, array, ragged or sparse.

import { url } from "./api.js";
import { smallPlot } from "./chart.js";
import { loadExample, peekExample } from "./data.js";
import { button, className, countOf, display, formatBytes, formatNumber, h } from "./dom.js";

const ORDER = ["image", "audio", "string", "ragged", "array", "sparse", "number", "class", "bytes"];
const SIDES = [64, 128, 256, 512, 1024];
const CHARACTER = 7; // pixels, in a caption

/** Return the kind of a summary; arrays that the server displays as an image have a `picture`. */
export function kindOf(summary) {
  if (typeof summary === "string") return "string";
  if (summary === null || typeof summary !== "object") return "number";
  if (!summary.kind) return "class";
  return summary.picture ? "image" : summary.kind;
}

/** Return the feature that stands for an example: an image if it has one. */
function mainFeature(example) {
  const rank = (name) => ORDER.indexOf(kindOf(example.values[name]));
  return Object.keys(example.values ?? {}).sort((a, b) => rank(a) - rank(b))[0] ?? null;
}

/** Return a string as a text: its line breaks stay, other control characters are visible. */
export function textElement(text, limit) {
  const lines = display(text.replaceAll("\n", "\u2424"), limit).split("\u2424");
  return h("div", { class: "value-text", dir: "auto" }, lines.join("\n"));
}

/** Return one line about the summary of a value. */
export function describe(summary) {
  const kind = kindOf(summary);
  if (kind === "string") return display(summary.text ?? summary, 200);
  if (kind === "number") return summary === null ? "NaN" : formatNumber(summary);
  if (kind === "class") return className(summary.name);
  if (kind === "bytes") return `${countOf(summary.bytes, "byte")} ${display(summary.start ?? "", 60)}`;
  if (summary.kind === "image") {
    if (!summary.format) return `image of unknown format, ${formatBytes(summary.bytes)}`;
    const { format, height, width, channels, bytes } = summary;
    return `${format} ${height} × ${width}, ${countOf(channels, "channel")}, ${formatBytes(bytes)}`;
  }
  const { dtype, shape, rows, values, min, max, mean, nan, seconds = null, sample_rate: rate } = summary;
  const counted = rows === undefined ? shape.join(" × ") || "scalar" : countOf(rows, "row");
  return [
    seconds !== null && `${formatNumber(seconds)} s at ${formatNumber(rate)} Hz`,
    `${dtype}, ${counted}${values === undefined ? "" : `, ${countOf(values, "value")}`}`,
    (min ?? null) !== null && `${formatNumber(min)} to ${formatNumber(max)}, mean ${formatNumber(mean)}`,
    nan && `${formatNumber(nan)} NaN`,
  ].filter(Boolean).join("; ");
}

/** Return the element of a value with a side of `size` pixels; in the details, players and whole texts (`isLarge`). */
export function valueElement(split, example, name, { size = 128, isLarge = false } = {}) {
  const summary = example.values[name];
  const kind = kindOf(summary);
  if (kind === "image") return imageElement(split, example.id, name, summary, size);
  if (kind === "string") return textElement(summary.text ?? summary, isLarge ? 20_000 : 600);
  if (kind === "audio") return audioElement(split, example.id, name, summary, isLarge);
  if (["array", "ragged", "sparse"].includes(kind)) return arrayElement(name, summary, isLarge);
  return h("span", { class: kind === "number" ? "value-number" : "value-text" }, describe(summary));
}

function imageElement(split, id, feature, summary, size) {
  if (summary.kind === "image" && !summary.format) return h("span", { class: "muted" }, describe(summary));
  const wanted = size * Math.min(2, window.devicePixelRatio || 1);
  const side = SIDES.find((each) => each >= wanted) ?? SIDES.at(-1);
  const [height, width] = summary.kind === "image" ? [summary.height, summary.width] : summary.picture;
  const image = h("img", {
    class: Math.max(height, width) <= 128 ? "value-image pixelated" : "value-image", decoding: "async",
    draggable: "false", alt: `${display(feature, 60)}, ${height} × ${width}`,
    src: url("image", { split, id, feature, side }),
  });
  image.addEventListener("error", () => {
    if (image.hasAttribute("src")) image.replaceWith(h("span", { class: "muted" }, "The image cannot be decoded."));
  });
  return image;
}

let playing = null;

function audioElement(split, id, feature, summary, isLarge) {
  const src = url("audio", { split, id, feature });
  const about = `${display(feature, 60)}: ${describe(summary)}`;
  const wave = summary.plot && smallPlot(summary.plot, about, isLarge ? 96 : 44);
  if (isLarge) {
    return h("div", {}, h("audio", { controls: true, preload: "none", src, "aria-label": about }), wave);
  }
  const play = button("▶", (event) => { // only one sound plays at a time
    event.stopPropagation();
    const isPlaying = play.getAttribute("aria-pressed") === "true";
    playing?.pause();
    if (isPlaying) return;
    playing = new Audio(src);
    play.setAttribute("aria-pressed", "true");
    const stop = () => play.setAttribute("aria-pressed", "false");
    for (const each of ["pause", "ended", "error"]) playing.addEventListener(each, stop);
    playing.play().catch(stop);
  }, { class: "play", "aria-label": `Play ${display(feature, 60)} of example ${id}`, "aria-pressed": "false" });
  return h("div", { class: "value-audio" }, play, wave);
}

function arrayElement(feature, summary, isLarge) {
  const about = describe(summary);
  const size = summary.values ?? summary.shape.reduce((product, each) => product * each, 1);
  if (size === 0) return h("span", { class: "muted" }, "empty");
  // JSON has no NaN; a value of a sparse tensor is a pair of an index and a value.
  const entry = (each) => (Array.isArray(each) ? `[${each[0]}] ${each[1] ?? "NaN"}` : each ?? "NaN");
  const list = summary.first.map(entry).map((each) => display(formatNumber(each), 60)).join(", ");
  const text = h("div", { class: "value-list" }, size > summary.first.length ? `${list}, …` : list);
  return h("div", { class: "value-array" },
    summary.plot && smallPlot(summary.plot, `${display(feature, 60)}: ${about}`, isLarge ? 96 : 44),
    isLarge && h("div", { class: "muted small" }, about), isLarge || !summary.plot ? text : null);
}

/** Return the name of the class of an example, or null. */
export function classOf(example, limit = 80) {
  return example.class ? className(example.class.name, limit, example.class.id) : null;
}

/** Return the error of an example, without the path of its shard. */
export function errorElement({ error, shard }) {
  const text = shard && error.startsWith(`${shard}: `) ? error.slice(shard.length + 2) : error;
  return h("span", { class: "card-error" }, h("strong", {}, "Cannot be read: "), display(text, 300));
}

/** Return the check box that selects an example. */
export function selectionBox({ selection }, split, id) {
  return h("input", {
    type: "checkbox", class: "card-box", title: "Select (key x)", "aria-label": `Select example ${id}`,
    dataset: { id }, checked: selection.has(split, id),
    onchange: (event) => selection.toggle(split, id, event.target.checked),
  });
}

/** Return the button that opens the details of an example. */
export function openButton(example, onopen, text = "") {
  const title = [`Example ${formatNumber(example.id)}`, classOf(example)].filter(Boolean).join(", ");
  return button(text, () => onopen(example.id), {
    class: "card-open", "data-focus": "", "data-id": example.id, "aria-label": `${title}: details`,
  });
}

/**
 * Return the card of an example.
 *
 * Options: `size` (pixels of its side), `onopen(id)`, `hasClass` (whether it names the class; by default yes),
 * `value` (what it shows; by default the main feature), `note` (an element under the caption).
 */
export function exampleCard(context, split, example, { size = 128, onopen, hasClass = true, value, note }) {
  const name = mainFeature(example);
  const content = value ?? (example.error ? errorElement(example)
    : name === null ? h("span", { class: "muted" }, "no features") : valueElement(split, example, name, { size }));
  const label = hasClass && classOf(example, Math.max(8, Math.floor((size - 12) / CHARACTER)));
  // The button is an overlay: players and plots are not inside it.
  return h("div", { class: example.error ? "card card-broken" : "card" },
    h("div", { class: "card-value" }, content), openButton(example, onopen),
    h("div", { class: "card-caption" },
      label && h("span", { class: "card-class", title: classOf(example, 500) }, label),
      h("span", { class: "card-id" }, selectionBox(context, split, example.id), `#${example.id}`)), note);
}

/** Return an element that is replaced by `draw(example)` when the example is loaded. */
export function whenLoaded(split, id, draw, onloaded) {
  const found = id === undefined ? null : peekExample(split, id);
  if (found) return draw(found);
  const place = h("div", { class: "card card-loading", tabindex: -1, "data-focus": "", "aria-busy": "true" });
  if (id === undefined) return place;
  loadExample(split, id).then((example) => {
    const hadFocus = document.activeElement === place;
    const element = draw(example);
    place.replaceWith(element);
    onloaded?.();
    if (hadFocus) (element.querySelector("[data-focus]") ?? element).focus({ preventScroll: true });
  });
  return place;
}
