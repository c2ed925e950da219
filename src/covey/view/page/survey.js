// Values of a sample of a split: image sizes, lengths of strings, NaN, and histograms.

import { histogram } from "./charts.js";
import { countOf, display, formatNumber, h } from "./dom.js";

const WHAT = { values: "values", lengths: "lengths", pixels: "pixels" };

/** Return the panels of a survey (/api/survey). */
export function surveyPanels(survey) {
  const names = Object.keys(survey.features ?? {});
  const sampled = survey.examples === survey.of ? `All ${countOf(survey.of, "example")}`
    : `A sample of ${formatNumber(survey.examples)} of ${countOf(survey.of, "example")}, spread over the split`;
  const broken = `${countOf(survey.corrupt ?? 0, "record")} cannot be read.`;
  const corrupt = survey.corrupt ? [" ", h("span", { class: "bad" }, broken)] : null;
  return h(
    "section",
    { class: "survey" },
    h("h3", {}, "Values"),
    h("p", { class: "muted" }, `${sampled}.`, corrupt),
    survey.error && h("p", { class: "error", role: "alert" }, display(survey.error, 1000)),
    h("div", { class: "panels" }, names.map((name) => featurePanel(name, survey.features[name]))),
  );
}

function featurePanel(name, found) {
  const facts = [];
  const { images } = found;
  if (images) facts.push(...imageFacts(images));
  if (found.min !== null && found.min !== undefined) {
    facts.push(["Range", `${formatNumber(found.min)} to ${formatNumber(found.max)}`]);
    if (found.mean !== null && found.mean !== undefined) facts.push(["Mean", formatNumber(found.mean)]);
  }
  const nan = found.nan ?? null;
  if (nan !== null) facts.push(["NaN", nan ? h("strong", {}, formatNumber(nan)) : "0"]);
  if (found.lengths) {
    const [low, middle, high] = found.lengths.map(formatNumber);
    facts.push(["Length", low === high ? low : `${low} to ${high}, median ${middle}`]);
  }
  if (!facts.length && !found.histogram) return null; // the label: its distribution is above
  return h(
    "section",
    { class: "panel", dataset: { survey: name } },
    h("h4", {}, display(name, 80), " ", h("span", { class: "muted feature-type" }, found.kind)),
    h("dl", { class: "facts" }, facts.map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)])),
    found.histogram && chartOf(name, found.histogram),
    images?.sizes?.length > 1 ? sizesChart(name, images.sizes) : null,
  );
}

function chartOf(name, { edges, counts, what = "values" }) {
  const unit = WHAT[what] ?? what;
  const total = counts.reduce((sum, each) => sum + each, 0);
  const peak = counts.indexOf(Math.max(...counts));
  const [low, high] = [formatNumber(edges[0]), formatNumber(edges[edges.length - 1])];
  const summary = `${countOf(total, "value")} from ${low} to ${high}; most between `
    + `${formatNumber(edges[peak])} and ${formatNumber(edges[peak + 1])}.`;
  return h("div", {}, h("p", { class: "muted small" }, `Histogram of ${unit}`),
    histogram({ edges, counts, height: 120, title: `${display(name, 60)}: histogram of ${unit}`, summary, unit: "" }));
}

function imageFacts({ smallest, largest, formats, channels }) {
  const size = (pair) => (pair ? `${pair[0]} × ${pair[1]}` : "-");
  const facts = [["Size", size(smallest) === size(largest) ? size(smallest) : `${size(smallest)} to ${size(largest)}`]];
  if (formats) facts.push(["Formats", counted(formats)]);
  if (channels) facts.push(["Channels", counted(channels)]);
  return facts;
}

/** Return "png (20), jpeg (3)" of an object. */
function counted(found) {
  return Object.entries(found).map(([name, count]) => `${display(name, 40)} (${formatNumber(count)})`).join(", ");
}

/** Return a histogram of the longer sides of images; null if all are the same. */
function sizesChart(name, sizes) {
  const counts = new Map();
  for (const [height, width, count] of sizes) {
    const side = Math.max(height, width);
    counts.set(side, (counts.get(side) ?? 0) + count);
  }
  const sides = [...counts.keys()];
  const [low, high] = [Math.min(...sides), Math.max(...sides)];
  if (low === high) return null;
  const bins = Math.min(24, high - low + 1);
  const edges = Array.from({ length: bins + 1 }, (_, i) => low + ((high - low) * i) / bins);
  const found = new Array(bins).fill(0);
  for (const [side, count] of counts) {
    found[Math.min(bins - 1, Math.floor(((side - low) / (high - low)) * bins))] += count;
  }
  return chartOf(name, { edges, counts: found, what: "longer sides, in pixels" });
}
