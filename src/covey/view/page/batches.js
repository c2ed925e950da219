// Batches: any step of a training run, with the ranks side by side. A batch is a function of the
// seed and the step, so that nothing has to be run to see it.

import { getJson, post } from "./api.js";
import { batchRows, fillBuilt, fillStored } from "./batch_rows.js";
import { Settings, settingFields } from "./batch_settings.js";
import { button, countOf, debounce, display, errorBox, fill, formatNumber, h } from "./dom.js";
import { sizeOf, zoomControl } from "./gallery.js";

const INVALID_STEP = "must be an integer from 0 to 2^53 - 1, such as 1200, 1e12 or 10^12";
const DEFAULT_SIZE = 96;
const MAX_CELLS = 640;

/** Return the step that a text names: 1200, 1,200, 1e12 or 10^12; null if it is not a step. */
function parseStep(text) {
  const plain = text.replace(/[\s,_]/g, "");
  const power = /^(\d{1,15})\^(\d{1,2})$/.exec(plain);
  let value = NaN;
  if (/^\d{1,16}$/.test(plain) || /^\d{1,6}(\.\d{1,12})?e\d{1,2}$/i.test(plain)) value = Number(plain);
  else if (power) value = Number(power[1]) ** Number(power[2]);
  return Number.isSafeInteger(value) ? value : null;
}

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const split = context.split(parameters);
  if (split.error || !split.records) {
    const text = split.error ? errorBox(split.error) : h("p", { class: "muted" }, "The split has no examples.");
    return void fill(root, h("h2", {}, "Batches"), context.splitChoice("batches", split.name), text);
  }
  if (parameters.step && parseStep(parameters.step) === null) throw new Error(`The step in the URL ${INVALID_STEP}.`);
  await new BatchesView(root, parameters, context, split, signal).load();
}

class BatchesView {
  constructor(root, parameters, context, split, signal) {
    Object.assign(this, { context, split, signal, batch: null, size: sizeOf(parameters, DEFAULT_SIZE) });
    this.settings = new Settings(parameters, context, split);
    this.step = parseStep(this.settings.get("step")) ?? Number(context.overview.loader?.step ?? 0);
    this.loading = new AbortController();
    signal.addEventListener("abort", () => this.loading.abort());
    this.first = h("span", { class: "controls" });
    this.more = h("div", { class: "controls" });
    this.notes = h("div", { class: "batch-notes" });
    this.coverage = h("p", { class: "muted", role: "status" });
    this.bar = stepBar((value) => this.go(value));
    this.bar.setStep(this.step);
    this.ranks = h("div", { class: "batch-ranks",
      style: { "--cell": `${this.size}px`, "--wide": context.cellRatio } });
    const resized = debounce(() => this.load(), 300);
    const zoom = zoomControl(this.size, (size) => {
      this.size = size;
      this.ranks.style.setProperty("--cell", `${size}px`);
      resized();
    });
    const state = statePanel(this.settings, signal, (found) => {
      this.settings.set("state", found.state);
      this.fillFields();
      this.go(Number(found.step));
    });
    this.fillFields();
    context.selection.follow(this.ranks, split.name, signal);
    document.addEventListener("keydown", (event) => this.onKey(event), { signal });
    fill(root, h("h2", { class: "visually-hidden" }, "Batches"), this.bar.element,
      h("div", { class: "controls" }, this.first, zoom,
        h("details", { class: "more" }, h("summary", {}, "More"), this.more)),
      context.selection.bar(split.name, signal), this.notes, this.ranks, this.coverage, state);
  }

  fillFields() {
    const { first, more } = settingFields(this.settings, (name) => {
      if (["plan", "x", "state"].includes(name)) this.fillFields();
      this.load();
    });
    fill(this.first, first);
    fill(this.more, more);
  }

  go(value) {
    const last = Math.min(Number(this.batch?.last_step ?? Infinity), Number.MAX_SAFE_INTEGER);
    this.step = Math.max(0, Math.min(value, last));
    this.bar.setStep(this.step);
    this.load();
  }

