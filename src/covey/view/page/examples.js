// Examples: an endless grid with filters, zoom, selection and details.

import { errorBox } from "./app.js";
import { classPicker } from "./classpicker.js";
import { countOf, debounce, display, fill, formatNumber, h } from "./dom.js";
import { DEFAULT_SIZE, Gallery, MAX_SELECTED, openFromUrl, sizeOf, zoomControl } from "./gallery.js";
import { AllIds, findIds } from "./ids.js";
import { choiceOf, replace } from "./router.js";

const OPERATORS = {
  contains: "contains", equals: "is", less: "is less than", greater: "is greater than", nan: "has NaN",
};
const NARROW = "(max-width: 640px)";

/** Return a field of choices: pairs of a value and a text. */
export function choice(label, name, options, value, onchange) {
  const select = h("select", { name, onchange: () => onchange(select.value) },
    options.map(([each, text]) => h("option", { value: each, selected: each === value }, text)));
  return h("label", {}, label, select);
}

/** Return the field that chooses a split; null if there is one. */
export function splitChoice(context, split, onchange) {
  const names = context.overview.splits.map(({ name }) => [name, display(name, 60)]);
  return names.length > 1 ? choice("Split", "split", names, split, onchange) : null;
}

/** Return whether examples are filtered by a value. */
function hasCondition(state) {
  return state.feature !== null && (state.op === "nan" || state.value !== "");
}

/** Return whether the value of a condition is valid: some operators compare numbers. */
function isValid(state, features) {
  const { operators } = features.find(({ name }) => name === state.feature) ?? { operators: ["contains"] };
  const isNumber = state.op === "less" || state.op === "greater" || !operators.includes("contains");
  return !isNumber || (state.value.trim() !== "" && Number.isFinite(Number(state.value)));
}

