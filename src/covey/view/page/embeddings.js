// Embeddings: a point cloud of the examples, and panels about what is chosen in it.

import { getColumns } from "./api.js";
import { classPicker } from "./classpicker.js";
import { className, countOf, debounce, display, fill, formatNumber, h } from "./dom.js";
import { DisagreementPanel, DisagreementScan } from "./embeddings_labels.js";
import { DEFAULT_NEIGHBOURS, ExamplesPanel, NeighboursPanel } from "./embeddings_panels.js";
import { replace } from "./router.js";
import { pointStyle, Scatter } from "./scatter.js";
import { classColour, FEW_CLASSES, SHAPES } from "./scatter_gl.js";

const NO_CLASS = 0xffffffff;
const MANY_MARKS = 500;
const LARGEST = 8; // classes in the legend, of more than FEW_CLASSES
const KEYS = "Drag to pan, wheel to zoom, shift and drag to draw a lasso, click for the nearest neighbours. "
  + "Keys: arrows pan, + and - zoom, 0 shows all, Enter picks the point at the centre.";

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const { embeddings } = context.overview;
  fill(root, h("h2", {}, "Embeddings"));
  if (!embeddings) {
    const text = "There are no embeddings. `covey view data --embeddings emb.npy` shows them.";
    root.append(h("p", { class: "muted" }, text));
    return;
  }
  const loading = h("p", { class: "muted", role: "status" }, `Projecting ${countOf(embeddings.points, "example")}…`);
  root.append(loading);
  const [{ values, arrays }, table] = await Promise.all([
    getColumns("points", {}, signal), context.classes(embeddings.split)]);
  if (signal.aborted) return;
  loading.remove();
  new EmbeddingsView(root, parameters, context, { values, arrays, table }, signal);
}

/** Return a sentence about the points. */
function describe({ dimensions, variance, total, stride, axes_rows: rows, split }) {
  const parts = [`${countOf(total, "example")} of ${display(split, 80)}`];
  if (variance) {
    const [first, second] = variance.map((each) => `${(100 * each).toFixed(1)}%`);
    const shares = `${first} and ${second} of the variance`;
    parts.push(`${formatNumber(dimensions)} dimensions, projected to two by PCA (${shares})`);
    if (rows < total) parts.push(`axes of a sample of ${countOf(rows, "example")}`);
  } else parts.push(countOf(dimensions, "dimension"));
  if (stride > 1) parts.push(`one of ${stride} examples is shown`);
  return `${parts.join("; ")}.`;
}

class EmbeddingsView {
  constructor(root, parameters, context, { values, arrays, table }, signal) {
    Object.assign(this, { context, values, table, signal, split: values.split });
    this.points = { ...arrays, classes: table.length };
    this.hasLabel = values.label !== null && table.length > 0;
    const panel = parameters.panel ?? (parameters.id === undefined ? "examples" : "neighbours");
    this.state = { panel, id: null, class: null, k: parameters.k };
    this.scatter = new Scatter(this.points, {
      label: this.summary(),
      describe: (index) => this.describePoint(index),
      announce: (text) => context.announce(text),
      onpick: (index) => this.openNeighbours(index * values.stride),
      onlasso: (indices) => this.choose(indices, "inside the lasso"),
      signal,
    });
    this.makePanels();
    this.legend = h("div", { class: "cloud-legend", role: "group", "aria-label": "Highlight a class" });
    root.classList.add("embeddings");
    root.append(
      h("p", { class: "muted", dataset: { about: "points" } }, describe(values)),
      this.controls(),
      this.legend,
      context.selection.bar(this.split, signal),
      h("div", { class: "cloud-columns" },
        h("div", { class: "cloud-side" }, this.scatter.element,
          this.scatter.renderer && h("p", { class: "muted cloud-keys", id: "cloud-keys" }, KEYS)),
        h("section", { class: "panel cloud-panel", "aria-label": "Chosen examples" }, this.tabs, this.body)),
    );
    context.selection.addEventListener("change", () => this.showSelection(), { signal });
    window.addEventListener("covey-theme", () => this.showLegend(), { signal });
    this.showLegend();
    this.showSelection();
    if (parameters.class !== undefined && this.hasLabel) this.highlight(table.position(parameters.class));
    if (/^\d+$/.test(parameters.id ?? "")) this.openNeighbours(Number(parameters.id), this.state.panel);
    else this.openPanel(this.state.panel);
  }

