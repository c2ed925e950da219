// Batches: any step of a training run, with the ranks side by side. A batch is a function of the
// seed and the step, so that nothing has to be run to see it.

import { getJson } from "./api.js";
import { errorBox } from "./app.js";
import { CoveragePanel } from "./batch_coverage.js";
import { BatchRows } from "./batch_rows.js";
import { statePanel } from "./batch_state.js";
import { contentFields, DEFAULT_SIZE, planFields, Settings } from "./batch_settings.js";
import { debounce, display, fill, formatNumber, h } from "./dom.js";
import { zoomControl } from "./gallery.js";
import { replace } from "./router.js";

const INVALID_STEP = "must be an integer from 0 to 2^53 - 1, such as 1200, 1e12 or 10^12";
const NARROW = "(max-width: 640px)";

/** Return the step that a text names: 1200, 1,200, 1e12 or 10^12; null if it is not a step. */
export function parseStep(text) {
  const plain = text.replace(/[\s,_]/g, "");
  const power = /^(\d{1,15})\^(\d{1,2})$/.exec(plain);
  let value = NaN;
  if (/^\d{1,16}$/.test(plain)) value = Number(plain);
  else if (/^\d{1,6}(\.\d{1,12})?e\d{1,2}$/i.test(plain)) value = Number(plain);
  else if (power) value = Number(power[1]) ** Number(power[2]);
  return Number.isSafeInteger(value) ? value : null;
}

