// The list beside the point cloud: the examples that are chosen in it, the nearest neighbours of one, or those
// whose label is likely wrong.

import { stream } from "./api.js";
import { knownIds } from "./data.js";
import { button, countOf, errorBox, fill, formatNumber, h } from "./dom.js";
import { integerField } from "./fields.js";
import { Gallery } from "./gallery.js";

export const DEFAULT_NEIGHBOURS = 10;
export const PANELS = { examples: "Examples", neighbours: "Neighbours", mislabelled: "Likely mislabelled" };
const LEAST_SHARE = 0.5; // of the neighbours that have another class

/**
 * A list of examples.
 *
 * `state` has the `panel` that is shown, the `id` whose neighbours are listed, and `k`, their number. Options:
 * `classAt(position, limit)`, `hasLabel`, `isCosine`, `onchange()` (called when the state or the list changes),
 * `signal`.
 */
export class ExampleList {
  constructor(context, split, state, options) {
    Object.assign(this, { context, split, state, ...options });
    this.ids = [];
    this.noteOf = () => null; // text about an example
    this.about = h("p", { class: "muted", role: "status" });
    this.tools = h("div", { class: "controls" });
    this.running = new AbortController();
    this.signal.addEventListener("abort", () => this.running.abort());
    this.gallery = new Gallery(context, split, {
      size: 96, label: "Chosen examples", signal: this.signal,
      note: (id) => h("div", { class: "card-note" }, this.noteOf(id), button("↗", () => this.openNeighbours(id),
        { class: "small", "aria-label": `Neighbours of example ${id}` })),
    });
    const names = Object.keys(PANELS).filter((name) => this.hasLabel || name !== "mislabelled");
    this.tabs = names.map((name) => button(PANELS[name], () => this.open(name), { "data-panel": name }));
    this.element = h("section", { class: "panel cloud-panel", "aria-label": "Chosen examples" },
      h("div", { class: "controls", role: "group", "aria-label": "Lists" }, this.tabs), this.tools, this.about,
      this.gallery.element);
  }

  /** Show examples, with a sentence about them; `noteOf(id)` returns a text about one. */
  show(ids, text, noteOf = () => null) {
    Object.assign(this, { ids, noteOf });
    this.about.textContent = text;
    this.gallery.setList(knownIds(ids));
    this.onchange();
  }

  /** Show examples that were chosen in the cloud, and add them to the selection. */
  choose(ids, how) {
    this.context.selection.add(this.split, ids);
    this.open("examples", () => this.show(ids, `${countOf(ids.length, "example")} ${how}; added to the selection.`));
  }

  /** Show an example and its nearest neighbours. */
  openNeighbours(id) {
    this.state.id = id;
    this.open("neighbours");
  }

  /** Show a panel; `action` fills it, by default with what it is named for. */
  async open(name, action = null) {
    const { state, tabs } = this;
    state.panel = name;
    for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab.dataset.panel === name));
    fill(this.tools, name !== "examples" && [
      integerField("Neighbours", "k", state.k, { high: 100 }, (k) => {
        state.k = Number(k) || DEFAULT_NEIGHBOURS;
        this.open(name);
      }),
      button("Select all listed", () => this.context.selection.add(this.split, this.ids),
        { "data-action": "select-listed" })]);
    this.running.abort();
    this.running = new AbortController();
    const { signal } = this.running;
    try {
      if (action) action();
      else if (name === "neighbours") await this.findNeighbours(signal);
      else if (name === "mislabelled") await this.findMislabelled(signal);
      else this.show([], "Draw a lasso with shift and drag, or select all points in view, to see their examples here.");
    } catch (error) {
      if (!signal.aborted) fill(this.about, errorBox(error));
    }
  }

  async findNeighbours(signal) {
    const { id, k } = this.state;
    if (id === null) return this.show([], "Click a point, or enter the id of an example.");
    this.show([id], "Comparing…");
    for await (const part of stream("neighbours", { id, k }, signal)) {
      const found = new Map(part.neighbours.map((each) => [each.id, each]));
      this.show([id, ...found.keys()], this.describeNeighbours(part), (each) => {
        if (each === id) return "this example";
        const { similarity, distance, class: other } = found.get(each);
        const text = similarity?.toFixed(3) ?? formatNumber(distance);
        return other === part.class ? text : h("span", { title: "another class" }, `${text} ≠`);
      });
    }
  }

  describeNeighbours({ neighbours, class: own, scanned, total }) {
    if (scanned < total) return `Compared with ${formatNumber(scanned)} of ${countOf(total, "example")}…`;
    const how = `Nearest by ${this.isCosine ? "cosine similarity" : "distance"}`;
    if (!this.hasLabel) return `${how}.`;
    const same = neighbours.filter((each) => each.class === own).length;
    return `${this.classAt(own)}. ${how}; ${same} of ${neighbours.length} have the same class.`;
  }

  async findMislabelled(signal) {
    const rows = [];
    this.show([], "Comparing labels…");
    let text = "";
    for await (const part of stream("disagreements", { k: this.state.k }, signal)) {
      rows.push(...part.rows);
      const of = `${countOf(part.total, "example")}${part.sampled ? " (a sample by class)" : ""}`;
      text = `${part.scanned < part.total ? `${formatNumber(part.scanned)} of ` : ""}${of} compared; `
        + `${formatNumber(rows.length)} have neighbours of another class more often than of their own.`;
      if (this.gallery.grid.top === 0) this.showRows(rows, text); // else the list would move while it is read
    }
    this.showRows(rows, text);
  }

  showRows(rows, text) {
    rows.sort((a, b) => b.share - a.share || a.id - b.id);
    const found = new Map(rows.filter(({ share }) => share >= LEAST_SHARE).map((row) => [row.id, row]));
    this.show([...found.keys()], text, (id) => {
      const { neighbours, other, share } = found.get(id);
      const count = `${Math.round(share * neighbours.length)} of ${neighbours.length} neighbours`;
      return h("span", { title: `${count}: ${this.classAt(other)}` }, `→ ${this.classAt(other, 12)}`);
    });
  }
}