  /** The text alternative of the cloud. */
  summary() {
    const { table, hasLabel, points } = this;
    const largest = hasLabel ? [...table.bySize().subarray(0, 3)].map((each) => className(table.name(each), 40)) : [];
    const classes = `coloured by ${countOf(table.length, "class", "classes")}; the largest: ${largest.join(", ")}`;
    return `Point cloud of ${countOf(points.x.length, "example")}${hasLabel ? `, ${classes}` : ""}`;
  }

  className(position) {
    return position === NO_CLASS || position === null ? "no class" : className(this.table.name(position), 60);
  }

  describePoint(index) {
    const id = index * this.values.stride;
    return this.hasLabel ? `#${id}, ${this.className(this.points.position[index])}` : `#${id}`;
  }

  // Panels.

  makePanels() {
    const shared = { context: this.context, split: this.split, signal: this.signal,
      openNeighbours: (id) => this.openNeighbours(id), className: (position) => this.className(position),
      onchange: () => this.remember() };
    this.panels = {
      examples: { title: "Examples", panel: new ExamplesPanel(shared) },
      neighbours: { title: "Neighbours", panel: new NeighboursPanel({
        ...shared, k: this.state.k, position: (id) => this.positionOf(id),
        onfound: (ids) => this.mark("neighbours", ids, { ring: "second", least: 14, width: 3 }),
      }) },
    };
    if (this.hasLabel) {
      const scan = new DisagreementScan(this.signal, this.state.k);
      const onlist = (ids) => this.mark("listed", ids, { ring: "error", least: 8 });
      this.panels.mislabelled = {
        title: "Likely mislabelled", panel: new DisagreementPanel({ ...shared, scan, onlist }),
      };
    }
    if (!(this.state.panel in this.panels)) this.state.panel = "examples";
    this.tabs = h("div", { class: "controls cloud-tabs", role: "group", "aria-label": "Panels" },
      Object.entries(this.panels).map(([name, { title }]) =>
        h("button", { type: "button", dataset: { panel: name }, onclick: () => this.openPanel(name) }, title)));
    this.body = h("div", { class: "cloud-body" });
  }

  openPanel(name) {
    this.state.panel = name;
    for (const each of this.tabs.children) each.setAttribute("aria-pressed", String(each.dataset.panel === name));
    const { panel } = this.panels[name];
    fill(this.body, panel.element);
    this.mark("listed", [], {});
    panel.open?.();
    this.remember();
  }

  /** Show an example and its nearest neighbours. */
  openNeighbours(id, panel = "neighbours") {
    if (id >= this.values.total) {
      this.context.announce(`There is no example ${id}`);
      this.openPanel(this.state.panel);
      return;
    }
    this.state.id = id;
    this.idInput.value = id;
    this.mark("query", [id], { ring: "text", least: 16, width: 3 });
    if (id % this.values.stride === 0) this.scatter.reveal(id / this.values.stride);
    this.panels.neighbours.panel.find(id);
    this.openPanel(panel in this.panels ? panel : "neighbours");
  }

  /** Show examples, and add them to the selection. */
  choose(indices, how) {
    const ids = Array.from(indices, (each) => each * this.values.stride);
    const note = `${countOf(ids.length, "example")} ${how}`;
    this.context.announce(note);
    this.panels.examples.panel.show(ids, note);
    this.context.selection.add(this.split, ids);
    this.openPanel("examples");
  }

  positionOf(id) {
    const index = id / this.values.stride;
    return Number.isInteger(index) && this.hasLabel ? this.points.position[index] : null;
  }

  mark(name, ids, options) {
    const { stride } = this.values;
    const indices = Uint32Array.from(ids.filter((id) => id % stride === 0), (id) => id / stride);
    this.markIndices(name, indices, options);
  }

  markIndices(name, indices, options) {
    // Rings of many points would hide the points.
    const many = indices.length > MANY_MARKS ? { least: 5, grow: 1, width: 0.75 } : {};
    this.scatter.mark(name, { ...options, ...many, indices });
  }

  showSelection() {
    const ids = [...this.context.selection.set(this.split)];
    this.mark("selected", ids, { ring: "accent", least: 7 });
  }

