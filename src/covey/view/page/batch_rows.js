// The rows of a batch: one for each class, with the examples that a rank draws.

import { getColumns, url } from "./api.js";
import { errorBox } from "./app.js";
import { sparkline } from "./charts.js";
import { exampleCard } from "./cells.js";
import { openExample } from "./dialog.js";
import { className, countOf, display, fill, formatNumber, h } from "./dom.js";
import { hash } from "./router.js";
import { showModal } from "./selection.js";
import { examplesOf } from "./store.js";

const FIRST_CELLS = 320;
const ROWS_PER_REQUEST = 128;

/** The cells of a batch, of all ranks. */
export class BatchRows {
  constructor(context, settings, signal) {
    this.context = context;
    this.settings = settings;
    this.signal = signal;
    this.element = h("div", { class: "batch-ranks", dataset: { batch: "" } });
    this.limit = FIRST_CELLS;
    this.running = new AbortController();
    context.selection.addEventListener("change", () => this.showSelection(), { signal });
    signal.addEventListener("abort", () => this.running.abort());
  }

  /** Show a response of /api/batch. */
  show(batch) {
    this.running.abort();
    this.running = new AbortController();
    this.batch = batch;
    examplesOf(this.settings.split.name).cancel(); // of the batch before
    const isMany = batch.world_size > 1;
    let left = this.limit;
    const ranks = [];
    for (const rank of batch.ranks) {
      if (left <= 0) break;
      ranks.push(this.rank(rank, isMany, left));
      left -= rank.rows;
    }
    const total = batch.ranks.reduce((sum, { rows }) => sum + rows, 0);
    const more = total > this.limit || batch.omitted_ranks > 0;
    fill(
      this.element,
      ranks,
      more && h("p", { class: "controls batch-more" },
        h("span", { class: "muted" }, `${countOf(total, "example")} in the batch`,
          batch.omitted_ranks ? `; ${countOf(batch.omitted_ranks, "rank")} of ${batch.world_size} not listed` : ""),
        total > this.limit && h("button", { type: "button", onclick: () => {
          this.limit *= 4;
          this.show(this.batch);
        } }, "Show more")),
    );
  }

  rank(rank, isMany, limit) {
    const size = this.settings.size;
    const cells = [];
    const rows = [];
    for (const group of rank.classes) {
      if (cells.length >= limit) break;
      const row = group.ids.slice(0, limit - cells.length).map((id) => {
        const cell = h("div", { class: "batch-cell", dataset: { id } });
        cells.push({ id, cell });
        return cell;
      });
      rows.push(h("div", { class: group.id === null ? "batch-row batch-row-plain" : "batch-row" }, this.label(group),
        h("div", { class: "batch-cells" }, row)));
    }
    const head = isMany && h("h3", {}, `Rank ${rank.rank} `, h("span", { class: "muted small" }, rank.batch === null
      ? "has no batch in this step" : `batch ${formatNumber(rank.batch)}, from row ${formatNumber(rank.row)}`));
    const name = isMany ? `Rank ${rank.rank}` : "Batch";
    const element = h(
      "section",
      { class: "batch-rank", "aria-label": name, dataset: { rank: rank.rank }, style: { "--cell": `${size}px` } },
      head,
      h("div", { class: "scroll batch-scroll", tabindex: 0, role: "group", "aria-label": `${name}: rows` }, rows),
    );
    if (this.settings.get("x") === "1" && rank.batch !== null) this.fillBuilt(element, rank, cells);
    else for (const each of cells) this.fillStored(each);
    return element;
  }

  label({ id, name }) {
    if (id === null) return null;
    const href = hash("classes", { split: this.settings.split.name, class: id });
    return h("div", { class: "batch-class" }, h("a", { href, title: className(name, 200) }, className(name, 60)),
      String(name) !== String(id) && h("span", { class: "muted small" }, `class ${id}`));
  }

  fillStored({ id, cell }) {
    const { context, settings } = this;
    const split = settings.split.name;
    const { signal } = this.running;
    const hasClass = this.batch.examples_per_class === null; // else the row has it
    const onopen = () => openExample(context, split, id, { ids: this.ids() });
    const draw = (example) => fill(cell, exampleCard(context, split, example, { size: settings.size, hasClass, onopen }));
    const store = examplesOf(split);
    const found = store.peek(id);
    if (found) return draw(found);
    draw(null);
    store.load(id).then((example) => !signal.aborted && draw(example));
  }

  /** Return the ids of the batch, for previous and next. */
  ids() {
    return this.batch.ranks.flatMap((rank) => rank.classes.flatMap((group) => group.ids));
  }

  showSelection() {
    const split = this.settings.split.name;
    for (const box of this.element.querySelectorAll(".card-box")) {
      box.checked = this.context.selection.has(split, Number(box.closest("[data-id]").dataset.id));
    }
  }

  /** Load x, and show it in the cells; rows that an augmenter adds have cells of their own. */
  async fillBuilt(element, rank, cells) {
    const { signal } = this.running;
    const parameters = { ...this.settings.contents, step: this.batch.step, rank: rank.rank };
    for (const { cell } of cells) fill(cell, h("div", { class: "card card-loading", "aria-busy": "true" }));
    try {
      let first = 0;
      let total = cells.length;
      while (first < Math.min(total, this.limit)) {
        const columns = await getColumns("batch/x", { ...parameters, first, rows: ROWS_PER_REQUEST }, signal);
        const { values } = columns;
        if (values.error) throw new Error(`The loader raises: ${values.error}`);
        if (first === 0) {
          total = values.total;
          this.describe(element, values);
          if (!values.is_aligned) cells = this.unaligned(element, total);
        }
        if (values.rows === 0) break;
        this.drawRows(columns, cells, parameters);
        first += values.rows;
      }
    } catch (error) {
      if (!signal.aborted) fill(element, element.querySelector("h3"), errorBox(error));
    }
  }

