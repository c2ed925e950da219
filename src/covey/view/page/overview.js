// Overview: splits, features, label distribution, values of a sample, and shards.

import { getJson } from "./api.js";
import { errorBox } from "./app.js";
import { barChart } from "./charts.js";
import { className, countOf, display, fill, formatBytes, formatNumber, h } from "./dom.js";
import { splitChoice } from "./examples.js";
import { go, hash, replace } from "./router.js";
import { dataTable, shardsPanel } from "./shards.js";
import { surveyPanels } from "./survey.js";

const MAX_NAMED = 20; // bars with names under them
const CHARACTER = 6; // pixels

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const { overview } = context;
  const split = context.split(parameters);
  const state = { split: split?.name, log: parameters.log === "1" };
  const keep = () => replace("overview", { split: overview.splits.length > 1 ? state.split : null, log: state.log });
  fill(root, h("h2", {}, display(overview.title, 200)), facts(overview),
    h("div", { class: "overview-tables" }, splitsPanel(context), featuresPanel(overview)));
  if (!split) return;
  const choose = (name) => go("overview", { split: name, log: state.log });
  const parts = h("div", { class: "overview-parts" });
  fill(parts, split.error ? errorBox(split.error) : []);
  const choice = splitChoice(context, split.name, choose);
  root.append(h("div", { class: "controls overview-split" },
    h("h2", { class: choice && "visually-hidden" }, `Split ${display(split.name, 80)}`), choice), parts);
  if (split.error) return;
  const places = ["labels", "survey", "shards"].map((name) => h("div", { dataset: { part: name } }));
  fill(parts, places);
  // Each part is loaded for itself: a slow one does not delay the others.
  await Promise.all([
    load(places[0], signal, () => labelsPanel(context, split, state, keep)),
    load(places[1], signal, async () => surveyPanels(await getJson("survey", { split: split.name }, signal))),
    load(places[2], signal, () => shardsPanel(split, signal)),
  ]);
}

/** Fill an element with what a function returns, or with its error. */
async function load(element, signal, action) {
  element.setAttribute("aria-busy", "true");
  try {
    const content = await action();
    if (!signal.aborted) fill(element, content);
  } catch (error) {
    if (!signal.aborted) fill(element, errorBox(error));
  }
  element.removeAttribute("aria-busy");
}

function facts(overview) {
  const rows = [
    overview.path !== null && ["Path", h("span", { class: "mono" }, display(overview.path, 1000))],
    ["Format", display(overview.kind ?? "-", 200)],
    ["Label", overview.label === null ? "none" : display(overview.label, 200)],
  ].filter(Boolean);
  return h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function splitsPanel(context) {
  const { splits } = context.overview;
  if (!splits.length) return h("p", { class: "muted" }, "The dataset has no splits.");
  const number = (value, format = formatNumber) =>
    h("td", { class: "number" }, (value ?? null) === null ? "-" : format(value));
  const rows = splits.map((each) => h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: hash("examples", { split: each.name }) }, display(each.name, 80))),
    number(each.records),
    number(each.classes),
    number(each.bytes, formatBytes),
    number(each.shards),
    h("td", {}, each.compression || "none"),
    h("td", { class: "split-state" }, health(each)),
  ));
  const heads = ["Split", "Examples", "Classes", "Size", "Shards", "Compression", "State"];
  const table = dataTable("Splits", heads, h("tbody", {}, rows), heads.slice(1, 5));
  return h("section", { class: "panel" }, h("h3", {}, "Splits"), table);
}

/** Return what is wrong with a split, in words. */
function health(split) {
  const found = [];
  if (split.error) found.push(h("span", { class: "bad" }, display(split.error, 300)));
  if (split.missing_count) {
    const names = split.missing.map((each) => display(each, 80)).join(", ");
    found.push(h("span", { class: "bad", title: names }, `${countOf(split.missing_count, "shard")} missing`));
  }
  const index = split.index === "fresh" ? "index fresh" : `index ${split.index ?? "unknown"}`;
  const title = split.reason ? display(split.reason, 300) : null;
  if (split.index) found.push(h("span", { title }, display(index, 80)));
  return found.flatMap((each, i) => (i ? ["; ", each] : [each]));
}

function featuresPanel({ features, label }) {
  const rows = features.map(({ name, type }) => h(
    "tr",
    {},
    h("th", { scope: "row", class: "mono" }, display(name, 200)),
    h("td", { class: "mono" }, display(type, 300)),
    h("td", {}, name === label ? "label" : ""),
  ));
  const table = dataTable("Features", ["Name", "Type", "Role"], h("tbody", {}, rows));
  return h("section", { class: "panel" }, h("h3", {}, countOf(features.length, "feature")), table);
}

async function labelsPanel(context, split, state, keep) {
  if (split.classes === null) return [];
  const table = await context.classes(split.name);
  if (!table.length) return h("p", { class: "muted" }, "The split has no examples.");
  const order = table.bySize();
  const values = Float64Array.from(order, (position) => table.counts[position]);
  const name = (index) => className(table.name(order[index]), 80);
  const total = values.reduce((sum, each) => sum + each, 0);
  const last = values.length - 1;
  const summary = `${countOf(table.length, "class", "classes")}, ${countOf(total, "example")}. `
    + `Largest: ${name(0)} with ${formatNumber(values[0])}; median ${formatNumber(values[values.length >> 1])}; `
    + `smallest: ${name(last)} with ${formatNumber(values[last])}.`;
  const chart = barChart({
    values, label: name, log: state.log, height: 220, unit: "examples", summary,
    title: "Examples per class, sorted by number",
    ...(values.length <= MAX_NAMED && { xLabels: (each) => names(each, name) }),
    onclick: (index) => go("examples", { split: split.name, class: table.ids[order[index]] }),
  });
  const log = h("input", { type: "checkbox", name: "log", checked: state.log, onchange: () => {
    state.log = log.checked;
    chart.update({ log: state.log });
    keep();
  } });
  return h(
    "section",
    { class: "panel" },
    h("div", { class: "controls" }, h("h3", {}, "Label distribution"), h("label", {}, log, "Logarithmic")),
    h("p", { class: "muted" }, summary),
    chart,
    h("p", { class: "muted small" }, "Classes by rank. A click shows the examples of a class."),
  );
}

/** Return the names under the bars of a chart, as long as the bars are wide. */
function names(chart, name) {
  const limit = Math.floor(chart.width / chart.count / CHARACTER);
  if (limit < 4) return [];
  return Array.from({ length: chart.count }, (_, index) => [chart.x(index), display(name(index), limit)]);
}