  /** Keep what is chosen in the URL. */
  remember() {
    const { panel, id } = this.state;
    const classId = this.state.class === null ? null : this.table.ids[this.state.class];
    const { k } = this.panels.neighbours.panel;
    if (this.signal.aborted) return;
    const isDefault = panel === (id === null ? "examples" : "neighbours");
    const count = k === DEFAULT_NEIGHBOURS ? null : k;
    replace("embeddings", { panel: isDefault ? null : panel, id, class: classId, k: count });
  }

  // Controls.

  controls() {
    const { scatter } = this;
    const modes = [["pan", "Pan"], ["lasso", "Lasso"]].map(([mode, title]) =>
      h("button", { type: "button", dataset: { mode }, "aria-pressed": String(mode === "pan"), onclick: () => {
        scatter.isLassoMode = mode === "lasso";
        scatter.element.classList.toggle("is-lasso", scatter.isLassoMode);
        for (const each of modes) each.setAttribute("aria-pressed", String(each.dataset.mode === mode));
      } }, title));
    const zoom = (label, text, onclick) =>
      h("button", { type: "button", "aria-label": label, title: label, onclick }, text);
    this.idInput = h("input", { type: "number", name: "id", min: 0, max: this.values.total - 1, class: "cloud-id",
      onchange: () => {
        const id = Math.max(0, Math.trunc(Number(this.idInput.value)));
        if (this.idInput.value !== "") this.openNeighbours(id);
      } });
    const pointer = scatter.renderer && [
      h("div", { class: "button-group", role: "group", "aria-label": "Drag" }, modes),
      h("div", { class: "button-group", role: "group", "aria-label": "Zoom" },
        zoom("Zoom in", "+", () => scatter.zoom(1.5)), zoom("Zoom out", "−", () => scatter.zoom(1 / 1.5)),
        zoom("Show all points", "All", () => scatter.fit())),
      h("button", { type: "button", dataset: { action: "in-view" },
        onclick: () => this.choose(scatter.inView(), "in view") }, "Select in view"),
    ];
    this.picker = h("div", {});
    return h("div", { class: "controls" }, pointer, h("label", {}, "Example", this.idInput), this.picker);
  }

  /** Highlight a class: the others are faint. */
  highlight(position) {
    if (position < 0) position = null;
    this.state.class = position;
    const found = [];
    if (position !== null) {
      const { position: positions } = this.points;
      for (let i = 0; i < positions.length; i += 1) if (positions[i] === position) found.push(i);
      this.context.announce(`${countOf(found.length, "example")} of ${this.className(position)} highlighted`);
    }
    this.markIndices("class", Uint32Array.from(found), { ring: "text", grow: 1.5, least: 7, width: 1 });
    this.scatter.dim(position !== null);
    this.showLegend();
    this.remember();
  }

  showLegend() {
    if (!this.hasLabel) return;
    const { table } = this;
    const style = pointStyle();
    const isFew = table.length <= FEW_CLASSES;
    const shown = isFew ? Array.from({ length: table.length }, (_, i) => i) : [...table.bySize().subarray(0, LARGEST)];
    const { class: chosen } = this.state;
    if (chosen !== null && !shown.includes(chosen)) shown.push(chosen);
    const others = table.length - shown.length;
    const focused = document.activeElement?.dataset.position;
    fill(this.legend, shown.map((position) => h(
      "button",
      { type: "button", class: "chip", "aria-pressed": String(position === chosen), dataset: { position },
        onclick: () => this.highlight(position === chosen ? null : position) },
      h("span", { class: "chip-mark", "aria-hidden": "true",
        style: { color: classColour(position, table.length, style) } }, SHAPES[position % 4]),
      h("span", { class: "chip-name" }, className(table.name(position), 40)),
      h("span", { class: "muted" }, formatNumber(table.counts[position])),
    )), others > 0 && h("span", { class: "muted" }, `and ${countOf(others, "other class", "other classes")}`));
    this.legend.querySelector(`[data-position="${focused}"]`)?.focus();
    const onchange = debounce((id) => this.highlight(id === null ? -1 : table.position(id)), 0);
    fill(this.picker, classPicker(table, chosen === null ? null : table.ids[chosen], onchange));
  }
}
