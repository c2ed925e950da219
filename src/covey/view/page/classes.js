// Classes: a list of all classes with some of their examples, and the page of one class.

import { getJson } from "./api.js";
import { errorBox } from "./app.js";
import { kindOf, mainFeature, valueElement } from "./cells.js";
import { openExample } from "./dialog.js";
import { className, countOf, debounce, display, fill, formatNumber, h } from "./dom.js";
import { choice, splitChoice } from "./examples.js";
import { DEFAULT_SIZE, Gallery, MAX_SELECTED, openFromUrl, sizeOf, zoomControl } from "./gallery.js";
import { VirtualGrid } from "./grid.js";
import { findIds } from "./ids.js";
import { choiceOf, hash, replace } from "./router.js";
import { examplesOf } from "./store.js";

const ORDERS = { id: "id", name: "name", most: "most examples", fewest: "fewest examples" };
const NARROW = 620;
const MAX_STRIP = 40; // examples of a class that are loaded
const FACTS_WIDTH = 316;
const ITEM_WIDTH = 62;
const MAX_KEPT = 2000;
const MAX_REQUESTS = 4;
const WAIT_MS = 80;

/** Show the view: one class if the URL has one. */
export async function show(root, parameters, context, signal) {
  const split = context.split(parameters);
  const choose = (name) => {
    window.location.hash = hash("classes", { split: name });
  };
  const splits = split && splitChoice(context, split.name, choose);
  if (!split || split.error || split.classes === null) {
    const text = split?.error ? errorBox(split.error) : h("p", { class: "muted" },
      "This split has no label feature. Name one with --label, or with label= in Python.");
    return void fill(root, h("h2", {}, "Classes"), splits, text);
  }
  root.classList.add("view-fixed");
  const table = await context.classes(split.name);
  if (signal.aborted) return;
  if (parameters.class !== undefined) showClass(root, parameters, context, signal, split, table);
  else showList(root, parameters, context, signal, split, table, splits);
}

function showList(root, parameters, context, signal, split, table, splits) {
  const state = { query: parameters.query ?? "", order: choiceOf(parameters, "order", Object.keys(ORDERS)) };
  const status = h("p", { class: "muted", role: "status", dataset: { status: "" } });
  const scroller = h("div", { class: "class-list" });
  const strips = new Strips(context, split.name, signal);
  let positions = [];
  let most = 1;
  for (const count of table.counts) if (count > most) most = count;

  const row = (index) => classRow(split.name, table, positions[index], most, strips);
  const grid = new VirtualGrid(scroller, {
    count: 0, rowHeight: (width) => (width < NARROW ? 118 : 76), label: "Classes", render: row, signal,
    onRange: (first, last) => strips.want(Array.from(positions.slice(first, last), (each) => table.ids[each])),
  });

  function update() {
    if (signal.aborted) return;
    replace("classes", { split: context.overview.splits.length > 1 ? split.name : null, query: state.query,
      order: state.order === "id" ? null : state.order });
    positions = ordered(table, state);
    grid.clear();
    grid.setCount(positions.length);
    grid.moveTo(0);
    const all = positions.length === table.length;
    status.textContent = all ? countOf(table.length, "class", "classes")
      : `${formatNumber(positions.length)} of ${countOf(table.length, "class", "classes")}`;
  }

  const later = debounce(update, 120);
  const search = h("input", {
    type: "search", name: "query", value: state.query, placeholder: "part of a name", maxlength: 1000,
    oninput: () => {
      state.query = search.value;
      later();
    },
  });
  fill(
    root,
    h("h2", { class: "visually-hidden" }, "Classes"),
    h("div", { class: "controls" }, splits, h("label", {}, "Find", search),
      choice("Order", "order", Object.entries(ORDERS), state.order, (order) => {
        state.order = order;
        update();
      }), status),
    scroller,
  );
  update();
}

/** Return the positions of the classes that match, in order. */
function ordered(table, { query, order }) {
  const all = order === "name" ? table.byName() : order === "id" ? null : table.bySize();
  const found = query ? table.search(query) : null;
  let positions = all ?? found ?? Uint32Array.from(table.ids, (_, position) => position);
  if (all && found) {
    const isFound = new Uint8Array(table.length);
    for (const position of found) isFound[position] = 1;
    positions = all.filter((position) => isFound[position]);
  }
  return order === "fewest" ? positions.slice().reverse() : positions;
}

function classRow(split, table, position, most, strips) {
  const [id, count, name] = [table.ids[position], table.counts[position], table.name(position)];
  const bar = h("span", { class: "class-bar", "aria-hidden": "true" });
  bar.style.setProperty("--share", String(count / most));
  return h(
    "div",
    { class: "class-row", dataset: { class: id } },
    h("div", { class: "class-facts" },
      h("a", { href: hash("classes", { split, class: id }), dataset: { focus: "" }, title: className(name, 500) },
        className(name, 120)),
      h("span", { class: "muted" }, countOf(count, "example"), name === String(id) ? "" : ` · id ${id}`), bar),
    strips.element(id),
  );
}

