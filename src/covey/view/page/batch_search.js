// Two ways to a step: the next batch that has an example, and the state of a run.

import { getJson, post } from "./api.js";
import { errorBox } from "./app.js";
import { fill, formatNumber, h } from "./dom.js";

/** Return the panel that searches forward for an example. `view` has the current step and batch. */
export function searchPanel(context, settings, view, signal, { go, keep, mark }) {
  const input = h("input", { type: "text", inputmode: "numeric", name: "find", class: "batch-number",
    autocomplete: "off", maxlength: 16, value: settings.get("find") });
  const result = h("div", { role: "status", class: "batch-result", dataset: { found: "" } });
  const button = h("button", { type: "submit" }, "Find next");
  const cancel = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Cancel");
  let running = null;

  function show({ step, rank, row, reason }, from) {
    if (step === null) return fill(result, h("p", {}, `Never: ${reason}.`));
    const { batch } = view();
    const ahead = step - from;
    const where = batch?.world_size > 1 ? `, rank ${rank}, row ${row}` : `, row ${row}`;
    const when = ahead === 0 ? "in the next step" : `in ${formatNumber(ahead + 1)} steps`;
    fill(result, h("p", {}, `Step ${formatNumber(step)}${where}: ${when}. `,
      h("button", { type: "button", dataset: { action: "go" }, onclick: () => go(step) }, "Show this step")));
  }

  async function search() {
    const text = input.value.replace(/[\s,_]/g, "");
    const isValid = /^\d{1,15}$/.test(text);
    input.setAttribute("aria-invalid", String(!isValid));
    if (!isValid) return fill(result, h("p", { class: "muted" }, "Enter the id of an example."));
    settings.set("find", text);
    keep();
    mark();
    running?.abort();
    const mine = new AbortController();
    running = mine;
    const from = view().step + 1;
    cancel.hidden = false;
    try {
      let cursor = null;
      let requests = 0;
      do {
        const found = await getJson("next", { ...settings.plan, id: text, from, cursor }, mine.signal);
        cursor = found.cursor;
        requests += 1;
        if (cursor === null) show(found, from);
        else fill(result, h("p", { class: "muted" }, `Searching… (request ${formatNumber(requests)})`));
      } while (cursor !== null);
    } catch (error) {
      if (!mine.signal.aborted) fill(result, errorBox(error));
      else if (running === mine && !signal.aborted) fill(result, h("p", { class: "muted" }, "Canceled."));
    }
    if (running === mine) cancel.hidden = true;
    return null;
  }

  signal.addEventListener("abort", () => running?.abort());
  const element = h("section", { class: "panel" }, h("h3", {}, "When does an example come next?"),
    h("form", { class: "controls", onsubmit: (event) => {
      event.preventDefault();
      search();
    } }, h("label", {}, "Example", input), button, cancel),
    result);
  // A result belongs to the plan that was searched.
  element.clear = () => {
    running?.abort();
    fill(result);
  };
  return element;
}

/** Return the panel that takes the state of a run. */
export function statePanel(context, settings, signal, onfound) {
  const text = h("textarea", { name: "state", rows: 3, class: "mono batch-state", spellcheck: "false",
    maxlength: 1 << 20, placeholder: '{"format": 1, "batch": 1200, "plan": {…}}' });
  const result = h("div", { role: "status", class: "batch-result", dataset: { state: "" } });

  async function submit() {
    const { world_size: ranks, mode } = settings.plan;
    try {
      const content = { text: text.value, split: settings.split.name, world_size: ranks, mode };
      const found = await (await post("state", content, {}, signal)).json();
      const weights = found.weights ? " Its class weights were changed; they are applied." : "";
      fill(result, h("p", {}, `The run continues with step ${formatNumber(Number(found.parameters.step))}.${weights}`));
      onfound(found.parameters);
    } catch (error) {
      if (!signal.aborted) fill(result, errorBox(error));
    }
  }

  return h("section", { class: "panel" }, h("h3", {}, "Where did a run stop?"),
    h("form", { class: "batch-state-form", onsubmit: (event) => {
      event.preventDefault();
      submit();
    } },
    h("label", { class: "batch-state-label" }, "State of the loader, or text that contains it", text),
    h("button", { type: "submit" }, "Go to its batch")),
    result);
}
