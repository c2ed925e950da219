// A grid or a list of any length: only the cells in view are elements.
//
// Browsers limit the height of an element. A grid that is higher has an element of MAX_HEIGHT whose
// ends correspond to the ends of the grid pixel by pixel, and whose middle is scaled. Small movements
// (wheel, keys) are exact everywhere; when they end, the scroll bar is moved to the scaled position.

import { fill, h } from "./dom.js";

const MAX_HEIGHT = 8_000_000;
const END_HEIGHT = 1_000_000;
const OVERSCAN = 300; // pixels above and below the view
const SETTLE_MS = 150;
const FOCUSABLE = "a[href], button, input, select, textarea, audio[controls], [tabindex]";

/**
 * A grid with virtual scrolling.
 *
 * Options:
 * - `count`: number of cells.
 * - `columns`, or `cellWidth`: the least width of a cell; as many columns as fit. Default: one column.
 * - `rowHeight`: a number, or a function of the width of a cell.
 * - `gap`: pixels between cells.
 * - `render(index)`: returns the element of a cell.
 * - `onRange(first, last)`: called with the cells in view, `last` excluded, when they change.
 * - `label`: the accessible name.
 * - `signal`: closes the grid when it is aborted.
 *
 * The scroller must have a height. Arrow keys, Page Up, Page Down, Home and End move the focus.
 */
export class VirtualGrid {
  constructor(scroller, options) {
    this.scroller = scroller;
    this.options = { count: 0, columns: null, cellWidth: null, rowHeight: 40, gap: 0, ...options };
    this.cells = new Map(); // index -> element
    this.top = 0; // position in the grid, in pixels
    this.lastScroll = 0;
    this.active = 0;
    this.range = [-1, -1];
    this.awaited = -1; // the cell that gets the focus
    this.content = h("div", { class: "grid-content", role: "list", "aria-label": this.options.label ?? "Items" });
    scroller.classList.add("grid-scroller");
    fill(scroller, this.content);
    this.closing = new AbortController();
    const { signal } = this.closing;
    scroller.addEventListener("scroll", () => this.onScroll(), { signal, passive: true });
    scroller.addEventListener("scrollend", () => this.settle(), { signal, passive: true });
    scroller.addEventListener("keydown", (event) => this.onKey(event), { signal });
    scroller.addEventListener("focusin", (event) => this.onFocus(event), { signal });
    this.observer = new ResizeObserver(() => this.layout());
    this.observer.observe(scroller);
    options.signal?.addEventListener("abort", () => this.close(), { signal });
    this.layout();
  }

  /** Stop; the elements stay. */
  close() {
    this.observer.disconnect();
    this.closing.abort();
    clearTimeout(this.timer);
  }

  /** Change the number of cells. */
  setCount(count) {
    if (count !== this.options.count) this.update({ count });
  }

  /** Change options; the first cell in view stays in view. */
  update(changes) {
    const isSame = Object.keys(changes).every((name) => name === "count");
    Object.assign(this.options, changes);
    if (!isSame) this.clear();
    this.layout();
  }

  /** Render cells again: those with the given indices, or all in view. */
  refresh(indices = [...this.cells.keys()]) {
    for (const index of indices) {
      const cell = this.cells.get(index);
      if (!cell) continue;
      const hadFocus = cell.contains(document.activeElement) || this.awaited === index;
      fill(cell, this.options.render(index));
      this.setTabs(cell, index === this.active);
      if (hadFocus) this.focusCell(cell);
    }
  }

  /** Scroll so that a cell is in view; at the top of the view if `atTop`. */
  scrollTo(index, atTop = true) {
    const row = Math.floor(Math.max(0, Math.min(index, this.options.count - 1)) / this.columns);
    const begin = row * this.rowStep;
    if (atTop || begin < this.top) this.moveTo(begin);
    else if (begin + this.rowHeight > this.top + this.viewHeight) this.moveTo(begin + this.rowHeight - this.viewHeight);
  }

  /** Index of the first cell in view. */
  get first() {
    return Math.floor(this.top / this.rowStep) * this.columns;
  }

  get rowStep() {
    return this.rowHeight + this.options.gap;
  }

  // Layout.

  layout() {
    const { count, columns, cellWidth, rowHeight, gap } = this.options;
    const width = this.scroller.clientWidth;
    const anchor = this.columns ? this.first : 0;
    const offset = this.columns ? this.top - Math.floor(this.top / this.rowStep) * this.rowStep : 0;
    const before = [this.columns, this.rowHeight, this.cellWidth].join();
    this.viewHeight = this.scroller.clientHeight;
    this.columns = columns ?? (cellWidth ? Math.max(1, Math.floor((width + gap) / (cellWidth + gap))) : 1);
    this.cellWidth = Math.max(1, (width - gap * (this.columns - 1)) / this.columns);
    this.rowHeight = typeof rowHeight === "function" ? rowHeight(this.cellWidth) : rowHeight;
    this.total = Math.max(0, Math.ceil(count / this.columns) * this.rowStep - gap);
    this.physical = Math.min(this.total, MAX_HEIGHT);
    this.content.style.setProperty("height", `${this.physical}px`);
    const isSame = before === [this.columns, this.rowHeight, this.cellWidth].join();
    if (!isSame) this.clear();
    const top = Math.floor(anchor / this.columns) * this.rowStep + Math.min(offset, this.rowHeight);
    this.moveTo(isSame ? this.top : top);
  }

  clear() {
    for (const cell of this.cells.values()) this.remove(cell);
    this.cells.clear();
    this.range = [-1, -1];
  }

