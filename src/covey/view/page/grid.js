// A grid, list or table of any length: only the cells in view are elements.
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
 * Options: `count` (of cells), `cellWidth` (the least one; as many columns as fit; by default one column),
 * `minWidth` (of that column, which is scrolled), `rowHeight` (a number, or a function of the width of a
 * cell), `gap` (pixels between cells), `render(index)` (returns the element of a cell), `onRange(last)` (called
 * when other cells are in view), `head` (an element above the cells), `label`, `signal`.
 *
 * The scroller must have a height. Arrow keys, Page Up, Page Down, Home and End move the focus.
 */
export class VirtualGrid {
  constructor(scroller, options) {
    this.scroller = scroller;
    this.options = { count: 0, cellWidth: null, minWidth: 0, rowHeight: 40, gap: 0, ...options };
    this.cells = new Map(); // index -> element
    this.top = 0; // position in the grid, in pixels
    this.active = 0;
    this.content = h("div", { class: "grid-content", role: "list", "aria-label": options.label });
    scroller.classList.add("grid-scroller");
    scroller.tabIndex = 0;
    const { signal } = options;
    scroller.addEventListener("scroll", () => this.onScroll(), { signal, passive: true });
    scroller.addEventListener("keydown", (event) => this.onKey(event), { signal });
    scroller.addEventListener("focusin", (event) => this.setActive(this.indexOf(event.target)), { signal });
    const observer = new ResizeObserver(() => this.layout());
    observer.observe(scroller);
    signal.addEventListener("abort", () => observer.disconnect());
    this.update({});
  }

  /** Change the number of cells; cells that are drawn stay. */
  setCount(count) {
    this.options.count = count;
    this.layout();
  }

  /** Change options, and draw all cells again; the first cell in view stays in view. */
  update(changes) {
    Object.assign(this.options, changes);
    fill(this.scroller, this.options.head, this.content);
    this.clear();
    this.layout();
  }

  /** Remove all cells, and draw from the beginning if `isNew`. */
  clear(isNew = false) {
    for (const cell of this.cells.values()) this.remove(cell);
    this.cells.clear();
    if (isNew) [this.top, this.active] = [0, 0];
  }

  /** Index of the cell that has an element; undefined if there is none. */
  indexOf(element) {
    return [...this.cells].find(([, cell]) => cell.contains(element))?.[0];
  }

  get rowStep() {
    return this.rowHeight + this.options.gap;
  }

  layout() {
    const { count, cellWidth, minWidth, rowHeight, gap } = this.options;
    const width = this.scroller.clientWidth;
    const anchor = this.columns ? Math.floor(this.top / this.rowStep) * this.columns : 0;
    const before = [this.columns, this.rowHeight, this.cellWidth].join();
    this.viewHeight = this.scroller.clientHeight - this.content.offsetTop;
    this.columns = cellWidth ? Math.max(1, Math.floor((width + gap) / (cellWidth + gap))) : 1;
    this.cellWidth = Math.max(1, minWidth, (width - gap * (this.columns - 1)) / this.columns);
    this.rowHeight = typeof rowHeight === "function" ? rowHeight(this.cellWidth) : rowHeight;
    this.total = Math.max(0, Math.ceil(count / this.columns) * this.rowStep - gap);
    this.physical = Math.min(this.total, MAX_HEIGHT);
    this.content.style.setProperty("height", `${this.physical}px`);
    this.content.style.setProperty("min-width", `${minWidth}px`);
    const isSame = before === [this.columns, this.rowHeight, this.cellWidth].join();
    if (!isSame) this.clear();
    this.moveTo(isSame ? this.top : Math.floor(anchor / this.columns) * this.rowStep);
  }

