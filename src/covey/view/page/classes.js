// Classes: a list of all classes with some of their examples.

import { hash } from "./app.js";
import { exampleCard, whenLoaded } from "./cells.js";
import { classesOf, FoundIds, knownIds } from "./data.js";
import { openExample } from "./dialog.js";
import { className, countOf, debounce, errorBox, fill, formatNumber, h } from "./dom.js";
import { VirtualGrid } from "./grid.js";

const ITEM = 84;
const NARROW = 652;
const WAIT_MS = 80; // a row that is scrolled past loads nothing

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const split = context.split(parameters);
  const splits = context.splitChoice("classes", split.name);
  const problem = h("div", {});
  if (split.error || split.classes === null) {
    const none = [h("p", { class: "muted" }, "The dataset has no label feature."),
      h("p", {}, "Label: ", context.labelChoice(problem)), problem];
    return void fill(root, h("h2", {}, "Classes"), splits, split.error ? errorBox(split.error) : none);
  }
  root.classList.add("view-fixed");
  const table = await classesOf(split.name);
  if (signal.aborted) return;
  const status = h("p", { class: "muted", role: "status" });
  const scroller = h("div", { class: "class-list" });
  const most = table.length ? table.counts[table.bySize()[0]] : 1;
  let positions = [];
  const grid = new VirtualGrid(scroller, {
    label: "Classes", signal, rowHeight: (width) => (width < NARROW ? 192 : 140),
    render: (index) => classRow(context, split.name, table, positions[index], most, signal),
  });
  context.selection.follow(scroller, split.name, signal);

  function update() {
    context.replace("classes", { split: split.name, query: search.value }, signal);
    positions = table.search(search.value);
    grid.clear(true);
    grid.setCount(positions.length);
    const all = countOf(table.length, "class", "classes");
    status.textContent = positions.length === table.length ? all : `${formatNumber(positions.length)} of ${all}`;
  }

  const search = h("input", { type: "search", name: "query", value: parameters.query ?? "", maxlength: 1000,
    placeholder: "part of a name", oninput: debounce(update, 120) });
  fill(root, h("h2", { class: "visually-hidden" }, "Classes"),
    h("div", { class: "controls" }, splits, h("label", {}, "Find", search), status),
    context.selection.bar(split.name, signal), scroller);
  update();
}

function classRow(context, split, table, position, most, signal) {
  const [id, count, name] = [table.ids[position], table.counts[position], table.name(position)];
  const strip = h("div", { class: "strip", style: { "--cell": `${ITEM}px`, "--wide": context.cellRatio } });
  setTimeout(() => strip.isConnected && fillStrip(strip, context, split, id, signal), WAIT_MS);
  return h("div", { class: "class-row", dataset: { class: id } },
    h("div", { class: "class-facts" },
      h("a", { href: hash("examples", { split, class: id }), "data-focus": "", title: className(name, 500) },
        className(name, 60)),
      h("span", { class: "muted" }, countOf(count, "example"), name === String(id) ? "" : ` · id ${id}`),
      h("span", { class: "class-bar", "aria-hidden": "true", style: { "--share": count / most } })),
    strip);
}

/** Load as many examples of a class as there is room for. */
async function fillStrip(strip, context, split, id, signal) {
  const ids = new FoundIds({ split, class: id }, () => {}, signal);
  const room = Math.max(1, Math.floor(strip.clientWidth / (ITEM * context.cellRatio + 6)));
  const found = await ids.all(room).catch((error) => fill(strip, !signal.aborted && errorBox(error)) && []);
  if (signal.aborted || !found.length) return;
  const options = { size: ITEM * context.cellRatio, hasClass: false,
    onopen: (each) => openExample(context, split, each, { ids: knownIds(found) }) };
  fill(strip, found.map((each) => h("div", { class: "strip-cell" },
    whenLoaded(split, each, (example) => exampleCard(context, split, example, options)))));
}
