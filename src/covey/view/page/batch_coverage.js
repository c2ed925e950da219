// What was drawn before a step: the coverage over time.

import { getColumns } from "./api.js";
import { errorBox } from "./app.js";
import { lineChart } from "./charts.js";
import { debounce, fill, formatNumber, h } from "./dom.js";

const WAIT_MS = 200;

const percent = (value) => `${formatNumber(Math.round(value * 10) / 10)}%`;

function times([low, high]) {
  return low === high ? `${formatNumber(low)} times each` : `${formatNumber(low)} to ${formatNumber(high)} times each`;
}

/** The panel about the steps before the current one. */
export class CoveragePanel {
  constructor(settings, signal, onstep) {
    Object.assign(this, { settings, signal, onstep });
    this.text = h("p", { dataset: { coverage: "" }, role: "status" });
    this.problem = h("div", {});
    this.chart = null;
    this.plot = h("div", {});
    this.element = h("section", { class: "panel batch-coverage" }, h("h3", {}, "Seen before this step"), this.text,
      this.problem, this.plot);
    this.running = new AbortController();
    signal.addEventListener("abort", () => this.running.abort());
    this.load = debounce(() => this.request(), WAIT_MS);
  }

  /** Show another batch. */
  update(batch) {
    this.batch = batch;
    this.load();
  }

  async request() {
    if (this.signal.aborted) return;
    this.running.abort();
    this.running = new AbortController();
    const { signal } = this.running;
    const { step } = this.batch;
    try {
      const { values, arrays } = await getColumns("coverage", { ...this.settings.plan, step }, signal);
      fill(this.problem);
      this.show(values, arrays, step);
    } catch (error) {
      if (!signal.aborted) fill(this.problem, errorBox(error));
    }
  }

  show({ at, until }, arrays, step) {
    const classes = at.classes === null ? null : `${percent(100 * at.classes)} of the classes (${times(at.visits)})`;
    const examples = `${percent(100 * at.examples)} of the examples${at.times ? ` (${times(at.times)})` : ""}`;
    this.text.textContent = `Before step ${formatNumber(step)}: ${[classes, examples].filter(Boolean).join(" and ")}.`;
    const series = [{ name: "examples", values: arrays.examples.map((each) => 100 * each) }];
    if (classes) series.push({ name: "classes", values: arrays.classes.map((each) => 100 * each), dash: [5, 4] });
    const options = {
      x: arrays.step, series, xLabel: "step", yMin: 0, yMax: 100, format: percent, marker: step, height: 170,
      title: "Coverage over the first epoch",
      summary: `${this.text.textContent} The curve ends at step ${formatNumber(until)}.`,
      onclick: (index) => this.onstep(arrays.step[index]),
    };
    if (this.chart) return this.chart.update(options);
    this.chart = lineChart(options);
    fill(this.plot, this.chart, h("p", { class: "muted small" },
      "Percent over the first epoch: solid line, examples; dashed line, classes; vertical line, this step."));
  }
}

