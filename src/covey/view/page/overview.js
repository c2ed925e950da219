// Overview: some examples and the batch of step 0, then splits, features, label distribution and values.

import { stream } from "./api.js";
import { go, hash } from "./app.js";
import { batchRows, fillStored } from "./batch_rows.js";
import { exampleCard } from "./cells.js";
import { barChart, histogram } from "./chart.js";
import { classesOf } from "./data.js";
import { factList, openExample } from "./dialog.js";
import { className, countOf, display, errorBox, fill, formatBytes, formatNumber, h } from "./dom.js";

const MAX_NAMED = 10; // bars with names under them
const UNITS = { values: "values", lengths: "lengths", pixels: "pixels" };
const MANY_TIMES = 50; // the median: a chart is logarithmic
const CELL = 88;
const MAX_CELLS = 32; // of the batch

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const { overview } = context;
  const problem = h("div", {});
  fill(root, h("h2", {}, display(overview.title, 200)), factList([
    overview.path !== overview.title && ["Path", overview.path && display(overview.path, 1000)],
    ["Format", display(overview.kind ?? "-", 200)],
    ["Label", overview.label === null ? context.labelChoice(problem) : display(overview.label, 200)],
  ]), problem);
  if (overview.first) root.append(...firstPanels(overview.first, context, signal));
  root.append(h("div", { class: "overview-tables" }, splitsPanel(overview.splits), featuresPanel(overview)));
  const split = overview.splits.length ? context.split(parameters) : null;
  if (!split) return;
  root.append(h("div", { class: "controls overview-split" }, h("h2", {}, `Split ${display(split.name, 80)}`),
    context.splitChoice("overview", split.name)));
  if (split.error) return void root.append(errorBox(split.error));
  const parts = ["labels", "survey"].map((part) => h("div", { dataset: { part }, "aria-busy": "true" }));
  root.append(...parts);
  // Each part is loaded for itself: a slow one does not delay the other.
  const load = async (element, action) => {
    try {
      await action();
    } catch (error) {
      if (!signal.aborted) fill(element, errorBox(error));
    }
    element.removeAttribute("aria-busy");
  };
  load(parts[0], async () => fill(parts[0], await labelsPanel(split)));
  load(parts[1], async () => {
    for await (const part of stream("survey", { split: split.name }, signal)) fill(parts[1], surveyPanels(part));
  });
}

/** Return what a new user looks for first: some examples, and a batch. */
function firstPanels({ split, examples, batch }, context, signal) {
  const onopen = (id) => openExample(context, split, id);
  const size = CELL * context.cellRatio;
  const style = { "--cell": `${CELL}px`, "--wide": context.cellRatio };
  const cards = examples.map((example) => h("div", { class: "strip-cell" },
    exampleCard(context, split, example, { size, onopen })));
  const panel = (title, view, text, content) => h("section", { class: "panel", dataset: { first: view } },
    h("div", { class: "controls" }, h("h3", {}, title), h("a", { href: hash(view, { split }) }, text)), content);
  const { rows = [], cells = [] } = batch ? batchRows(split, batch.ranks[0], MAX_CELLS) : {};
  fillStored(context, split, cells, { size, hasClass: batch?.examples_per_class === null });
  context.selection.follow(document.getElementById("main"), split, signal);
  const strip = h("div", { class: "strip", style }, cards);
  return [
    panel(`Examples of ${display(split, 60)}`, "examples", "All examples", strip),
    batch && panel(`Batch of step ${formatNumber(batch.step)}`, "batches", "Any step, any plan",
      h("div", { class: "first-batch", style }, rows)),
  ].filter(Boolean);
}

/** Return a table that scrolls if it is too wide. The heads that are `numbers` are aligned to the right. */
function dataTable(title, heads, rows, numbers = []) {
  const align = (index) => (numbers.includes(heads[index]) ? "number" : null);
  const cells = (row) => row.map((each, i) => h("td", { class: align(i) }, each));
  return h("section", { class: "panel" }, h("h3", {}, title),
    h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": title }, h("table", { class: "table" },
      h("thead", {}, h("tr", {}, heads.map((head, i) => h("th", { scope: "col", class: align(i) }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, cells(row)))))));
}

function splitsPanel(splits) {
  const heads = ["Split", "Examples", "Classes", "Size", "Shards"];
  const rows = splits.map(({ name, records, classes, bytes, shards, compression, error }) => [
    [h("a", { href: hash("examples", { split: name }) }, display(name, 80)),
      error && h("div", { class: "bad" }, display(error, 300))],
    formatNumber(records), formatNumber(classes), (bytes ?? null) === null ? "-" : formatBytes(bytes),
    `${formatNumber(shards)}${compression ? ` (${compression})` : ""}`,
  ]);
  return dataTable("Splits", heads, rows, heads.slice(1));
}

