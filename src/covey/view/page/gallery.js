// Examples in a grid of cards, or in a table with a row for each.

import {
  classOf, errorElement, exampleCard, openButton, selectionBox, valueElement, whenLoaded,
} from "./cells.js";
import { knownIds } from "./data.js";
import { openExample } from "./dialog.js";
import { className, display, h } from "./dom.js";
import { VirtualGrid } from "./grid.js";

const CAPTION = 46;
const AHEAD = 200;
const NOTE = 26;
const ROW = 60;
const MAX_COLUMNS = 16;

export const DEFAULT_SIZE = 128;
const SIZES = [48, 480];

/**
 * A grid or a table of the examples of a list of ids (data.js).
 *
 * Options: `size` (of a card), `isTable`, `label`, `onshow(id)` (the
 * example whose details are open, or null), `note(id)` (an element under a card), `signal`.
 */
export class Gallery {
  constructor(context, split, options) {
    Object.assign(this, { context, split, options: { size: DEFAULT_SIZE, ...options }, list: knownIds([]) });
    this.anchor = null; // index of the example that was selected last
    this.element = h("div", { class: "gallery" });
    const { signal } = options;
    this.grid = new VirtualGrid(this.element, {
      ...this.layout(), label: options.label, signal, onRange: (last) => this.list.want(last + AHEAD),
      render: (index) => whenLoaded(split, this.list.at(index), (example) => this.cell(example),
        () => this.grid.setActive(this.grid.active)),
    });
    context.selection.follow(this.element, split, signal);
    this.element.addEventListener("click", (event) => this.onClick(event), { signal });
    this.element.addEventListener("keydown", (event) => this.onKey(event), { signal });
  }

  /** Show the examples of another list, or more of the same. */
  setList(list) {
    if (list !== this.list) {
      this.list = list;
      this.anchor = null;
      this.grid.clear(true);
    }
    this.grid.setCount(list.length);
    list.want(AHEAD);
  }

  /** Change options. */
  update(changes) {
    Object.assign(this.options, changes);
    this.grid.update(this.layout());
  }

  layout() {
    const { size, isTable, note } = this.options;
    const { features } = this.context.overview;
    if (isTable) {
      const columns = features.slice(0, MAX_COLUMNS);
      const head = h("div", { class: "table-row table-head", style: { "--columns": columns.length } },
        h("span", {}, "Id"), columns.map(({ name }) => h("span", { title: display(name, 500) }, className(name, 30))));
      return { cellWidth: null, minWidth: 90 + 130 * columns.length, rowHeight: ROW, gap: 0, head };
    }
    const more = CAPTION + (note ? NOTE : 0);
    const common = { minWidth: 0, gap: 8, head: null };
    const { cellRatio } = this.context;
    return { ...common, cellWidth: cellRatio * size, rowHeight: (width) => Math.round(width / cellRatio) + more };
  }

  cell(example) {
    const { split, context } = this;
    const { size, isTable, note } = this.options;
    const onopen = (id) => this.open(id);
    if (!isTable) {
      const side = Math.max(size, this.grid.cellWidth);
      return exampleCard(context, split, example, { size: side, onopen, note: note?.(example.id) });
    }
    const { label, features } = context.overview;
    const value = (name) => (name === label ? classOf(example, 60) : valueElement(split, example, name, { size: 56 }));
    const columns = features.slice(0, MAX_COLUMNS).map(({ name }) =>
      h("div", {}, name in (example.values ?? {}) && value(name)));
    return h("div", { class: "table-row", style: { "--columns": columns.length } },
      h("div", { class: "card-id" }, selectionBox(context, split, example.id),
        openButton(example, onopen, `#${example.id}`)), example.error ? errorElement(example) : columns);
  }

  /** Open the details of an example. */
  open(id) {
    const { onshow } = this.options;
    openExample(this.context, this.split, id, { ids: this.list.indexOf(id) >= 0 ? this.list : null, onshow });
  }

  /** Shift and click selects all examples from the last one that was selected. */
  onClick(event) {
    if (!event.target.matches(".card-box")) return;
    const index = this.grid.indexOf(event.target);
    if (event.shiftKey && this.anchor !== null) {
      const [low, high] = [Math.min(index, this.anchor), Math.max(index, this.anchor)];
      this.context.selection.add(this.split, Array.from({ length: high - low + 1 }, (_, i) => this.list.at(low + i)));
    }
    this.anchor = index;
  }

  onKey(event) {
    if (event.key !== "x" || event.ctrlKey || event.metaKey || event.altKey) return;
    const id = this.list.at(this.grid.active);
    if (id !== undefined) this.context.selection.toggle(this.split, id);
  }
}

/** Return whether examples are best shown as a table: they have texts and numbers only. */
export function isTabular({ features }) {
  return features.every(({ kind }) => ["string", "class", "number", "bytes"].includes(kind));
}

/** Return the slider for the size of cards. */
export function zoomControl(size, onchange) {
  const input = h("input", { type: "range", min: SIZES[0], max: SIZES[1], step: 8, value: size, name: "size",
    oninput: () => onchange(Number(input.value)) });
  return h("label", { class: "zoom" }, "Size", input);
}

/** Return the size of cards that parameters of a URL have. */
export function sizeOf(parameters, initial = DEFAULT_SIZE) {
  const size = Number(parameters.size);
  return size >= SIZES[0] && size <= SIZES[1] ? size : initial;
}