/** Show the view. */
export async function show(root, parameters, context, signal) {
  const split = context.split(parameters);
  root.classList.add("batches");
  const heading = h("h2", { class: "visually-hidden" }, "Batches");
  if (!split) return void fill(root, heading, h("p", { class: "muted" }, "The dataset has no splits."));
  const settings = new Settings(parameters, context, split);
  if (parameters.step && parseStep(parameters.step) === null) throw new Error(`The step in the URL ${INVALID_STEP}.`);
  let step = parseStep(settings.get("step")) ?? Number(context.overview.loader?.step ?? 0);
  let batch = null;
  let loading = new AbortController();
  signal.addEventListener("abort", () => loading.abort());

  const planBox = h("div", { class: "controls" });
  const contentBox = h("div", { class: "controls" });
  const notes = h("div", { class: "batch-notes" });
  const rows = new BatchRows(context, settings, signal);
  const bar = stepBar((value) => go(value));
  const coverage = new CoveragePanel(settings, signal, (value) => go(value));
  const pasted = statePanel(context, settings, signal, (found) => {
    settings.take(found);
    fillFields();
    go(Number(found.step));
  });

  const columns = h("div", { class: "batch-columns" }, rows.element,
    h("div", { class: "batch-panels" }, coverage.element, pasted));

  /** Keep the settings in the URL. */
  function keep() {
    settings.set("step", step ? String(step) : "");
    if (!signal.aborted) replace("batches", settings.url);
  }

  function fillFields() {
    fill(planBox, planFields(settings, onplan));
    fill(contentBox, contentFields(settings, oncontent));
  }

  function onplan(name) {
    if (name === "plan") fillFields();
    load();
  }

  function oncontent(name) {
    if (name === "x") fillFields();
    keep();
    if (batch) rows.show(batch);
  }

  function go(value) {
    const last = batch ? Math.min(Number(batch.last_step), Number.MAX_SAFE_INTEGER) : Number.MAX_SAFE_INTEGER;
    step = Math.max(0, Math.min(value, last));
    bar.setStep(step);
    load();
  }

  async function load() {
    keep();
    loading.abort();
    loading = new AbortController();
    const mine = loading.signal;
    root.dataset.loading = "";
    try {
      const found = await getJson("batch", { ...settings.plan, step }, mine);
      batch = found;
      bar.update(batch);
      columns.classList.toggle("is-wide", batch.world_size > 1); // ranks are side by side, panels below
      fill(notes, batch.warnings.map((text) => h("p", { class: "muted batch-warning" }, display(text, 500))));
      rows.show(batch);
      coverage.update(batch);
      describe(batch);
    } catch (error) {
      if (mine.aborted) return;
      fill(notes, errorBox(error));
      fill(rows.element);
    }
    delete root.dataset.loading;
  }

  const describe = debounce((shown) => {
    if (!signal.aborted) context.announce(`Step ${shown.step}, epoch ${shown.epoch}`);
  }, 400);

  if (split.error || split.records === 0) {
    const [splits] = planFields(settings, onplan);
    const text = split.error ? errorBox(split.error) : h("p", { class: "muted" }, "The split has no examples.");
    return void fill(root, heading, h("div", { class: "controls" }, splits), text);
  }
  fillFields();
  const isOpen = !matchMedia(NARROW).matches;
  fill(
    root,
    heading,
    bar.element,
    h("details", { class: "filters", open: isOpen }, h("summary", {}, "Plan and ranks"), planBox),
    h("details", { class: "filters", open: isOpen || settings.get("x") === "1" }, h("summary", {}, "Cells"),
      h("div", { class: "controls" }, contentBox, zoomControl(settings.size, (size) => {
        settings.set("size", size === DEFAULT_SIZE ? "" : size);
        keep();
        for (const each of root.querySelectorAll(".batch-rank")) each.style.setProperty("--cell", `${size}px`);
      }))),
    context.selection.bar(split.name, signal),
    notes,
    columns,
  );
  document.addEventListener("keydown", (event) => {
    // Arrow keys belong to fields, dialogs and scrolled rows, if they have the focus.
    const isTaken = event.target.closest?.("input, select, textarea, dialog, .grid-scroller, .scroll, audio");
    if (isTaken || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    go(step + (event.key === "ArrowRight" ? 1 : -1) * (event.shiftKey ? 10 : 1));
  }, { signal });
  bar.setStep(step);
  await load();
}

/** Return the fields of the step: buttons, a slider over an epoch, and a number. */
function stepBar(onchange) {
  const number = h("input", {
    type: "text", inputmode: "numeric", name: "step", class: "batch-step", autocomplete: "off", maxlength: 24,
    title: "A step: 1200, 1e12 or 10^12", "aria-describedby": "batch-step-problem",
    onchange: () => {
      const value = parseStep(number.value);
      number.setAttribute("aria-invalid", String(value === null));
      problem.textContent = value === null ? INVALID_STEP : "";
      if (value !== null) onchange(value);
    },
    onkeydown: (event) => {
      if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
      event.preventDefault();
      onchange((parseStep(number.value) ?? 0) + (event.key === "ArrowUp" ? 1 : -1));
    },
  });
  const problem = h("span", { class: "bad batch-step-problem", id: "batch-step-problem", role: "alert" });
  const slider = h("input", {
    type: "range", name: "step-slider", class: "batch-slider", min: 0, max: 0, step: 1, value: 0,
    "aria-label": "Step within the epoch", oninput: () => onchange(Number(slider.value)),
  });
  const about = h("span", { class: "muted batch-epoch", dataset: { epoch: "" } });
  let now = 0;
  let perEpoch = 1;
  const button = (text, label, move, keys) => h("button", {
    type: "button", "aria-label": label, title: label, "aria-keyshortcuts": keys, onclick: () => onchange(now + move()),
  }, text);
  const element = h("div", { class: "batch-bar", role: "group", "aria-label": "Step" },
    h("label", { class: "batch-step-label" }, "Step", number),
    h("div", { class: "button-group" },
      button("−1", "Previous step", () => -1, "ArrowLeft"), button("+1", "Next step", () => 1, "ArrowRight")),
    h("div", { class: "button-group" },
      button("−epoch", "One epoch back", () => -perEpoch), button("+epoch", "One epoch ahead", () => perEpoch)),
    problem, slider, about);

  return {
    element,
    setStep(step) {
      now = step;
      number.value = String(step);
      number.setAttribute("aria-invalid", "false");
      problem.textContent = "";
    },
    update({ step, epoch, steps_per_epoch: length }) {
      perEpoch = Math.max(1, Number(length));
      const first = Number(epoch) * perEpoch;
      // The ends are set first: a browser clamps the value to them.
      slider.min = first;
      slider.max = first + perEpoch - 1;
      slider.value = step;
      const within = `step ${formatNumber(step - first)} of ${formatNumber(perEpoch)}`;
      about.textContent = `epoch ${formatNumber(Number(epoch))} · ${within}`;
      slider.setAttribute("aria-valuetext", `step ${step}, epoch ${epoch}`);
      this.setStep(step);
    },
  };
}
