// The details of an example: all its features, and where it is stored.

import { hash } from "./app.js";
import { classOf, describe, kindOf, valueElement } from "./cells.js";
import { knownIds, loadExample } from "./data.js";
import { button, display, fill, formatBytes, formatNumber, h } from "./dom.js";
import { checkbox } from "./fields.js";
import { openDialog } from "./selection.js";

const IMAGE_SIDE = 512;

/**
 * Open the details of an example; previous and next go through `ids`, by default all of the split.
 *
 * `onshow(id)` is called for each example that is shown, and with null when the dialog is closed.
 */
export function openExample(context, split, id, { ids = null, onshow = null } = {}) {
  const { selection, overview } = context;
  const list = ids ?? knownIds(overview.splits.find((each) => each.name === split)?.records ?? 0);
  let position = Math.max(0, list.indexOf(id));
  const body = h("div", { class: "dialog-body" });
  const step = (text, key, change) => button(text, () => move(change), { "aria-keyshortcuts": key });
  const [previous, next] = [step("Previous", "ArrowLeft", -1), step("Next", "ArrowRight", 1)];
  const selected = checkbox("Selected", "selected", false, (isSelected) => selection.toggle(split, id, isSelected));
  const { dialog, heading } = openDialog("example", "Example", [selected, previous, next], body);

  function move(change) {
    const target = list.at(position + change);
    if (target === undefined || position + change < 0 || position + change >= list.length) return;
    position += change;
    id = target;
    show();
  }

  async function show() {
    const shown = id;
    heading.textContent = `Example ${formatNumber(id)}`;
    previous.disabled = position <= 0;
    next.disabled = position >= list.length - 1;
    selected.querySelector("input").checked = selection.has(split, id);
    onshow?.(id);
    body.setAttribute("aria-busy", "true");
    const example = await loadExample(split, id);
    if (shown !== id) return; // another example has been asked for
    body.removeAttribute("aria-busy");
    fill(body, details(context, split, example));
    context.announce(`Example ${id}, ${classOf(example) ?? ""}`);
  }

  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("audio, pre")) return;
    if (event.key === "ArrowLeft") move(-1);
    else if (event.key === "ArrowRight") move(1);
  });
  dialog.addEventListener("close", () => onshow?.(null));
  show();
}

/** Return a list of names and values; pairs without a value are omitted. */
export function factList(pairs) {
  return h("dl", { class: "facts" }, pairs.filter((each) => each && (each[1] ?? null) !== null).map(([name, value]) =>
    [h("dt", {}, name), h("dd", {}, value)]));
}

function details(context, split, example) {
  const { id, class: found, shard, record, offset, bytes, values = {} } = example;
  return [
    example.error
      && h("p", { class: "error", role: "alert" }, `This example cannot be read: ${display(example.error, 2000)}`),
    factList([
      ["Record id", formatNumber(id)],
      found && ["Class", [h("a", { href: hash("examples", { split, class: found.id }) }, classOf(example, 200)),
        found.name === String(found.id) ? "" : ` (${found.id})`]],
      shard !== undefined && ["Shard", h("span", { class: "mono" }, display(shard, 500))],
      record !== undefined && ["Record in the shard", formatNumber(record)],
      offset !== undefined && ["Offset", `${formatNumber(offset)} bytes`],
      (bytes ?? null) !== null && ["Size", formatBytes(bytes)],
    ]),
    Object.keys(values).map((name) => featureSection(context, split, example, name)),
  ];
}

function featureSection(context, split, example, name) {
  const summary = example.values[name];
  const type = context.overview.features.find((each) => each.name === name)?.type ?? "";
  const isMedia = ["image", "audio"].includes(kindOf(summary));
  return h("section", { class: "feature", dataset: { feature: name } },
    h("h3", {}, display(name, 200), " ", h("span", { class: "muted feature-type" }, display(type, 200))),
    valueElement(split, example, name, { size: IMAGE_SIDE, isLarge: true }),
    isMedia && h("p", { class: "muted" }, describe(summary)),
    summary?.truncated && h("p", { class: "muted" }, `The first of ${formatNumber(summary.length)} characters.`));
}
