// Embeddings: a point cloud of the examples, coloured by their class or by a feature, and a list beside it.

import { getArrays } from "./api.js";
import { classesOf } from "./data.js";
import { button, className, countOf, display, errorBox, fill, h } from "./dom.js";
import { DEFAULT_NEIGHBOURS, ExampleList, PANELS } from "./embeddings_list.js";
import { choice, classField, integerField } from "./fields.js";
import { FAINT, hue, HUGE, LARGE, NORMAL, rgb, Scatter } from "./scatter.js";

const MAX_NAMES = 24; // in the legend
const MAX_HUES = 256;
const KEYS = "Drag to pan, wheel to zoom, shift and drag to draw a lasso, click for the nearest neighbours. "
  + "Keys: arrows pan, + and - zoom, 0 shows all, Enter picks the point at the centre.";

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const { embeddings } = context.overview;
  if (!embeddings) throw new Error("There are no embeddings. `covey view data --embeddings emb.npy` shows them.");
  fill(root, h("h2", {}, "Embeddings"),
    h("p", { class: "muted", role: "status" }, `Projecting ${countOf(embeddings.points, "example")}…`));
  const [points, table] = await Promise.all([getArrays("points", {}, signal), classesOf(embeddings.split)]);
  if (!signal.aborted) new EmbeddingsView(root, parameters, context, points, table, signal);
}

class EmbeddingsView {
  constructor(root, parameters, context, points, table, signal) {
    Object.assign(this, { context, points, table, signal, split: points.split, colouring: null, chosen: null });
    this.hasLabel = points.label !== null && table.length > 0;
    const { id = "", panel, class: shown, colour = "", k } = parameters;
    this.state = {
      panel: panel in PANELS ? panel : id ? "neighbours" : "examples",
      id: /^\d+$/.test(id) && Number(id) < points.total ? Number(id) : null,
      class: this.hasLabel && table.position(shown) >= 0 ? shown : null, colour, k: Number(k) || DEFAULT_NEIGHBOURS,
    };
    const toIds = (indices) => Array.from(indices, (each) => each * points.stride);
    this.list = new ExampleList(context, this.split, this.state, {
      signal, hasLabel: this.hasLabel, isCosine: points.is_cosine,
      classAt: (position, limit) => this.classAt(position, limit), onchange: () => this.update(),
    });
    this.scatter = new Scatter(points.x, points.y, {
      label: `Point cloud of ${countOf(points.x.length, "example")}`, paint: () => this.paint(), signal,
      describe: (index) => `#${index * points.stride}, ${this.classAt(points.position[index])}`,
      announce: (text) => context.announce(text),
      onpick: (index) => this.list.openNeighbours(index * points.stride),
      onlasso: (indices) => this.list.choose(toIds(indices), "inside the lasso"),
    });
    this.inView = () => this.list.choose(toIds(this.scatter.inside()), "in view");
    this.legend = h("div", { class: "controls cloud-legend", role: "group", "aria-label": "Colours" });
    context.selection.addEventListener("change", () => this.scatter.repaint(), { signal });
    fill(root, h("h2", { class: "visually-hidden" }, "Embeddings"), h("p", { class: "muted" }, describe(points)),
      this.controls(), this.legend, context.selection.bar(this.split, signal),
      h("div", { class: "cloud-columns" },
        h("div", { class: "cloud-side" }, this.scatter.element,
          h("p", { class: "muted small", id: "cloud-keys" }, KEYS)),
        this.list.element));
    if (this.state.class !== null) this.showClass(this.state.class);
    else if (colour) this.colourBy(colour);
    this.list.open(this.state.panel);
  }

  /** Return the name of the class at a position of the class table. */
  classAt(position, limit = 60) {
    const isKnown = this.hasLabel && position !== null && position < this.table.length;
    return isKnown ? className(this.table.name(position), limit, this.table.ids[position]) : "no class";
  }

  /** Draw what has changed, and keep it in the URL. */
  update() {
    this.scatter?.repaint();
    const { panel, id, class: shown, colour, k } = this.state;
    const usual = id === null ? "examples" : "neighbours";
    this.context.replace("embeddings", { panel: panel === usual ? null : panel, id, class: shown,
      colour: shown === null ? colour : null, k: k === DEFAULT_NEIGHBOURS ? null : k }, this.signal);
  }