  /** Map a position between two ranges whose ends correspond: of the scroll bar, and of the grid. */
  map(position, from, to) {
    const [high, end] = [from - this.viewHeight, to - this.viewHeight];
    if (this.total <= MAX_HEIGHT || position <= END_HEIGHT) return position;
    if (position >= high - END_HEIGHT) return end - (high - position);
    return END_HEIGHT + ((position - END_HEIGHT) * (end - 2 * END_HEIGHT)) / (high - 2 * END_HEIGHT);
  }

  moveTo(top) {
    this.top = Math.max(0, Math.min(top, this.total - this.viewHeight));
    this.scroller.scrollTop = this.map(this.top, this.total, this.physical);
    this.lastScroll = this.scroller.scrollTop;
    this.draw();
  }

  onScroll() {
    const position = this.scroller.scrollTop;
    const change = position - this.lastScroll;
    if (change === 0) return;
    this.lastScroll = position;
    const isExact = this.total <= MAX_HEIGHT || Math.abs(change) > this.viewHeight;
    this.top = isExact ? this.map(position, this.physical, this.total)
      : Math.max(0, Math.min(this.top + change, this.total - this.viewHeight));
    this.draw();
    clearTimeout(this.timer);
    if (this.total > MAX_HEIGHT) this.timer = setTimeout(() => this.moveTo(this.top), SETTLE_MS);
  }

  draw() {
    const { count, onRange, render, gap } = this.options;
    if (!(this.viewHeight > 0)) return;
    const begin = Math.max(0, Math.floor((this.top - OVERSCAN) / this.rowStep)) * this.columns;
    const end = Math.min(count, Math.ceil((this.top + this.viewHeight + OVERSCAN) / this.rowStep) * this.columns);
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
        this.cells.set(index, cell);
        if (previous) previous.after(cell);
        else this.content.prepend(cell);
      }
      const left = (index % this.columns) * (this.cellWidth + gap);
      const top = Math.floor(index / this.columns) * this.rowStep + shift;
      cell.style.setProperty("width", `${this.cellWidth}px`);
      cell.style.setProperty("height", `${this.rowHeight}px`);
      cell.style.setProperty("transform", `translate(${left}px, ${top}px)`);
      previous = cell;
    }
    this.setActive(Math.max(begin, Math.min(this.active, end - 1)));
    onRange?.(end);
  }

  remove(cell) {
    // The focus would be lost with the cell: the keys go on to work.
    if (cell.contains(document.activeElement)) this.scroller.focus({ preventScroll: true });
    for (const image of cell.querySelectorAll("img")) image.removeAttribute("src"); // ends its request
    cell.remove();
  }

  /** Only the controls of the active cell are in the order of the Tab key. */
  setActive(index) {
    if (index === undefined) return;
    this.active = index;
    for (const [each, cell] of this.cells) {
      const tab = each === index ? 0 : -1;
      for (const control of cell.querySelectorAll(FOCUSABLE)) if (control.tabIndex !== tab) control.tabIndex = tab;
    }
  }

  onKey(event) {
    const { count } = this.options;
    if (event.ctrlKey || event.metaKey || event.altKey || !count) return;
    if (event.target.closest("select, textarea, audio, input:not([type=checkbox])")) return;
    const page = Math.max(1, Math.floor(this.viewHeight / this.rowStep)) * this.columns;
    const side = this.columns > 1 ? 1 : 0;
    const steps = {
      ArrowLeft: -side, ArrowRight: side, ArrowUp: -this.columns, ArrowDown: this.columns,
      PageUp: -page, PageDown: page, Home: -count, End: count,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(count - 1, this.active + steps[event.key]));
    const begin = Math.floor(index / this.columns) * this.rowStep;
    if (begin < this.top) this.moveTo(begin);
    else if (begin + this.rowHeight > this.top + this.viewHeight) this.moveTo(begin + this.rowHeight - this.viewHeight);
    this.setActive(index);
    const cell = this.cells.get(index);
    (cell?.querySelector("[data-focus]") ?? cell?.querySelector(FOCUSABLE))?.focus({ preventScroll: true });
  }
}