  /** Map a position of the scroll bar to one of the grid. */
  toGrid(position) {
    const [high, end] = [this.physical - this.viewHeight, this.total - this.viewHeight];
    if (this.total <= MAX_HEIGHT || position <= END_HEIGHT) return position;
    if (position >= high - END_HEIGHT) return end - (high - position);
    return END_HEIGHT + ((position - END_HEIGHT) * (end - 2 * END_HEIGHT)) / (high - 2 * END_HEIGHT);
  }

  /** Map a position of the grid to one of the scroll bar. */
  toBar(position) {
    const [high, end] = [this.physical - this.viewHeight, this.total - this.viewHeight];
    if (this.total <= MAX_HEIGHT || position <= END_HEIGHT) return position;
    if (position >= end - END_HEIGHT) return high - (end - position);
    return END_HEIGHT + ((position - END_HEIGHT) * (high - 2 * END_HEIGHT)) / (end - 2 * END_HEIGHT);
  }

  moveTo(top) {
    this.top = Math.max(0, Math.min(top, this.total - this.viewHeight));
    this.scroller.scrollTop = this.toBar(this.top);
    this.lastScroll = this.scroller.scrollTop;
    this.draw();
  }

  onScroll() {
    const position = this.scroller.scrollTop;
    const change = position - this.lastScroll;
    if (change === 0) return;
    this.lastScroll = position;
    const isExact = this.total <= MAX_HEIGHT || Math.abs(change) > this.viewHeight;
    this.top = isExact ? this.toGrid(position) : Math.max(0, Math.min(this.top + change, this.total - this.viewHeight));
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.settle(), SETTLE_MS);
  }

  /** Move the scroll bar to the scaled position. */
  settle() {
    clearTimeout(this.timer);
    if (this.total > MAX_HEIGHT && Math.abs(this.toBar(this.top) - this.scroller.scrollTop) > 1) this.moveTo(this.top);
  }

  draw() {
    const { count, onRange, render } = this.options;
    if (!this.viewHeight) return;
    const begin = Math.max(0, Math.floor((this.top - OVERSCAN) / this.rowStep)) * this.columns;
    const rows = Math.ceil((this.top + this.viewHeight + OVERSCAN) / this.rowStep);
    const end = Math.min(count, rows * this.columns);
    for (const [index, cell] of this.cells) {
      if (index >= begin && index < end) continue;
      this.remove(cell);
      this.cells.delete(index);
    }
    const shift = this.lastScroll - this.top;
    let previous = null;
    for (let index = begin; index < end; index += 1) {
      let cell = this.cells.get(index);
      if (!cell) {
        const place = { role: "listitem", "aria-setsize": count, "aria-posinset": index + 1 };
        cell = h("div", { class: "grid-cell", ...place }, render(index));
        this.setTabs(cell, index === this.active);
        this.cells.set(index, cell);
        if (previous) previous.after(cell);
        else this.content.prepend(cell);
      }
      const { style } = cell;
      style.setProperty("width", `${this.cellWidth}px`);
      style.setProperty("height", `${this.rowHeight}px`);
      const left = (index % this.columns) * (this.cellWidth + this.options.gap);
      const top = Math.floor(index / this.columns) * this.rowStep + shift;
      style.setProperty("transform", `translate(${left}px, ${top}px)`);
      previous = cell;
    }
    if (!this.cells.has(this.active) && end > begin) this.setActive(Math.min(Math.max(this.first, begin), end - 1));
    if (onRange && (begin !== this.range[0] || end !== this.range[1])) {
      this.range = [begin, end];
      onRange(begin, end);
    }
  }

  remove(cell) {
    // The focus would be lost with the cell: the keys go on to work.
    if (cell.contains(document.activeElement)) this.scroller.focus({ preventScroll: true });
    for (const image of cell.querySelectorAll("img")) image.removeAttribute("src"); // ends its request
    cell.remove();
  }

  // Focus: only the controls of the active cell are in the order of the Tab key.

  setTabs(cell, isActive) {
    for (const each of cell.querySelectorAll(FOCUSABLE)) each.tabIndex = isActive ? 0 : -1;
    this.scroller.tabIndex = 0;
  }

  setActive(index) {
    const before = this.cells.get(this.active);
    if (before) this.setTabs(before, false);
    this.active = index;
    const cell = this.cells.get(index);
    if (cell) this.setTabs(cell, true);
  }

  focusCell(cell) {
    const target = cell.querySelector("[data-focus]") ?? cell.querySelector(FOCUSABLE);
    // A cell without content is focused when it is rendered again.
    this.awaited = target ? -1 : [...this.cells].find(([, each]) => each === cell)?.[0] ?? -1;
    target?.focus({ preventScroll: true });
  }

  onFocus(event) {
    const cell = event.target.closest(".grid-cell");
    if (event.target !== this.scroller) this.awaited = -1;
    for (const [index, each] of this.cells) if (each === cell) this.setActive(index);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.options.count) return;
    if (event.target.closest("select, textarea, audio, input:not([type=checkbox])")) return;
    const page = Math.max(1, Math.floor(this.viewHeight / this.rowStep)) * this.columns;
    const last = this.options.count - 1;
    const { columns } = this;
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -page, PageDown: page,
    };
    let index = this.active + (steps[event.key] ?? 0);
    if (event.key === "Home") index = 0;
    else if (event.key === "End") index = last;
    else if (!(event.key in steps)) return;
    event.preventDefault();
    if (this.columns === 1 && (event.key === "ArrowLeft" || event.key === "ArrowRight")) return;
    index = Math.max(0, Math.min(last, index));
    this.scrollTo(index, false);
    this.setActive(index);
    const cell = this.cells.get(index);
    if (cell) this.focusCell(cell);
  }
}
