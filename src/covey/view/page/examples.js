// Examples: an endless grid or table with conditions, zoom, selection and details.

import { classesOf, FoundIds, knownIds } from "./data.js";
import { button, className, countOf, debounce, display, errorBox, fill, formatNumber, h } from "./dom.js";
import { choice, classField } from "./fields.js";
import { DEFAULT_SIZE, Gallery, isTabular, sizeOf, zoomControl } from "./gallery.js";
import { MAX_SELECTED } from "./selection.js";

const OPERATORS = {
  contains: "contains", equals: "is", less: "is less than", greater: "is greater than", nan: "has NaN",
};

/** Return a parameter of the URL that must be one of some values; `initial` if the URL does not have it. */
function choiceOf(name, value, allowed, initial) {
  if (value === undefined) return initial;
  if (allowed.includes(value)) return value;
  const values = allowed.length ? `must be one of ${allowed.join(", ")}` : "there is none";
  throw new Error(`The ${name} in the URL is "${String(value).slice(0, 80)}"; ${values}.`);
}

/** Return the conditions of the URL: a JSON list of [feature, operator, value]. */
function parseConditions(text, features) {
  let found;
  try {
    found = JSON.parse(text || "[]").map(([feature, op, value]) => ({ feature, op, value: value ?? "" }));
  } catch {
    throw new Error("The conditions in the URL are not a JSON list of [feature, operator, value].");
  }
  for (const { feature, op } of found) {
    choiceOf("feature", feature, features.map(({ name }) => name));
    choiceOf("operator", op, features.find(({ name }) => name === feature).operators);
  }
  return found;
}

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const split = context.split(parameters);
  if (split.error) {
    const splits = context.splitChoice("examples", split.name);
    return void fill(root, h("h2", {}, "Examples"), splits, errorBox(split.error));
  }
  const table = split.classes === null ? null : await classesOf(split.name);
  if (signal.aborted) return;
  if (parameters.class !== undefined && !(table?.position(parameters.class) >= 0)) {
    throw new Error(`There is no class ${parameters.class} in this split.`);
  }
  new ExamplesView(root, parameters, context, split, table, signal);
}

class ExamplesView {
  constructor(root, parameters, context, split, table, signal) {
    Object.assign(this, { context, split, signal, list: knownIds([]) });
    this.searched = context.overview.features.filter(({ operators }) => operators.length > 0);
    this.usual = isTabular(context.overview) ? "table" : "grid";
    this.state = {
      class: parameters.class ?? null,
      where: parseConditions(parameters.where, this.searched),
      view: choiceOf("view", parameters.view, ["grid", "table"], this.usual),
      size: sizeOf(parameters),
      example: null,
    };
    this.searching = new AbortController();
    signal.addEventListener("abort", () => this.searching.abort());
    this.status = h("p", { class: "muted", role: "status" });
    this.problem = h("div", {});
    this.selectAll = button("Select all", () => this.select(), { "data-action": "select-all" });
    this.gallery = new Gallery(context, split.name, {
      size: this.state.size, isTable: this.state.view === "table", signal, label: "Examples",
      onshow: (id) => this.set("example", id),
    });
    root.classList.add("view-fixed");
    fill(root, h("h2", { class: "visually-hidden" }, "Examples"), this.filters(table), this.tools(),
      context.selection.bar(split.name, signal), this.problem, this.gallery.element);
    this.search();
    const { example = "" } = parameters;
    if (/^\d+$/.test(example) && Number(example) < split.records) this.gallery.open(Number(example));
  }

  filters(table) {
    const { context, split, state, searched } = this;
    const label = table?.length ? classField(table, state.class, (id) => {
      state.class = id;
      this.search();
    }) : h("span", {}, "Label: ", context.labelChoice(this.problem));
    const open = !matchMedia("(max-width: 640px)").matches || Boolean(this.conditions());
    return h("details", { class: "filters", open }, h("summary", {}, "Filter"), h("div", { class: "controls" },
      context.splitChoice("examples", split.name), label,
      searched.length > 0 && conditionFields(searched, state.where, debounce(() => this.search(), 300))));
  }

  tools() {
    const { state, gallery } = this;
    return h("div", { class: "controls gallery-tools" }, this.status, h("span", { class: "spring" }),
      choice("View", "view", [["grid", "grid"], ["table", "table"]], state.view, (view) => {
        gallery.update({ isTable: view === "table" });
        this.set("view", view);
      }),
      zoomControl(state.size, (size) => {
        gallery.update({ size });
        this.set("size", size);
      }), this.selectAll);
  }

