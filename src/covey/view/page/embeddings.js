// Embeddings: a point cloud of the examples, and a list of those that are chosen in it, of the nearest
// neighbours of one, or of those whose label is likely wrong.

import { getArrays, stream } from "./api.js";
import { classesOf, knownIds } from "./data.js";
import { button, className, countOf, display, errorBox, fill, formatNumber, h } from "./dom.js";
import { choice, classField, integerField } from "./fields.js";
import { Gallery } from "./gallery.js";
import { FAINT, hue, HUGE, LARGE, NORMAL, rgb, Scatter } from "./scatter.js";

const PANELS = { examples: "Examples", neighbours: "Neighbours", mislabelled: "Likely mislabelled" };
const LEAST_SHARE = 0.5; // of the neighbours that have another class
const DEFAULT_NEIGHBOURS = 10;
const MAX_NAMES = 24; // in the legend
const MAX_HUES = 256;
const KEYS = "Drag to pan, wheel to zoom, shift and drag to draw a lasso, click for the nearest neighbours. "
  + "Keys: arrows pan, + and - zoom, 0 shows all, Enter picks the point at the centre.";

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const { embeddings, label } = context.overview;
  if (!embeddings) throw new Error("There are no embeddings. `covey view data --embeddings emb.npy` shows them.");
  const { split } = embeddings;
  fill(root, h("h2", {}, "Embeddings"),
    h("p", { class: "muted", role: "status" }, `Projecting ${countOf(embeddings.points, "example")}…`));
  const [points, table] = await Promise.all([getArrays("points", {}, signal), classesOf(split)]);
  const { stride, total } = points;
  const hasLabel = points.label !== null && table.length > 0;
  const state = {
    panel: parameters.panel in PANELS ? parameters.panel : parameters.id ? "neighbours" : "examples",
    id: /^\d+$/.test(parameters.id) && Number(parameters.id) < total ? Number(parameters.id) : null,
    class: hasLabel && table.position(parameters.class) >= 0 ? parameters.class : null,
    colour: parameters.colour ?? "", k: Number(parameters.k) || DEFAULT_NEIGHBOURS,
  };
  let colouring = null; // {codes, count, name(code)}
  let chosen = null; // the code of which points are prominent
  let marked = []; // ids of the list
  let rows = []; // of /api/disagreements
  let running = new AbortController();
  signal.addEventListener("abort", () => running.abort());

  const classAt = (position, limit = 60) => (hasLabel && position !== null && position < table.length
    ? className(table.name(position), limit, table.ids[position]) : "no class");
  const scatter = new Scatter(points.x, points.y, {
    label: `Point cloud of ${countOf(points.x.length, "example")}`, paint, signal,
    describe: (index) => `#${index * stride}${hasLabel ? `, ${classAt(points.position[index])}` : ""}`,
    announce: (text) => context.announce(text),
    onpick: (index) => openNeighbours(index * stride),
    onlasso: (indices) => choose(indices, "inside the lasso"),
  });
  context.selection.addEventListener("change", () => scatter.repaint(), { signal });

  /** Return the colour and the level of each point. */
  function paint() {
    const styles = new Uint32Array(points.x.length);
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
    mark(context.selection.set(split), "var(--accent)", LARGE);
    if (state.panel === "neighbours") mark(marked, "var(--second)", LARGE);
    if (state.panel === "mislabelled") mark(marked, "var(--error)", LARGE);
    if (state.id !== null && state.panel === "neighbours") mark([state.id], "var(--text)", HUGE);
    return styles;
  }

  // The list.

  const about = h("p", { class: "muted", role: "status" });
  const tools = h("div", { class: "controls" });
  let noteOf = () => null; // text about an example
  const note = (id) => h("div", { class: "card-note" }, noteOf(id),
    button("↗", () => openNeighbours(id), { class: "small", "aria-label": `Neighbours of example ${id}` }));
  const gallery = new Gallery(context, split, { size: 96, label: "Chosen examples", signal, note });

  function list(ids, text, note = () => null) {
    marked = ids;
    noteOf = note;
    about.textContent = text;
    gallery.setList(knownIds(ids));
    scatter.repaint();
  }

  /** Show examples, and add them to the selection. */
  function choose(indices, how) {
    const ids = Array.from(indices, (each) => each * stride);
    context.selection.add(split, ids);
    openPanel("examples", () => list(ids, `${countOf(ids.length, "example")} ${how}; added to the selection.`));
  }

  /** Show an example and its nearest neighbours. */
  function openNeighbours(id) {
    state.id = id;
    openPanel("neighbours");
  }

  async function findNeighbours(mine) {
    if (state.id === null) return list([], "Click a point, or enter the id of an example.");
    const { id } = state;
    list([id], "Comparing…");
    for await (const part of stream("neighbours", { id, k: state.k }, mine)) {
      const found = new Map(part.neighbours.map((each) => [each.id, each]));
      const how = points.is_cosine ? "cosine similarity" : "distance";
      const same = part.neighbours.filter((each) => each.class === part.class).length;
      const text = part.scanned < part.total
        ? `Compared with ${formatNumber(part.scanned)} of ${countOf(part.total, "example")}…`
        : `Example ${id}, ${classAt(part.class)}. Nearest by ${how}`
          + (hasLabel ? `; ${same} of ${found.size} have the same class.` : ".");
      list([id, ...found.keys()], text, (each) => {
        if (each === id) return "this example";
        const { similarity, distance, class: other } = found.get(each);
        const text = similarity?.toFixed(3) ?? formatNumber(distance);
        return other === part.class ? text : h("span", { title: "another class" }, `${text} ≠`);
      });
    }
  }

  function listRows(text) {
    rows.sort((a, b) => b.share - a.share || a.id - b.id);
    const found = new Map(rows.filter((row) => row.share >= LEAST_SHARE).map((row) => [row.id, row]));
    list([...found.keys()], text, (id) => {
      const { neighbours, other, share: part } = found.get(id);
      const title = `${Math.round(part * neighbours.length)} of ${neighbours.length} neighbours: ${classAt(other)}`;
      return h("span", { title }, `→ ${classAt(other, 12)}`);
    });
  }

  async function findMislabelled(mine) {
    rows = [];
    list([], "Comparing labels…");
    let text = "";
    for await (const part of stream("disagreements", { k: state.k }, mine)) {
      rows.push(...part.rows);
      const of = `${countOf(part.total, "example")}${part.sampled ? " (a sample by class)" : ""}`;
      text = `${part.scanned < part.total ? `${formatNumber(part.scanned)} of ` : ""}${of} compared; `
        + `${formatNumber(rows.length)} have neighbours of another class more often than of their own.`;
      if (gallery.grid.top === 0) listRows(text); // else the list would move while it is read
    }
    listRows(text);
  }

  const tabs = Object.entries(PANELS).filter(([name]) => hasLabel || name !== "mislabelled").map(([name, title]) =>
    button(title, () => openPanel(name), { "data-panel": name }));

  async function openPanel(name, open = null) {
    const isOther = name !== state.panel || open;
    state.panel = name;
    for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab.dataset.panel === name));
    fill(tools, name !== "examples" && [
      integerField("Neighbours", "k", state.k, { high: 100 }, (k) => {
        state.k = Number(k) || DEFAULT_NEIGHBOURS;
        openPanel(name);
      }),
      button("Select all listed", () => context.selection.add(split, marked), { "data-action": "select-listed" })]);
    if (isOther || name !== "examples") running.abort();
    running = new AbortController();
    const mine = running.signal;
    remember();
    try {
      if (open) open();
      else if (name === "neighbours") await findNeighbours(mine);
      else if (name === "mislabelled") await findMislabelled(mine);
      else list([], "Draw a lasso with shift and drag, or select all points in view, to see their examples here.");
    } catch (error) {
      if (!mine.aborted) fill(about, errorBox(error));
    }
  }

  // Colours.

  const legend = h("div", { class: "controls cloud-legend", role: "group", "aria-label": "Colours" });

  async function colourBy(feature) {
    state.colour = feature;
    chosen = null;
    if (feature === "") colouring = null;
    else if (feature === label) colouring = { codes: points.position, count: table.length, name: classAt };
    else {
      const { code, names } = await getArrays("colours", { feature }, signal);
      colouring = { codes: code, count: names.length, name: (each) => className(names[each], 60) };
    }
    showColours();
  }

  /** Make the points of one colour prominent. */
  function highlight(code) {
    chosen = code === chosen ? null : code;
    showColours();
  }

  function showColours() {
    remember();
    scatter.repaint();
    const count = colouring?.count ?? 0;
    const codes = count > MAX_NAMES && state.colour === label ? [...table.bySize().subarray(0, MAX_NAMES)]
      : Array.from({ length: Math.min(count, MAX_NAMES) }, (_, i) => i);
    if (chosen !== null && !codes.includes(chosen)) codes.push(chosen);
    const others = count - codes.length;
    fill(legend, codes.map((code) => button([h("span", { class: "chip-mark", "aria-hidden": "true",
      style: { color: hue(code, count) } }, "●"), colouring.name(code)], () => highlight(code),
    { class: "chip", "aria-pressed": String(code === chosen), "data-code": code })),
    others > 0 && h("span", { class: "muted" }, `and ${countOf(others, "other")}`));
  }

  async function showClass(id) {
    state.class = id === null ? null : String(id);
    await colourBy(id === null ? "" : label);
    if (id !== null) highlight(table.position(String(id)));
    colourField.querySelector("select").value = state.colour;
  }

  /** Keep what is chosen in the URL. */
  function remember() {
    const { panel, id, class: shown, colour, k } = state;
    context.replace("embeddings", { panel: panel === (id === null ? "examples" : "neighbours") ? null : panel, id,
      class: shown, colour: shown === null ? colour : null, k: k === DEFAULT_NEIGHBOURS ? null : k }, signal);
  }

  // Controls.

  const modes = [["pan", "Pan"], ["lasso", "Lasso"]].map(([mode, title]) => button(title, () => {
    scatter.isLassoMode = mode === "lasso";
    for (const each of modes) each.setAttribute("aria-pressed", String(each.dataset.mode === mode));
  }, { "data-mode": mode, "aria-pressed": String(mode === "pan") }));
  const zoom = (text, title, onclick) => button(text, onclick, { "aria-label": title, title });
  const names = [["", "nothing"], ...embeddings.features.map((name) => [name, display(name, 40)])];
  const colourField = choice("Colour by", "colour", names, state.colour, (feature) => {
    state.class = null;
    colourBy(feature);
  });
  fill(root, h("h2", { class: "visually-hidden" }, "Embeddings"),
    h("p", { class: "muted" }, describe(points)),
    h("div", { class: "controls" }, scatter.gl && [
      h("div", { class: "button-group", role: "group", "aria-label": "Drag" }, modes),
      h("div", { class: "button-group", role: "group", "aria-label": "Zoom" },
        zoom("+", "Zoom in", () => scatter.zoom(1.5)), zoom("−", "Zoom out", () => scatter.zoom(1 / 1.5)),
        zoom("All", "Show all points", () => scatter.fit())),
      button("Select in view", () => choose(scatter.inside(), "in view"))],
    integerField("Example", "id", "", { low: 0, high: total - 1 }, (id) => id !== "" && openNeighbours(Number(id))),
    colourField, hasLabel && classField(table, state.class, showClass)),
    legend, context.selection.bar(split, signal),
    h("div", { class: "cloud-columns" },
      h("div", { class: "cloud-side" }, scatter.element, h("p", { class: "muted small", id: "cloud-keys" }, KEYS)),
      h("section", { class: "panel cloud-panel", "aria-label": "Chosen examples" },
        h("div", { class: "controls", role: "group", "aria-label": "Lists" }, tabs), tools, about, gallery.element)));
  if (state.class !== null) showClass(state.class);
  else if (state.colour) colourBy(state.colour);
  openPanel(state.panel);
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