/** The examples of the classes in view: loaded when scrolling pauses, a few requests at a time. */
class Strips {
  constructor(context, split, signal) {
    this.context = context;
    this.split = split;
    this.signal = signal;
    this.kept = new Map(); // class id -> record ids
    this.queue = [];
    this.running = 0;
    this.elements = new Map(); // class id -> the element in view
    const page = document.documentElement.clientWidth;
    const width = page < NARROW ? page : page - FACTS_WIDTH;
    this.count = Math.max(4, Math.min(MAX_STRIP, Math.floor(width / ITEM_WIDTH)));
    this.start = debounce(() => this.next(), WAIT_MS);
  }

  /** Return the element of a class, which is filled when its examples are loaded. */
  element(id) {
    const element = h("div", { class: "strip" });
    this.elements.set(id, element);
    if (this.kept.has(id)) this.fill(id, this.kept.get(id));
    return element;
  }

  /** Load the examples of these classes; those that were wanted before are out of view. */
  want(ids) {
    this.queue = ids.filter((id) => !this.kept.has(id));
    const inView = new Set(ids);
    for (const id of this.elements.keys()) if (!inView.has(id)) this.elements.delete(id);
    this.start();
  }

  async next() {
    while (this.running < MAX_REQUESTS && this.queue.length && !this.signal.aborted) {
      const id = this.queue.shift();
      this.running += 1;
      this.load(id).finally(() => {
        this.running -= 1;
        this.next();
      });
    }
  }

  async load(id) {
    try {
      const { ids } = await getJson("find", { split: this.split, class: id, limit: this.count }, this.signal);
      this.kept.set(id, ids);
      if (this.kept.size > MAX_KEPT) this.kept.delete(this.kept.keys().next().value);
      await this.fill(id, ids);
    } catch (error) {
      const element = this.elements.get(id);
      if (element && !this.signal.aborted) fill(element, h("span", { class: "muted" }, display(error.message, 200)));
    }
  }

  async fill(id, ids) {
    const examples = await Promise.all(ids.map((each) => examplesOf(this.split).load(each, true)));
    const element = this.elements.get(id);
    if (element && !this.signal.aborted) fill(element, examples.map((example) => this.item(example, ids)));
  }

  item(example, ids) {
    const name = example.error ? null : mainFeature(example);
    const kind = name === null ? "error" : kindOf(example.values[name]);
    // A plot or a player is not inside a button; only images and strings are.
    const value = kind === "image" || kind === "string" || kind === "number"
      ? valueElement(this.context, this.split, example, name, { size: 56 })
      : h("span", {}, `#${example.id}`);
    const open = () => openExample(this.context, this.split, example.id, { ids });
    const label = `Example ${example.id}`;
    return h("button", { type: "button", class: `strip-item strip-${kind}`, "aria-label": label, onclick: open },
      example.error ? h("span", { class: "card-error" }, "corrupt") : value);
  }
}

function showClass(root, parameters, context, signal, split, table) {
  const position = table.position(parameters.class);
  const id = table.ids[position];
  const back = h("a", { href: hash("classes", { split: split.name }) }, "All classes");
  if (position < 0) return void fill(root, back, errorBox(`There is no class ${parameters.class} in this split.`));
  const name = table.name(position);
  const state = { size: sizeOf(parameters), example: null };
  const keep = () => {
    if (signal.aborted) return;
    const size = state.size === DEFAULT_SIZE ? null : state.size;
    const shown = context.overview.splits.length > 1 ? split.name : null;
    replace("classes", { split: shown, class: id, size, example: state.example });
  };
  const gallery = new Gallery(context, split.name, {
    size: state.size, signal, hasClass: false, label: `Examples of ${className(name, 80)}`,
    onshow: (example) => {
      state.example = example;
      keep();
    },
  });
  const problem = h("div", {});
  const list = findIds({ split: split.name, class: id }, () => {
    gallery.setList(list);
    fill(problem, list.error && errorBox(list.error));
  }, signal, table.counts[position]);
  const near = (step, text) => (table.ids[position + step] === undefined ? null
    : h("a", { href: hash("classes", { split: split.name, class: table.ids[position + step] }) }, text));
  const selectAll = async () => {
    try {
      context.selection.add(split.name, await list.all(MAX_SELECTED));
    } catch (error) {
      if (!signal.aborted) fill(problem, errorBox(error));
    }
  };
  fill(
    root,
    h("nav", { class: "controls", "aria-label": "Classes" }, back, near(-1, "Previous class"), near(1, "Next class")),
    h("div", { class: "controls gallery-tools" },
      h("h2", { class: "class-title", title: className(name, 1000) }, className(name, 300)),
      h("span", { class: "muted" }, `${countOf(table.counts[position], "example")} · id ${id}`),
      h("span", { class: "spring" }),
      h("a", { href: hash("examples", { split: split.name, class: id }) }, "Filter these"),
      zoomControl(state.size, (size) => {
        state.size = size;
        gallery.update({ size });
        keep();
      }),
      h("button", { type: "button", dataset: { action: "select-all" }, onclick: selectAll }, "Select all")),
    context.selection.bar(split.name, signal),
    problem,
    gallery.element,
  );
  gallery.setList(list);
  openFromUrl(gallery, parameters, split);
}