  /** Return the conditions that are complete, as a JSON list; empty if there are none. */
  conditions() {
    const found = this.state.where.filter(({ op, value }) => op === "nan" || value !== "");
    const list = found.map(({ feature, op, value }) => [feature, op, op === "nan" ? null : value]);
    return list.length ? JSON.stringify(list) : "";
  }

  /** Change the state, and keep it in the URL. */
  set(name, value) {
    const { state, usual } = this;
    state[name] = value;
    this.context.replace("examples", {
      split: this.split.name, class: state.class, where: this.conditions(),
      view: state.view === usual ? null : state.view,
      size: state.size === DEFAULT_SIZE ? null : state.size, example: state.example,
    }, this.signal);
  }

  search() {
    const { split, state } = this;
    const where = this.conditions();
    this.set("class", state.class);
    this.searching.abort();
    this.searching = new AbortController();
    const filter = { split: split.name, class: state.class, where };
    this.list = where || state.class !== null
      ? new FoundIds(filter, () => this.progress(), this.searching.signal) : knownIds(split.records);
    this.progress();
  }

  progress() {
    const { list, state } = this;
    this.gallery.setList(list);
    fill(this.problem, list.error && errorBox(list.error));
    const count = countOf(list.length, "example");
    const isPart = !list.isDone && state.class !== null && !this.conditions();
    const parts = [list.isAll ? count : `${count} found`];
    if (list.isDone && list.length === 0) parts[0] = "No examples found";
    else if (isPart) parts[0] = `The first ${count} of the class`;
    else if (!list.isDone) parts.push(`${formatNumber(list.scanned)} of ${formatNumber(list.of)} searched`);
    if (list.corrupt) parts.push(`${countOf(list.corrupt, "corrupt record")} skipped`);
    this.status.textContent = list.error ? "" : parts.join(", ") + (list.running ? "…" : "");
    this.selectAll.disabled = list.length === 0;
  }

  /** Select all examples that are found. */
  async select() {
    const { context, split, list } = this;
    try {
      context.selection.add(split.name, await list.all(MAX_SELECTED));
      if (list.length > MAX_SELECTED) context.announce(`The first ${countOf(MAX_SELECTED, "example")} are selected.`);
    } catch (error) {
      if (!this.signal.aborted) fill(this.problem, errorBox(error));
    }
  }
}

/** Return the fields of conditions, all of which must hold; the items of `where` are changed. */
function conditionFields(features, where, onchange) {
  const element = h("div", { class: "conditions", role: "group", "aria-label": "Conditions" });

  function row(condition, number) {
    const { operators } = features.find(({ name }) => name === condition.feature);
    const isText = operators.includes("contains");
    const value = h("input", {
      type: "search", name: "value", value: condition.value, maxlength: 1000, "aria-label": "Value of the feature",
      hidden: condition.op === "nan", placeholder: isText ? "any text" : "any number",
      oninput: () => {
        condition.value = value.value;
        const isNumber = !isText || condition.op === "less" || condition.op === "greater";
        const isValid = !isNumber || (value.value.trim() === value.value && Number.isFinite(Number(value.value)));
        value.setAttribute("aria-invalid", String(!isValid));
        if (isValid) onchange();
      },
    });
    const operator = choice("", "op", operators.map((each) => [each, OPERATORS[each]]), condition.op, (op) => {
      condition.op = op;
      update();
      onchange();
    });
    const name = className(condition.feature, 40);
    operator.querySelector("select").setAttribute("aria-label", `Condition on ${name}`);
    return h("div", { class: "condition" }, h("strong", {}, name), operator, value, button("×", () => {
      where.splice(number, 1);
      update();
      onchange();
    }, { "aria-label": `Remove the condition on ${name}` }));
  }

  function update() {
    const names = [["", where.length ? "and…" : "any…"], ...features.map(({ name }) => [name, display(name, 40)])];
    fill(element, where.map(row), choice("Where", "feature", names, "", (feature) => {
      where.push({ feature, op: features.find(({ name }) => name === feature).operators[0], value: "" });
      update();
      element.querySelector(".condition:last-of-type input")?.focus();
    }));
  }

  update();
  return element;
}
