// The details of an example: all its features, and where it is stored.

import { className, describe, kindOf, valueElement } from "./cells.js";
import { display, fill, formatBytes, formatNumber, h } from "./dom.js";
import { hash } from "./router.js";
import { showModal } from "./selection.js";
import { examplesOf } from "./store.js";

const IMAGE_SIDE = 512;

/**
 * Open the details of an example.
 *
 * Options: `ids` (what previous and next go through; by default all ids of the split), `onshow(id)`
 * (called for each example that is shown, and with null when the dialog is closed).
 */
export function openExample(context, split, id, { ids = null, onshow = null } = {}) {
  const heading = h("h2", { tabindex: -1 });
  const body = h("div", { class: "dialog-body" });
  const step = (text, key, change) =>
    h("button", { type: "button", "aria-keyshortcuts": key, onclick: () => move(change) }, text);
  const previous = step("Previous", "ArrowLeft", -1);
  const next = step("Next", "ArrowRight", 1);
  const box = h("input", { type: "checkbox", onchange: () => context.selection.toggle(split, id, box.checked) });
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-label": "Example", dataset: { dialog: "example" } },
    h("div", { class: "dialog-head" }, heading, h("div", { class: "controls" }, h("label", {}, box, "Selected"),
      previous, next, h("button", { type: "button", onclick: () => dialog.close() }, "Close"))),
    body,
  );
  const { records } = context.overview.splits.find((each) => each.name === split) ?? { records: 0 };
  const list = ids ?? { length: records, at: (index) => index, indexOf: (each) => each };
  let position = Math.max(0, list.indexOf(id));

  function move(step) {
    const target = position + step;
    if (target < 0 || target >= list.length) return;
    position = target;
    id = list.at(target);
    show();
  }

  async function show() {
    const shown = id;
    heading.textContent = `Example ${formatNumber(id)}`;
    previous.disabled = position <= 0;
    next.disabled = position >= list.length - 1;
    box.checked = context.selection.has(split, id);
    onshow?.(id);
    body.setAttribute("aria-busy", "true");
    const example = await examplesOf(split).load(id, true);
    if (shown !== id) return; // another example has been asked for
    body.removeAttribute("aria-busy");
    fill(body, details(context, split, example));
    context.announce(`Example ${id}, ${className(example) ?? ""}`);
  }

  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("audio, pre, input:not([type=checkbox])")) return;
    if (event.key === "ArrowLeft") move(-1);
    else if (event.key === "ArrowRight") move(1);
  });
  dialog.addEventListener("close", () => onshow?.(null));
  showModal(dialog);
  heading.focus();
  show();
  return dialog;
}

/** Return the elements about an example. */
function details(context, split, example) {
  const facts = [
    ["Record id", formatNumber(example.id)],
    example.class && ["Class", h("a", { href: hash("classes", { split, class: example.class.id }) }, className(example),
      example.class.name === String(example.class.id) ? "" : ` (${example.class.id})`)],
    example.shard !== undefined && ["Shard", h("span", { class: "mono" }, display(example.shard, 500))],
    example.record !== undefined && ["Record in the shard", formatNumber(example.record)],
    example.offset !== undefined && ["Offset", `${formatNumber(example.offset)} bytes`],
    example.bytes !== undefined && example.bytes !== null && ["Size", formatBytes(example.bytes)],
  ].filter(Boolean);
  const names = Object.keys(example.values ?? {});
  return [
    example.error
      && h("p", { class: "error", role: "alert" }, `This example cannot be read: ${display(example.error, 2000)}`),
    h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    names.map((name) => featureSection(context, split, example, name)),
  ];
}

function featureSection(context, split, example, name) {
  const summary = example.values[name];
  const known = context.overview.features.find((each) => each.name === name);
  const kind = kindOf(summary);
  let note = kind === "image" || kind === "audio" ? describe(summary) : null;
  if (summary?.truncated) note = `The first of ${formatNumber(summary.length)} characters.`;
  return h(
    "section",
    { class: "feature", dataset: { feature: name } },
    h("h3", {}, display(name, 200), " ", known && h("span", { class: "muted feature-type" }, display(known.type, 200))),
    valueElement(context, split, example, name, { size: IMAGE_SIDE, isLarge: true }),
    note && h("p", { class: "muted" }, note),
  );
}