/** Return the parameters of /api/find; null if all examples are shown. */
function filterOf(split, state) {
  const hasValue = hasCondition(state);
  if (!hasValue && state.class === null) return null;
  return {
    split,
    class: state.class,
    feature: hasValue ? state.feature : null,
    op: hasValue ? state.op : null,
    value: hasValue && state.op !== "nan" ? state.value : null,
  };
}

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const split = context.split(parameters);
  root.classList.add("view-fixed");
  if (!split) return void fill(root, h("h2", {}, "Examples"), h("p", { class: "muted" }, "The dataset has no splits."));
  if (split.error) return void fill(root, h("h2", {}, "Examples"), splitPanel(), errorBox(split.error));
  const { features } = context.overview;
  const searched = features.filter(({ operators }) => operators.length > 0);
  const initial = searched.find(({ kind }) => kind === "string") ?? searched[0];
  const state = {
    class: parameters.class ?? null,
    feature: choiceOf(parameters, "feature", searched.map(({ name }) => name), initial?.name ?? null),
    op: parameters.op,
    value: parameters.value ?? "",
    show: choiceOf(parameters, "show", features.map(({ name }) => name), ""),
    size: sizeOf(parameters),
    example: null,
  };
  choiceOf(parameters, "op", searched.find(({ name }) => name === state.feature)?.operators ?? []);
  if (state.class !== null && split.classes === null) throw new Error(`There is no class ${state.class} in this split.`);
  const table = split.classes === null ? null : await context.classes(split.name);
  if (signal.aborted) return;

  const status = h("p", { class: "muted", role: "status", dataset: { status: "" } });
  const scanning = h("button", { type: "button", dataset: { action: "scan" }, hidden: true, onclick: () => resume() });
  const problem = h("div", {});
  const selectAll = h("button", { type: "button", dataset: { action: "select-all" } }, "Select all");
  selectAll.addEventListener("click", () => selectFound());
  const gallery = new Gallery(context, split.name, {
    size: state.size, feature: state.show || null, signal, label: "Examples",
    onshow: (id) => {
      state.example = id;
      keep();
    },
  });
  let list = null;

  /** Keep the state in the URL. */
  function keep() {
    if (signal.aborted) return;
    const hasValue = hasCondition(state);
    replace("examples", {
      split: context.overview.splits.length > 1 ? split.name : null,
      class: state.class,
      feature: hasValue ? state.feature : null,
      op: hasValue ? state.op : null,
      value: state.op === "nan" ? null : state.value,
      show: state.show,
      size: state.size === DEFAULT_SIZE ? null : state.size,
      example: state.example,
    });
  }

  let searching = new AbortController();
  signal.addEventListener("abort", () => searching.abort());

  function search() {
    keep();
    searching.abort();
    searching = new AbortController();
    let wrong = null;
    if (hasCondition(state) && state.op !== "nan" && !isValid(state, features)) {
      wrong = `${display(state.value, 60)} is not a number.`;
    } else if (state.class !== null && table.position(state.class) < 0) {
      wrong = `There is no class ${state.class} in this split.`;
    }
    if (wrong) return void fill(problem, errorBox(wrong));
    const filter = filterOf(split.name, state);
    list = filter ? findIds(filter, progress, searching.signal) : new AllIds(split.records);
    gallery.setList(list);
    progress();
  }

  function progress() {
    gallery.setList(list);
    fill(problem, list.error && errorBox(list.error));
    const count = list.total ?? list.length;
    const parts = [list instanceof AllIds ? countOf(count, "example") : `${countOf(count, "example")} found`];
    if (list.isDone && count === 0) parts[0] = "No examples found";
    const of = list.of ? ` of ${formatNumber(list.of)}` : "";
    if (list.total === null) parts.push(`${formatNumber(list.scanned)}${of} scanned`);
    if (list.corrupt) parts.push(`${countOf(list.corrupt, "corrupt record")} skipped`);
    if (list.isRunning && list.total === null && !list.scanned) parts.splice(0, 2, "Searching");
    status.textContent = list.error ? "" : parts.join(", ") + (list.isRunning ? "…" : "");
    scanning.hidden = !list.stop || list.isDone;
    scanning.textContent = list.isRunning ? "Stop" : "Find more";
    selectAll.disabled = count === 0;
  }

  function resume() {
    if (list.isRunning) list.stop();
    else list.extend(list.length + 500);
  }

  async function selectFound() {
    const chosen = list;
    selectAll.disabled = true;
    try {
      const ids = await chosen.all(MAX_SELECTED);
      if (chosen !== list) return;
      context.selection.replace(split.name, ids);
      const first = `The first ${countOf(MAX_SELECTED, "example")} are selected.`;
      if (ids.length === MAX_SELECTED) status.textContent = first;
    } catch (error) {
      if (!signal.aborted) fill(problem, errorBox(error));
    }
    selectAll.disabled = false;
  }

  function splitPanel() {
    return splitChoice(context, split.name, (name) => {
      window.location.hash = `#/examples?${new URLSearchParams({ split: name })}`;
    });
  }

  const change = (name) => (value) => {
    state[name] = value;
    search();
  };
  const filters = [
    splitPanel(),
    table?.length ? classPicker(table, state.class, change("class")) : null,
    initial ? valueFilter(searched, state, debounce(search, 300)) : null,
  ];
  const shown = [["", "automatic"], ...features.map(({ name }) => [name, display(name, 40)])];
  const looks = [
    features.length > 1 && choice("Show", "show", shown, state.show, (name) => {
      state.show = name;
      gallery.update({ feature: name || null });
      keep();
    }),
    zoomControl(state.size, (size) => {
      state.size = size;
      gallery.update({ size });
      keep();
    }),
    selectAll,
  ];
  const panel = h("details", { class: "filters", open: !matchMedia(NARROW).matches },
    h("summary", {}, "Filter"), h("div", { class: "controls" }, filters));
  fill(
    root,
    h("h2", { class: "visually-hidden" }, "Examples"),
    panel,
    h("div", { class: "controls gallery-tools" }, status, scanning, h("span", { class: "spring" }), looks),
    context.selection.bar(split.name, signal),
    problem,
    gallery.element,
  );
  search();
  openFromUrl(gallery, parameters, split);
}

/** Return the fields of a condition on a feature; `state` gets `feature`, `op` and `value`. */
function valueFilter(features, state, onchange) {
  const operator = h("select", { name: "op", "aria-label": "Condition", onchange: () => {
    state.op = operator.value;
    update();
    onchange();
  } });
  const value = h("input", { type: "search", name: "value", "aria-label": "Value of the feature", value: state.value,
    maxlength: 1000, oninput: () => {
      state.value = value.value;
      onchange();
    } });
  const select = h("select", { name: "feature", onchange: () => {
    state.feature = select.value;
    update();
    onchange();
  } }, features.map(({ name }) => h("option", { value: name, selected: name === state.feature }, display(name, 40))));

  function update() {
    const allowed = features.find(({ name }) => name === state.feature).operators;
    if (!allowed.includes(state.op)) state.op = allowed[0];
    fill(operator, allowed.map((each) => h("option", { value: each, selected: each === state.op }, OPERATORS[each])));
    value.hidden = state.op === "nan";
    value.placeholder = allowed.includes("contains") ? "any text" : "any number";
    value.inputMode = allowed.includes("less") ? "decimal" : "search";
  }

  update();
  return h("div", { class: "value-filter", role: "group", "aria-label": "Filter by value" },
    h("label", {}, "Where", select), operator, value);
}
