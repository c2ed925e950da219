// The rows of a batch: one for each class, with stored examples, or with x as the loader returns it.

import { stream } from "./api.js";
import { hash } from "./app.js";
import { exampleCard, textElement, whenLoaded } from "./cells.js";
import { smallPlot } from "./chart.js";
import { knownIds } from "./data.js";
import { openExample } from "./dialog.js";
import { className, countOf, display, errorBox, fill, formatNumber, h } from "./dom.js";

const MIN_PLOTTED = 7;

/** Return `{rows, cells}` of a rank of /api/batch: elements, and pairs of an id and an empty element. */
export function batchRows(split, rank, limit) {
  const cells = [];
  const rows = [];
  for (const { id, name, ids } of rank.classes) {
    const row = ids.slice(0, Math.max(0, limit - cells.length)).map((each) =>
      ({ id: each, cell: h("div", { class: "batch-cell", dataset: { id: each } }) }));
    if (!row.length) break;
    cells.push(...row);
    const label = id !== null && h("div", { class: "batch-class" },
      h("a", { href: hash("examples", { split, class: id }), title: className(name, 500) }, className(name, 60)),
      String(name) !== String(id) && h("span", { class: "muted small" }, `class ${id}`));
    rows.push(h("div", { class: "batch-row" }, label, h("div", { class: "batch-cells" }, row.map(({ cell }) => cell))));
  }
  return { rows, cells };
}

/** Show the stored examples in cells. */
export function fillStored(context, split, cells, { size, hasClass }) {
  const ids = knownIds(cells.map(({ id }) => id));
  const onopen = (id) => openExample(context, split, id, { ids });
  for (const { id, cell } of cells) {
    fill(cell, whenLoaded(split, id, (example) => exampleCard(context, split, example, { size, hasClass, onopen })));
  }
}

/** Return a value of x. */
function builtValue(name, { image, text, plot }) {
  if (image) return h("img", { class: "value-image pixelated", src: image, alt: display(name, 60) });
  if (plot?.low.length >= MIN_PLOTTED) return smallPlot(plot, `${display(name, 60)}: ${display(text, 120)}`);
  return textElement(text, 120);
}

/** Show x of a rank in cells, as /api/batch/x streams it; `element` gets what there is to say about it. */
export async function fillBuilt(context, split, element, cells, parameters, signal) {
  const found = new Map(); // name -> {dtype, shapes, low, high}
  for (const { cell } of cells) fill(cell, h("div", { class: "card card-loading", "aria-busy": "true" }));
  try {
    for await (const part of stream("batch/x", parameters, signal)) {
      if (part.row === undefined) {
        if (!part.is_aligned) cells = unaligned(element, part.total, parameters.rows);
        continue;
      }
      for (const [name, { dtype, shape, low = null, high = null }] of Object.entries(part.values ?? {})) {
        const each = found.get(name) ?? { dtype, shapes: new Set(), low: Infinity, high: -Infinity };
        each.shapes.add(shape?.join(" × ") ?? "");
        if (low !== null) Object.assign(each, { low: Math.min(each.low, low), high: Math.max(each.high, high) });
        found.set(name, each);
      }
      const { id, cell } = cells[part.row] ?? {};
      const value = part.error ? h("span", { class: "card-error" }, "The loader raises: ", display(part.error, 300))
        : h("div", { class: "batch-parts" }, Object.entries(part.values).map((each) => builtValue(...each)));
      const onopen = () => openExample(context, split, id);
      if (cell && id === null) fill(cell, h("div", { class: "card" }, h("div", { class: "card-value" }, value)));
      else if (cell) fill(cell, exampleCard(context, split, { id, error: part.error }, { value, onopen }));
    }
    const texts = [...found].map(([name, { dtype, shapes, low, high }]) => [
      `${display(name, 60)}: ${dtype}`, [...shapes].join("") && shapes.size === 1 ? ` ${[...shapes][0]}` : "",
      low <= high ? `, ${formatNumber(low)} to ${formatNumber(high)}` : ""].join(""));
    element.append(h("p", { class: "muted small batch-about" }, texts.join("; ")));
  } catch (error) {
    if (!signal.aborted) fill(element, errorBox(`The loader raises: ${error.message}`));
  }
}

function unaligned(element, total, limit) {
  const length = Math.min(total, limit);
  const cells = Array.from({ length }, () => ({ id: null, cell: h("div", { class: "batch-cell" }) }));
  const text = `The functions of the loader return ${countOf(total, "row")}, which are not those of the plan.`;
  fill(element, h("p", { class: "muted" }, text),
    h("div", { class: "batch-row" }, h("div", { class: "batch-cells" }, cells.map(({ cell }) => cell))));
  return cells;
}
