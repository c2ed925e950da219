// A grid of examples: cards that are loaded as they come into view, zoom, selection and details.

import { exampleCard, kindOf, mainFeature } from "./cells.js";
import { openExample } from "./dialog.js";
import { h } from "./dom.js";
import { VirtualGrid } from "./grid.js";
import { examplesOf } from "./store.js";

const CAPTION = 26;
const AHEAD = 200;

export const MIN_SIZE = 48;
export const MAX_SIZE = 480;
export const DEFAULT_SIZE = 128;
export const MAX_SELECTED = 100_000;

/**
 * A grid of the examples of a list of ids (ids.js).
 *
 * Options: `size` (of a card), `feature` (what cards show), `label`, `onshow(id)` (the example whose
 * details are open, or null), `hasClass` (whether cards name the class), `signal`.
 */
export class Gallery {
  constructor(context, split, options) {
    this.context = context;
    this.split = split;
    this.options = { size: DEFAULT_SIZE, feature: null, ...options };
    this.store = examplesOf(split);
    this.list = { length: 0, total: 0, isDone: true, at() {}, indexOf: () => -1, want() {} };
    this.failures = new Map(); // requests that failed: their examples are loaded again when they come into view
    this.anchor = null; // index of the example that was selected last
    this.isSquare = context.overview.features.some(({ kind }) => kind === "image" || kind === "array");
    this.element = h("div", { class: "gallery", dataset: { gallery: "" } });
    this.grid = new VirtualGrid(this.element, {
      ...this.sizes(),
      gap: 8,
      label: options.label ?? "Examples",
      render: (index) => this.card(index),
      onRange: (first, last) => this.load(first, last),
      signal: options.signal,
    });
    const { signal } = options;
    context.selection.addEventListener("change", () => this.showSelection(), { signal });
    this.element.addEventListener("click", (event) => this.onClick(event), { signal });
    this.element.addEventListener("keydown", (event) => this.onKey(event), { signal });
  }

  /** Show the examples of another list, or more of the same. */
  setList(list) {
    const isNew = list !== this.list;
    this.list = list;
    this.grid.setCount(list.total ?? list.length);
    if (isNew) {
      this.anchor = null;
      this.grid.clear();
      this.grid.moveTo(0);
      list.want(0, AHEAD);
    } else {
      // Cells that had no id yet.
      const waiting = [...this.grid.cells].filter(([, cell]) => cell.querySelector(".card-loading"));
      this.grid.refresh(waiting.map(([index]) => index));
      this.load(...this.grid.range);
    }
  }

  /** Change `size` or `feature`. */
  update(changes) {
    Object.assign(this.options, changes);
    this.isKnown = false;
    this.grid.update(this.sizes());
  }

  sizes() {
    const { size } = this.options;
    if (this.isSquare) return { cellWidth: size, rowHeight: (width) => Math.round(width) + CAPTION };
    return { cellWidth: Math.max(140, 1.5 * size), rowHeight: Math.max(70, size) + CAPTION };
  }

  card(index) {
    const id = this.list.at(index);
    const example = id === undefined ? null : this.store.peek(id) ?? this.failures.get(id);
    const { size, feature, hasClass } = this.options;
    const onopen = () => this.open(id);
    const side = Math.max(size, this.grid.cellWidth);
    return exampleCard(this.context, this.split, example, { size: side, feature, onopen, hasClass });
  }

  /** Open the details of an example. */
  open(id) {
    const { onshow } = this.options;
    openExample(this.context, this.split, id, { ids: this.list.indexOf(id) >= 0 ? this.list : null, onshow });
  }

  load(first, last) {
    if (first < 0) return; // nothing is drawn yet
    this.store.cancel();
    this.list.want(first, last + AHEAD);
    for (let index = first; index < last; index += 1) {
      const id = this.list.at(index);
      if (id === undefined) continue;
      const known = this.store.peek(id);
      if (known) {
        if (!this.isKnown) queueMicrotask(() => this.learn(known)); // not while the grid is drawn
        continue;
      }
      this.store.load(id).then((example) => {
        this.learn(example);
        if (example.error) this.failures.set(id, example);
        if (this.list.at(index) === id) this.grid.refresh([index]);
      });
    }
  }

  /** Cards of images are squares; others are wide. */
  learn(example) {
    if (this.isKnown || example.error) return;
    this.isKnown = true;
    const name = this.options.feature ?? mainFeature(example);
    const isSquare = kindOf(example.values[name]) === "image";
    if (isSquare === this.isSquare) return;
    this.isSquare = isSquare;
    this.grid.update(this.sizes());
  }

  showSelection() {
    for (const [index, cell] of this.grid.cells) {
      const box = cell.querySelector(".card-box");
      if (box) box.checked = this.context.selection.has(this.split, this.list.at(index));
    }
  }

  /** Shift and click selects all examples from the last one that was selected. */
  onClick(event) {
    if (!event.target.matches(".card-box")) return;
    const index = [...this.grid.cells].find(([, cell]) => cell.contains(event.target))?.[0];
    if (event.shiftKey && this.anchor !== null && index !== undefined) {
      const [low, high] = [Math.min(index, this.anchor), Math.max(index, this.anchor)];
      const ids = Array.from({ length: high - low + 1 }, (_, i) => this.list.at(low + i));
      this.context.selection.add(this.split, ids.filter((id) => id !== undefined));
    }
    this.anchor = index ?? null;
  }

  onKey(event) {
    if (event.key !== "x" || event.ctrlKey || event.metaKey || event.altKey) return;
    const id = this.list.at(this.grid.active);
    if (id !== undefined) this.context.selection.toggle(this.split, id);
  }
}

/** Return the slider for the size of cards. */
export function zoomControl(size, onchange) {
  const input = h("input", { type: "range", min: MIN_SIZE, max: MAX_SIZE, step: 8, value: size, name: "size",
    oninput: () => onchange(Number(input.value)) });
  return h("label", { class: "zoom" }, "Zoom", input);
}

/** Return the size of cards that parameters of a URL have. */
export function sizeOf(parameters) {
  const size = Number(parameters.size);
  return size >= MIN_SIZE && size <= MAX_SIZE ? size : DEFAULT_SIZE;
}

/** Open the details of the example that parameters of a URL have. */
export function openFromUrl(gallery, { example = "" }, split) {
  if (/^\d+$/.test(example) && Number(example) < split.records) gallery.open(Number(example));
}