  /** Return the colour and the level of each point. */
  paint() {
    const { points: { x, stride }, colouring, chosen, state, list } = this;
    const styles = new Uint32Array(x.length);
    const grey = rgb("var(--strong-line)");
    const count = colouring?.count ?? 0;
    const colours = Array.from({ length: Math.min(count, MAX_HUES) }, (_, code) => rgb(hue(code, count)));
    for (let i = 0; i < styles.length; i += 1) {
      const code = colouring?.codes[i];
      const level = chosen === null ? NORMAL : code === chosen ? LARGE : FAINT;
      styles[i] = (code < count ? colours[code % MAX_HUES] : grey) + level;
    }
    const mark = (ids, colour, level) => {
      const found = rgb(colour) + level;
      for (const id of ids) if (id % stride === 0) styles[id / stride] = found;
    };
    mark(this.context.selection.set(this.split), "var(--accent)", LARGE);
    if (state.panel === "neighbours") mark(list.ids, "var(--second)", LARGE);
    if (state.panel === "mislabelled") mark(list.ids, "var(--error)", LARGE);
    if (state.id !== null && state.panel === "neighbours") mark([state.id], "var(--text)", HUGE);
    return styles;
  }

  /** Colour the points by a feature: the label, another one, or none if it is empty. */
  async colourBy(feature) {
    const { points, table, legend } = this;
    Object.assign(this, { chosen: null, colouring: null });
    this.state.colour = feature;
    try {
      if (feature === points.label) {
        this.colouring = { codes: points.position, count: table.length, name: (code) => this.classAt(code) };
      } else if (feature) {
        const { code: codes, names } = await getArrays("colours", { feature }, this.signal);
        this.colouring = { codes, count: names.length, name: (code) => className(names[code], 60) };
      }
      this.showLegend();
    } catch (error) {
      if (!this.signal.aborted) fill(legend, errorBox(error));
    }
  }

  /** Make the points of one colour prominent, or no longer. */
  highlight(code) {
    this.chosen = code === this.chosen ? null : code;
    this.showLegend();
  }

  async showClass(id) {
    this.state.class = id === null ? null : String(id);
    await this.colourBy(id === null ? "" : this.points.label);
    if (id !== null) this.highlight(this.table.position(String(id)));
    this.colourField.querySelector("select").value = this.state.colour;
  }

  showLegend() {
    const { colouring, chosen, points, table } = this;
    this.update();
    const count = colouring?.count ?? 0;
    const codes = count > MAX_NAMES && this.state.colour === points.label ? [...table.bySize().subarray(0, MAX_NAMES)]
      : Array.from({ length: Math.min(count, MAX_NAMES) }, (_, i) => i);
    if (chosen !== null && !codes.includes(chosen)) codes.push(chosen);
    const chip = (code) => button([h("span", { "aria-hidden": "true", style: { color: hue(code, count) } }, "●"),
      colouring.name(code)], () => this.highlight(code), { class: "chip", "aria-pressed": String(code === chosen) });
    const others = count - codes.length;
    fill(this.legend, codes.map(chip), others > 0 && h("span", { class: "muted" }, `and ${countOf(others, "other")}`));
  }

  controls() {
    const { scatter, points, state, table } = this;
    const modes = [["pan", "Pan"], ["lasso", "Lasso"]].map(([mode, title]) => button(title, () => {
      scatter.isLassoMode = mode === "lasso";
      for (const each of modes) each.setAttribute("aria-pressed", String(each.dataset.mode === mode));
    }, { "data-mode": mode, "aria-pressed": String(mode === "pan") }));
    const zoom = (text, title, onclick) => button(text, onclick, { "aria-label": title, title });
    const group = (label, ...buttons) =>
      h("div", { class: "button-group", role: "group", "aria-label": label }, buttons);
    const { features } = this.context.overview.embeddings;
    const names = [["", "nothing"], ...features.map((name) => [name, display(name, 40)])];
    this.colourField = choice("Colour by", "colour", names, state.colour, (feature) => {
      state.class = null;
      this.colourBy(feature);
    });
    const example = integerField("Example", "id", "", { low: 0, high: points.total - 1 }, (id) =>
      id !== "" && this.list.openNeighbours(Number(id)));
    return h("div", { class: "controls" }, scatter.gl && [group("Drag", modes),
      group("Zoom", zoom("+", "Zoom in", () => scatter.zoom(1.5)), zoom("−", "Zoom out", () => scatter.zoom(1 / 1.5)),
        zoom("All", "Show all points", () => scatter.fit())), button("Select in view", this.inView)],
    example, this.colourField, this.hasLabel && classField(table, state.class, (id) => this.showClass(id)));
  }
}

/** Return a sentence about the points. */
function describe({ dimensions, variance, total, stride, axes_rows: rows, split }) {
  const shares = variance?.map((each) => `${(100 * each).toFixed(1)}%`);
  return `${[
    `${countOf(total, "example")} of ${display(split, 80)}`,
    countOf(dimensions, "dimension"),
    variance && `projected to two by PCA (${shares.join(" and ")} of the variance)`,
    variance && rows < total && `axes of a sample of ${countOf(rows, "example")}`,
    stride > 1 && `one of ${stride} examples is shown`,
  ].filter(Boolean).join("; ")}.`;
}