  describe(element, { parts }) {
    const texts = parts.map(({ name, dtype, shape, low, high }) => {
      const range = low === null || high === null ? "" : `, ${formatNumber(low)} to ${formatNumber(high)}`;
      return `${display(name, 60)}: ${dtype || "strings"}${shape ? ` ${shape.join(" × ")}` : ""}${range}`;
    });
    element.querySelector(".batch-about")?.remove();
    element.append(h("p", { class: "muted small batch-about" }, texts.join("; ")));
  }

  unaligned(element, total) {
    const length = Math.min(total, this.limit);
    const cells = Array.from({ length }, () => ({ id: null, cell: h("div", { class: "batch-cell" }) }));
    const text = `The functions of the loader return ${countOf(total, "row")}, which are not those of the plan.`;
    fill(element.querySelector(".batch-scroll"), h("p", { class: "muted" }, text),
      h("div", { class: "batch-row batch-row-plain" },
        h("div", { class: "batch-cells" }, cells.map(({ cell }) => cell))));
    return cells;
  }

  drawRows({ values, arrays }, cells, parameters) {
    const errors = new Map(values.errors.map(({ row, message }) => [row, message]));
    const readers = values.parts.map((part, number) =>
      (part.kind === "image" ? images(arrays, number) : plots(arrays, part, number)));
    for (let row = values.first; row < values.first + values.rows; row += 1) {
      const contents = readers.map((next) => next());
      if (row >= cells.length) continue;
      const { id, cell } = cells[row];
      const message = errors.get(row);
      const open = h("button", { type: "button", class: "card-open",
        "aria-label": `Row ${row}${id === null ? "" : `, example ${id}`}: details`,
        onclick: () => this.openBuilt(parameters, row, id, values.parts) });
      const caption = h("div", { class: "card-caption" }, h("span", { class: "card-class" }),
        h("span", { class: "muted" }, id === null ? `row ${row}` : `#${id}`));
      const value = message
        ? h("span", { class: "card-error" }, h("strong", {}, "The loader raises: "), display(message, 300))
        : h("div", { class: "batch-parts" }, contents);
      fill(cell, h("div", { class: message ? "card card-broken" : "card" },
        h("div", { class: "card-value" }, value), open, caption));
    }
  }

  /** Open the images of a row in full size. */
  openBuilt(parameters, row, id, parts) {
    const split = this.settings.split.name;
    const pictures = parts.map((part, view) => part.kind === "image" && h("figure", { class: "batch-picture" },
      h("img", { class: "value-image", alt: `${display(part.name, 60)} of row ${row}`,
        src: url("batch/image", { ...parameters, row, view }) }),
      h("figcaption", { class: "muted" }, display(part.name, 60))));
    const dialog = h("dialog", { class: "dialog", "aria-label": `Row ${row}` },
      h("header", { class: "dialog-head" },
        h("h2", { tabindex: -1 }, `Row ${row} of step ${formatNumber(this.batch.step)}`),
        h("div", { class: "controls" },
          id !== null && h("button", { type: "button", onclick: () => {
            dialog.close();
            openExample(this.context, split, id, { ids: this.ids() });
          } }, `Stored example ${id}`),
          h("button", { type: "button", onclick: () => dialog.close() }, "Close"))),
      h("div", { class: "dialog-body batch-pictures" },
        pictures.some(Boolean) ? pictures : h("p", { class: "muted" }, "This row has no images.")));
    showModal(dialog);
  }
}

/** Return a function that returns the next image of a column as a canvas. */
function images(arrays, number) {
  const pixels = arrays[`${number}.pixels`];
  const sizes = arrays[`${number}.sizes`];
  let offset = 0;
  let row = 0;
  return () => {
    const [height, width, channels] = sizes.subarray(3 * row, 3 * row + 3);
    row += 1;
    if (!height || !width) return null;
    const from = pixels.subarray(offset, offset + height * width * channels);
    offset += from.length;
    const data = new ImageData(width, height);
    for (let i = 0; i < height * width; i += 1) {
      const at = i * channels;
      data.data[4 * i] = from[at];
      data.data[4 * i + 1] = from[channels > 1 ? at + 1 : at];
      data.data[4 * i + 2] = from[channels > 1 ? at + 2 : at];
      data.data[4 * i + 3] = channels === 4 ? from[at + 3] : 255;
    }
    const canvas = h("canvas", { class: "value-image pixelated", width, height, "aria-hidden": "true" });
    canvas.getContext("2d").putImageData(data, 0, 0);
    return canvas;
  };
}

/** Return a function that returns the next value of a column: a small plot, or a text. */
function plots(arrays, part, number) {
  const points = arrays[`${number}.plots`];
  const ends = arrays[`${number}.ends`];
  let row = 0;
  return () => {
    const values = points.subarray(row ? ends[row - 1] : 0, ends[row]);
    const text = display(part.texts[row], 120);
    row += 1;
    if (values.length > 6) return sparkline({ values, height: 40, label: `${display(part.name, 60)}: ${text}` });
    return h("div", { class: "value-text", dir: "auto" }, text);
  };
}
