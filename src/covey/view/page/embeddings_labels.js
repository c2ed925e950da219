// Labels that disagree with those of the nearest neighbours: a list of examples.

import { valueElement, mainFeature } from "./cells.js";
import { openExample } from "./dialog.js";
import { countOf, display, fill, formatNumber, h } from "./dom.js";
import { countOfNeighbours, listOf, neighboursField, scan } from "./embeddings_panels.js";
import { VirtualGrid } from "./grid.js";
import { examplesOf } from "./store.js";

const SHARES = [["0", "any"], ["0.5", "50%"], ["0.7", "70%"], ["0.9", "90%"]];
const DEFAULT_SHARE = 0.5;

/** The examples whose neighbours have another class more often than theirs; a scan that runs until it is complete. */
export class DisagreementScan extends EventTarget {
  constructor(signal, k) {
    super();
    this.signal = signal;
    this.k = countOfNeighbours(k);
    this.running = null;
    this.reset();
  }

  reset() {
    this.rows = [];
    this.scanned = 0;
    this.total = null; // number of examples to compare
    this.isSampled = false;
    this.isDone = false;
    this.error = null;
  }

  /** Start the scan, if it has not been started. */
  start() {
    if (!this.running) this.run();
  }

  /** Start again with another number of neighbours. */
  restart(k) {
    this.k = k;
    this.running?.abort();
    this.running = null;
    this.reset();
    this.run();
  }

  async run() {
    const running = new AbortController();
    this.running = running;
    this.signal.addEventListener("abort", () => running.abort(), { once: true });
    try {
      for await (const part of scan("disagreements", { k: this.k }, running.signal)) this.add(part);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.error = error;
      this.dispatchEvent(new Event("change"));
    }
  }

  add(part) {
    this.rows = [...this.rows, ...part.rows].sort((a, b) => b.share - a.share || a.id - b.id);
    this.scanned = part.scanned;
    this.total = part.total;
    this.isSampled = part.sampled;
    this.isDone = part.cursor === null;
    this.dispatchEvent(new Event("change"));
  }

  /** Return a sentence about the state of the scan. */
  describe() {
    if (this.error) return display(this.error.message, 500);
    if (this.total === null) return "Comparing labels…";
    const of = `${countOf(this.total, "example")}${this.isSampled ? " (a sample by class)" : ""}`;
    const what = `${formatNumber(this.rows.length)} have neighbours of another class more often than of their own`;
    return this.isDone ? `${of}; ${what}.` : `Compared ${formatNumber(this.scanned)} of ${of}; ${what}…`;
  }
}

/** The list of examples whose label is likely wrong. */
export class DisagreementPanel {
  constructor(options) {
    Object.assign(this, options);
    this.share = DEFAULT_SHARE;
    this.rows = [];
    this.shown = new Map(); // index -> id of the row that is drawn there
    this.note = h("p", { class: "muted", role: "status" });
    this.select = h("select", { name: "share", onchange: () => {
      this.share = Number(this.select.value);
      this.update();
    } }, SHARES.map(([value, text]) => h("option", { value, selected: Number(value) === DEFAULT_SHARE }, text)));
    const tools = h("div", { class: "controls" },
      neighboursField(this.scan.k, (k) => this.scan.restart(k)), h("label", {}, "Share at least", this.select),
      h("button", { type: "button", dataset: { action: "select-listed" },
        onclick: () => this.context.selection.add(this.split, this.rows.map((row) => row.id)) }, "Select all listed"));
    this.scroller = h("div", { class: "suspects", dataset: { list: "mislabelled" } });
    this.grid = new VirtualGrid(this.scroller, {
      rowHeight: 84, gap: 6, label: "Examples that are likely mislabelled", signal: this.signal,
      render: (index) => this.row(index),
    });
    this.element = h("div", { class: "cloud-content", dataset: { panel: "mislabelled" } },
      this.note, tools, this.scroller);
    this.scan.addEventListener("change", () => this.update(), { signal: this.signal });
    this.context.selection.addEventListener("change", () => this.showSelection(), { signal: this.signal });
  }

  open() {
    this.scan.start();
    this.update();
    this.grid.layout();
  }

  update() {
    this.note.textContent = this.scan.describe();
    this.rows = this.scan.rows.filter((row) => row.share >= this.share);
    this.grid.setCount(this.rows.length);
    // Rows that did not move are not drawn again: their images would flicker.
    const moved = [...this.grid.cells.keys()].filter((index) => this.rows[index]?.id !== this.shown.get(index));
    this.grid.refresh(moved);
    if (this.element.isConnected) this.onlist(this.rows.map((row) => row.id));
  }

  row(index) {
    const row = this.rows[index];
    this.shown.set(index, row?.id);
    if (!row) return h("div", {});
    const { id } = row;
    const picture = h("div", { class: "suspect-picture" });
    const store = examplesOf(this.split);
    const place = (example) => {
      const name = example.error ? null : mainFeature(example);
      fill(picture, name === null ? display(example.error ?? "no features", 60)
        : valueElement(this.context, this.split, example, name, { size: 72 }));
    };
    if (store.peek(id)) place(store.peek(id));
    else store.load(id, true).then(place);
    const ids = this.rows.map((each) => each.id);
    const count = Math.round(row.share * row.neighbours.length);
    return h(
      "div",
      { class: "suspect", dataset: { id } },
      picture,
      h("div", { class: "suspect-text" },
        h("div", {}, h("strong", {}, this.className(row.class)), h("span", { class: "muted" }, ` #${id}`)),
        h("div", {}, `${count} of ${row.neighbours.length} neighbours: `,
          h("strong", {}, this.className(row.other))),
        h("div", { class: "suspect-tools" },
          h("button", { type: "button", class: "small", dataset: { focus: "" }, "aria-label": `Example ${id}: details`,
            onclick: () => openExample(this.context, this.split, id, { ids: listOf(ids) }) }, "Details"),
          h("button", { type: "button", class: "small", "aria-label": `Neighbours of example ${id}`,
            onclick: () => this.openNeighbours(id) }, "Neighbours"),
          h("label", {}, h("input", { type: "checkbox", class: "suspect-box", "aria-label": `Select example ${id}`,
            checked: this.context.selection.has(this.split, id),
            onchange: (event) => this.context.selection.toggle(this.split, id, event.target.checked) }), "Select"))),
    );
  }

  showSelection() {
    for (const [index, cell] of this.grid.cells) {
      const box = cell.querySelector(".suspect-box");
      if (box && this.rows[index]) box.checked = this.context.selection.has(this.split, this.rows[index].id);
    }
  }
}