  /** Arrow keys change the step; they belong to fields and dialogs, if they have the focus. */
  onKey(event) {
    const isTaken = event.target.closest?.("input, select, textarea, dialog, audio");
    if (isTaken || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    this.go(this.step + (event.key === "ArrowRight" ? 1 : -1) * (event.shiftKey ? 10 : 1));
  }

  /** Keep the settings in the URL, and show their batch. */
  async load() {
    const { settings, split, step } = this;
    settings.set("step", step);
    settings.set("size", this.size === DEFAULT_SIZE ? "" : this.size);
    this.context.replace("batches", { split: split.name, ...settings.values }, this.signal);
    this.loading.abort();
    this.loading = new AbortController();
    const { signal } = this.loading;
    try {
      this.batch = await getJson("batch", { ...settings.parameters(), step }, signal);
      this.bar.update(this.batch);
      fill(this.notes, this.batch.warnings.map((text) => h("p", { class: "muted warning" }, display(text, 500))));
      this.showRanks(signal);
      const { at } = await getJson("coverage", { ...settings.parameters(), step }, signal);
      this.coverage.textContent = describeCoverage(step, at);
    } catch (error) {
      if (signal.aborted) return;
      fill(this.notes, errorBox(error));
      for (const each of [this.ranks, this.coverage]) fill(each);
    }
  }

  showRanks(signal) {
    const { batch, ranks } = this;
    let left = MAX_CELLS;
    fill(ranks);
    for (const rank of batch.ranks) {
      if (left > 0) this.showRank(rank, left, signal);
      left -= rank.rows;
    }
    if (left >= 0 && !batch.omitted_ranks) return;
    const total = batch.ranks.reduce((sum, { rows }) => sum + rows, 0);
    ranks.append(h("p", { class: "muted batch-more" },
      `The first ${formatNumber(MAX_CELLS)} of ${countOf(total, "example")} of ${countOf(batch.world_size, "rank")}.`));
  }

  /** Show the first `limit` rows of a rank. */
  showRank(rank, limit, signal) {
    const { context, split, settings, batch, size, step } = this;
    const { rows, cells } = batchRows(split.name, rank, limit);
    const name = batch.world_size > 1 ? `Rank ${rank.rank}` : "Batch";
    const body = h("div", { class: "batch-rows", style: { "--count": batch.examples_per_class ?? 1000 } }, rows);
    const about = rank.batch === null ? "has no batch in this step"
      : `batch ${formatNumber(rank.batch)}, from row ${rank.row}`;
    this.ranks.append(h("section", { class: "batch-rank", "aria-label": name, dataset: { rank: rank.rank } },
      batch.world_size > 1 && h("h3", {}, `${name} `, h("span", { class: "muted small" }, about)), body));
    if (Number(settings.get("x")) === 1 && rank.batch !== null) {
      const side = Math.min(1024, Math.ceil(size * window.devicePixelRatio));
      const wanted = { ...settings.parameters(true), step, rank: rank.rank, rows: limit, side };
      fillBuilt(context, split.name, body, cells, wanted, signal);
    } else fillStored(context, split.name, cells, { size, hasClass: batch.examples_per_class === null });
  }
}

/** Return the field and the buttons of the step, with `setStep(step)` and `update(batch)`. */
function stepBar(onchange) {
  let now = 0;
  let perEpoch = 1;
  const problem = h("span", { class: "bad", id: "step-problem", role: "alert" });
  const number = h("input", {
    type: "text", name: "step", inputmode: "numeric", autocomplete: "off", maxlength: 30,
    title: "A step: 1200, 1e12 or 10^12", "aria-describedby": "step-problem",
    onchange: () => {
      const value = parseStep(number.value);
      setProblem(value === null);
      if (value !== null) onchange(value);
    },
  });
  const about = h("span", { class: "muted", role: "status" });
  const move = (text, label, change, keys = null) =>
    button(text, () => onchange(now + change()), { "aria-label": label, title: label, "aria-keyshortcuts": keys });
  const setProblem = (isWrong) => {
    number.setAttribute("aria-invalid", String(isWrong));
    problem.textContent = isWrong ? INVALID_STEP : "";
  };
  const setStep = (step) => {
    now = step;
    number.value = String(step);
    setProblem(false);
  };
  const element = h("div", { class: "batch-bar", role: "group", "aria-label": "Step" }, h("label", {}, "Step", number),
    h("div", { class: "button-group" },
      move("−epoch", "One epoch back", () => -perEpoch), move("−1", "Previous step", () => -1, "ArrowLeft"),
      move("+1", "Next step", () => 1, "ArrowRight"), move("+epoch", "One epoch ahead", () => perEpoch)),
    problem, about);

  function update({ step, epoch, steps_per_epoch: length }) {
    perEpoch = Math.max(1, Number(length));
    const first = Number(epoch) * perEpoch;
    const within = `step ${formatNumber(step - first)} of ${formatNumber(perEpoch)}`;
    about.textContent = `epoch ${formatNumber(Number(epoch))} · ${within}`;
    setStep(step);
  }

  return { element, setStep, update };
}

/** Return a sentence about the examples that were drawn before a step: `at` of /api/coverage. */
function describeCoverage(step, at) {
  const percent = (value) => `${formatNumber(Math.round(value * 1000) / 10)}%`;
  const times = (pair) => `${[...new Set(pair)].map(formatNumber).join(" to ")} times each`;
  const parts = [(at.classes ?? null) !== null && `${percent(at.classes)} of the classes (${times(at.visits)})`,
    `${percent(at.examples)} of the examples${at.times ? ` (${times(at.times)})` : ""}`];
  return `Seen before step ${formatNumber(step)}: ${parts.filter(Boolean).join(" and ")}.`;
}

/** Return the panel that takes the state of a run. */
function statePanel(settings, signal, onfound) {
  const text = h("textarea", { name: "state", rows: 3, class: "mono", spellcheck: "false",
    maxlength: 1 << 20, placeholder: '{"format": 1, "batch": 1200, "plan": {…}}' });
  const result = h("div", { role: "status" });

  async function submit(event) {
    event.preventDefault();
    try {
      const found = await post("state", text.value, settings.parameters(), signal);
      const weights = found.weights ? " Its class weights were changed; they are applied." : "";
      fill(result, h("p", {}, `The run continues with step ${formatNumber(Number(found.parameters.step))}.${weights}`));
      onfound(found.parameters);
    } catch (error) {
      if (!signal.aborted) fill(result, errorBox(error));
    }
  }

  return h("section", { class: "panel" }, h("h3", {}, "Where did a run stop?"),
    h("form", { class: "state-form", onsubmit: submit }, h("label", {}, "JSON of loader.state_dict()", text),
      h("button", { type: "submit" }, "Go to its batch")), result);
}