function featuresPanel({ features, label }) {
  return dataTable("Features", ["Name", "Type", "Role"], features.map(({ name, type }) =>
    [h("span", { class: "mono" }, display(name, 200)), h("span", { class: "mono" }, display(type, 300)),
      name === label ? "label" : ""]));
}

async function labelsPanel(split) {
  if (split.classes === null) return [];
  const table = await classesOf(split.name);
  if (!table.length) return h("p", { class: "muted" }, "The split has no examples.");
  const order = table.bySize();
  const values = Float64Array.from(order, (position) => table.counts[position]);
  const name = (index, limit = 80) => className(table.name(order[index]), limit);
  const last = values.length - 1;
  const total = countOf(values.reduce((sum, each) => sum + each, 0), "example");
  const counted = countOf(table.length, "class", "classes");
  const panel = (...content) => h("section", { class: "panel" }, h("h3", {}, "Label distribution"), content);
  if (values[0] === values[last]) {
    const each = last ? `, ${formatNumber(values[0])} in each` : `: ${name(0)}`;
    return panel(h("p", {}, `${counted}, ${total}${each}.`));
  }
  const summary = `${counted}, ${total}. Largest: ${name(0)} with ${formatNumber(values[0])}; `
    + `median ${formatNumber(values[values.length >> 1])}; smallest: ${name(last)} with ${formatNumber(values[last])}.`;
  const isNamed = values.length <= MAX_NAMED;
  const marks = isNamed ? Array.from(values, (_, i) => [(i + 0.5) / values.length, name(i, 24), 1 / values.length])
    : [0, 0.25, 0.5, 0.75, 1].map((share) => [share, formatNumber(Math.round(share * last) + 1)]);
  const isLog = values[0] > MANY_TIMES * values[values.length >> 1];
  return panel(h("p", { class: "muted" }, summary, " A click shows the examples of a class."), barChart({
    values, isLog, marks, summary, height: 220,
    title: `Examples per class, sorted by number${isLog ? ", logarithmic" : ""}`,
    describe: (index) => `${name(index)}: ${countOf(values[index], "example")}`,
    onclick: (index) => go("examples", { split: split.name, class: table.ids[order[index]] }),
  }));
}

/** Return the panels of a survey: image sizes, ranges, NaN and histograms of a sample of a split. */
function surveyPanels({ features, examples, of, corrupt, error }) {
  const sample = examples === of ? `All ${countOf(of, "example")}.`
    : `A sample of ${formatNumber(examples)} of ${countOf(of, "example")}, spread over the split.`;
  const broken = corrupt > 0 && h("span", { class: "bad" }, `${countOf(corrupt, "record")} cannot be read.`);
  return h("section", { class: "survey" }, h("h3", {}, "Values"), h("p", { class: "muted" }, sample, " ", broken),
    error && h("p", { class: "error", role: "alert" }, display(error, 1000)),
    h("div", { class: "panels" }, Object.entries(features ?? {}).map(([name, found]) => featurePanel(name, found))));
}

function featurePanel(name, { kind, min, max, mean, nan, lengths, histogram: found, images }) {
  const span = (low, high) => (low === high ? low : `${low} to ${high}`);
  const size = (pair) => (pair ? `${pair[0]} × ${pair[1]}` : "-");
  const counted = (each) => each
    && Object.entries(each).map(([key, count]) => `${display(key, 40)} (${formatNumber(count)})`).join(", ");
  const has = (value) => (value ?? null) !== null;
  const facts = [
    images && ["Size", span(size(images.smallest), size(images.largest))],
    images && ["Formats", counted(images.formats)],
    images && ["Channels", counted(images.channels)],
    has(min) && ["Range", span(formatNumber(min), formatNumber(max))],
    has(mean) && ["Mean", formatNumber(mean)],
    has(nan) && ["NaN", nan ? h("strong", {}, formatNumber(nan)) : "0"],
    lengths && ["Length", `${span(...[lengths[0], lengths[2]].map(formatNumber))}, median ${formatNumber(lengths[1])}`],
  ].filter(Boolean);
  if (!facts.length && !found) return null; // the label: its distribution is above
  const unit = UNITS[found?.what] ?? "values";
  return h("section", { class: "panel", dataset: { survey: name } },
    h("h4", {}, display(name, 80), " ", h("span", { class: "muted feature-type" }, kind)), factList(facts),
    found && [h("p", { class: "muted small" }, `Histogram of ${unit}`),
      histogram(found, unit, `${display(name, 60)}: histogram of ${unit}`)]);
}
