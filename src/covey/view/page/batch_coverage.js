// What was drawn before a step: the coverage over time, the visits of each class, and the examples
// of a class.

import { getColumns, getJson } from "./api.js";
import { errorBox } from "./app.js";
import { lineChart } from "./charts.js";
import { exampleCard } from "./cells.js";
import { openExample } from "./dialog.js";
import { className, countOf, debounce, fill, formatNumber, h } from "./dom.js";
import { VirtualGrid } from "./grid.js";
import { choice } from "./examples.js";
import { replace } from "./router.js";
import { examplesOf } from "./store.js";

const WAIT_MS = 200;
const SEEN_PER_PAGE = 60;
const ORDERS = [["few", "fewest visits"], ["many", "most visits"], ["class", "class id"]];

const percent = (value) => `${formatNumber(Math.round(value * 10) / 10)}%`;

function times([low, high]) {
  return low === high ? `${formatNumber(low)} times each` : `${formatNumber(low)} to ${formatNumber(high)} times each`;
}

/** The panels about the steps before the current one. */
export class CoveragePanel {
  constructor(context, settings, signal, onstep) {
    Object.assign(this, { context, settings, signal, onstep });
    this.text = h("p", { dataset: { coverage: "" }, role: "status" });
    this.problem = h("div", {});
    this.chart = null;
    this.plot = h("div", {});
    this.classes = new ClassVisits(context, settings, signal);
    this.element = h("section", { class: "panel batch-coverage" }, h("h3", {}, "Seen before this step"), this.text,
      this.problem, this.plot, this.classes.element);
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
    const plan = { ...this.settings.plan, step }; // fields may change the settings during a request
    try {
      const { values, arrays } = await getColumns("coverage", plan, signal);
      fill(this.problem);
      this.show(values, arrays, step);
      await this.classes.load(plan, values.at.classes !== null, signal);
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

/** The visits of each class as a list, and the examples of a class that were seen. */
class ClassVisits {
  constructor(context, settings, signal) {
    Object.assign(this, { context, settings, signal });
    this.summary = h("p", { class: "muted small", dataset: { visits: "" } });
    this.scroller = h("div", { class: "batch-visits" });
    this.seen = h("div", { class: "batch-seen", dataset: { seen: "" } });
    this.text = "";
    this.order = "few";
    const find = h("input", { type: "search", name: "visits-search", placeholder: "name or id", autocomplete: "off",
      oninput: debounce(() => {
        this.text = find.value.trim();
        this.arrange();
      }, 150) });
    const sort = choice("Order", "visits-order", ORDERS, this.order, (value) => {
      this.order = value;
      this.arrange();
    });
    this.element = h("div", { class: "batch-classes", hidden: true },
      h("div", { class: "controls" }, h("label", {}, "Classes", find), sort), this.summary, this.scroller, this.seen);
    this.grid = null;
    this.positions = [];
  }

  /** Load the visits before a step; `plan` has the parameters of requests with the step. */
  async load(plan, isBalanced, signal) {
    this.element.hidden = !isBalanced;
    if (!isBalanced) return;
    const { split } = this.settings;
    const [table, { values, arrays }] = await Promise.all([
      this.context.classes(split.name), getColumns("visits", plan, signal)]);
    if (signal.aborted) return;
    Object.assign(this, { table, plan, values, visits: arrays.visits, of: arrays.of ?? null });
    const left = values.classes - values.seen;
    this.summary.textContent = `${countOf(values.seen, "class", "classes")} seen, ${formatNumber(left)} not yet. `
      + "For each class: visits, and examples seen.";
    this.grid ??= new VirtualGrid(this.scroller, { rowHeight: 34, label: "Visits of classes", signal: this.signal,
      render: (index) => this.row(this.positions[index]) });
    this.arrange();
    await this.showSeen(signal);
  }

  arrange() {
    if (!this.table) return;
    const { table, visits, text } = this;
    const byId = /^-?\d+$/.test(text) ? table.position(Number(text)) : -1;
    let found = text ? table.search(text, 10_000) : Uint32Array.from({ length: table.length }, (_, each) => each);
    if (byId >= 0 && !found.includes(byId)) found = Uint32Array.from([byId, ...found]);
    if (this.order === "few") found.sort((a, b) => visits[a] - visits[b] || a - b);
    else if (this.order === "many") found.sort((a, b) => visits[b] - visits[a] || a - b);
    this.positions = found;
    this.grid.setCount(found.length);
    this.grid.refresh();
  }

  row(position) {
    const { table, visits } = this;
    const of = this.of ? this.of[position] : table.counts[position];
    const seen = Math.min(visits[position] * this.values.examples_per_class, of);
    const id = table.ids[position];
    return h("div", { class: "batch-visit" },
      h("button", {
        type: "button", dataset: { focus: "", class: id }, onclick: () => this.choose(id),
        "aria-pressed": String(this.settings.get("class") === String(id)),
      }, className(table.name(position), 60)),
      h("span", { class: "muted" }, of === 0 ? "not drawn from" : countOf(visits[position], "visit")),
      h("span", { class: "batch-share" }, of > 0 && `${formatNumber(seen)} of ${formatNumber(of)}`));
  }

  choose(id) {
    this.settings.set("class", this.settings.get("class") === String(id) ? "" : String(id));
    replace("batches", this.settings.url);
    for (const each of this.scroller.querySelectorAll("button")) {
      each.setAttribute("aria-pressed", String(each.dataset.class === this.settings.get("class")));
    }
    this.showSeen(this.signal).catch((error) => !this.signal.aborted && fill(this.seen, errorBox(error)));
  }

  /** Show the examples of the chosen class that were drawn, in the order of the draws. */
  async showSeen(signal, limit = SEEN_PER_PAGE) {
    const id = this.settings.get("class");
    if (id === "") return void fill(this.seen);
    const { plan } = this;
    const found = await getJson("seen", { ...plan, class: id, limit: Math.min(1000, limit) }, signal);
    if (signal.aborted || this.plan !== plan || this.settings.get("class") !== id) return;
    const position = this.table.position(Number(id));
    const name = position < 0 ? id : className(this.table.name(position), 80);
    const split = this.settings.split.name;
    const cards = found.ids.map((each) => {
      const cell = h("div", { class: "batch-cell", dataset: { id: each } });
      const onopen = () => openExample(this.context, split, each, { ids: found.ids });
      const draw = (example) => fill(cell,
        exampleCard(this.context, split, example, { size: 72, hasClass: false, isSelectable: false, onopen }));
      draw(null);
      examplesOf(split).load(each, true).then((example) => !signal.aborted && draw(example));
      return cell;
    });
    const isMore = found.seen > found.ids.length && limit < 1000;
    fill(this.seen,
      h("h4", {}, `${name}: ${formatNumber(found.seen)} of ${countOf(found.of, "example")} seen`),
      h("div", { class: "batch-cells", style: { "--cell": "72px" } }, cards),
      isMore && h("button", { type: "button", onclick: () => this.showSeen(signal, limit * 4) }, "Show more"));
  }
}
