// Panels of the embeddings: the examples of a lasso, and the nearest neighbours of an example.

import { getJson } from "./api.js";
import { exampleCard } from "./cells.js";
import { openExample } from "./dialog.js";
import { countOf, fill, formatNumber, h } from "./dom.js";
import { Gallery } from "./gallery.js";
import { examplesOf } from "./store.js";

export const DEFAULT_NEIGHBOURS = 10;
export const MAX_NEIGHBOURS = 100;

/** Return a list of ids for a gallery, as those of ids.js. */
export function listOf(ids) {
  return {
    length: ids.length,
    total: ids.length,
    isDone: true,
    isRunning: false,
    error: null,
    at: (index) => ids[index],
    indexOf: (id) => ids.indexOf(id),
    want() {
      // All ids are known.
    },
    all: async (limit) => ids.slice(0, limit),
  };
}

/** Return the number of neighbours that a parameter of the URL has. */
export function countOfNeighbours(text) {
  const count = Math.trunc(Number(text));
  return count >= 1 && count <= MAX_NEIGHBOURS ? count : DEFAULT_NEIGHBOURS;
}

/** Return the field for the number of neighbours. */
export function neighboursField(k, onchange) {
  const input = h("input", { type: "number", name: "k", min: 1, max: MAX_NEIGHBOURS, value: k, class: "cloud-k",
    onchange: () => {
      const count = countOfNeighbours(input.value);
      input.value = count;
      onchange(count);
    } });
  return h("label", {}, "Neighbours", input);
}

/** Yield the parts of a scan: requests with the cursor of the response before. */
export async function* scan(path, parameters, signal) {
  let cursor = null;
  do {
    const part = await getJson(path, { ...parameters, cursor }, signal);
    cursor = part.cursor;
    yield part;
  } while (cursor !== null && !signal.aborted);
}

/** The examples that were chosen in the cloud. */
export class ExamplesPanel {
  constructor({ context, split, signal }) {
    this.note = h("p", { class: "muted" },
      "Draw a lasso with shift and drag, or select all points in view, to see their examples here.");
    this.gallery = new Gallery(context, split, { size: 96, label: "Chosen examples", signal });
    this.gallery.element.hidden = true;
    this.element = h("div", { class: "cloud-content" }, this.note, this.gallery.element);
  }

  show(ids, note) {
    this.note.textContent = `${note}; added to the selection.`;
    this.gallery.element.hidden = ids.length === 0;
    this.gallery.setList(listOf(ids));
  }
}

/** An example and its nearest neighbours. */
export class NeighboursPanel {
  constructor(options) {
    Object.assign(this, options);
    this.k = countOfNeighbours(options.k);
    this.id = null;
    this.running = new AbortController();
    this.heading = h("h3", {}, "Nearest neighbours");
    this.note = h("p", { class: "muted", role: "status" }, "Click a point, or enter the id of an example.");
    this.list = h("ul", { class: "neighbours", "aria-label": "Nearest neighbours" });
    this.tools = h("div", { class: "controls" },
      neighboursField(this.k, (k) => {
        this.k = k;
        if (this.id !== null) this.find(this.id);
        this.onchange();
      }),
      h("button", { type: "button", dataset: { action: "select-neighbours" },
        onclick: () => this.context.selection.add(this.split, [this.id, ...this.ids]) }, "Select all"));
    this.tools.hidden = true;
    this.element = h("div", { class: "cloud-content", dataset: { panel: "neighbours" } },
      this.heading, this.tools, this.note, this.list);
  }

  /** Find the neighbours of an example; the best so far are shown while more are compared. */
  async find(id) {
    this.running.abort();
    this.running = new AbortController();
    const { signal } = this.running;
    this.signal.addEventListener("abort", () => this.running.abort(), { once: true });
    Object.assign(this, { id, ids: [] });
    this.tools.hidden = false;
    let own = this.position(id);
    this.showHeading(own);
    this.note.textContent = "Comparing…";
    let found = [];
    this.show(found, own);
    try {
      for await (const part of scan("neighbours", { id, k: this.k }, signal)) {
        found = [...found, ...part.neighbours].sort(byDistance).slice(0, this.k);
        this.ids = found.map((each) => each.id);
        own = part.class;
        this.showHeading(own);
        this.show(found, own);
        this.note.textContent = part.cursor === null
          ? this.about(found, own)
          : `Compared with ${formatNumber(part.scanned)} of ${countOf(part.total, "example")}…`;
      }
      this.onfound(this.ids);
      this.context.announce(this.note.textContent);
    } catch (error) {
      if (error.name !== "AbortError") this.note.textContent = error.message;
    }
  }

  showHeading(own) {
    this.heading.textContent = `Example ${formatNumber(this.id)}${own === null ? "" : `, ${this.className(own)}`}`;
  }

  about(found, own) {
    if (!found.length) return "There are no other examples.";
    const how = found[0].similarity === undefined ? "distance" : "cosine similarity";
    const same = found.filter((each) => each.class === own).length;
    return own === null ? `Nearest by ${how}.` : `Nearest by ${how}; ${same} of ${found.length} have the same class.`;
  }

  show(found, own) {
    const rows = [{ id: this.id, isQuery: true }, ...found];
    fill(this.list, rows.map((each) => this.item(each, own)));
  }

  item(each, own) {
    const cell = h("div", { class: "neighbour-card" });
    const store = examplesOf(this.split);
    const ids = () => listOf([this.id, ...this.ids]);
    const onopen = () => openExample(this.context, this.split, each.id, { ids: ids() });
    const place = (example) => fill(cell, exampleCard(this.context, this.split, example, { size: 110, onopen }));
    place(store.peek(each.id));
    if (!store.peek(each.id)) store.load(each.id, true).then(place);
    const isOther = own !== null && !each.isQuery && each.class !== own;
    const text = each.isQuery ? "this example" : each.similarity?.toFixed(3) ?? formatNumber(each.distance);
    const other = isOther && [h("span", { "aria-hidden": "true", title: "another class" }, " ≠"),
      h("span", { class: "visually-hidden" }, ", another class")];
    const label = `Neighbours of example ${each.id}`;
    const walk = !each.isQuery && h("button", { type: "button", class: "small", "aria-label": label, title: label,
      onclick: () => this.openNeighbours(each.id) }, "↗");
    const kind = isOther ? "is-other" : each.isQuery ? "is-query" : "";
    return h("li", { class: `neighbour ${kind}`, dataset: { id: each.id } }, cell,
      h("div", { class: "neighbour-note" }, h("span", {}, text, other), walk));
  }
}

function byDistance(a, b) {
  const order = a.similarity === undefined ? a.distance - b.distance : b.similarity - a.similarity;
  return order || a.id - b.id;
}
