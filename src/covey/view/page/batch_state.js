// The way from the state of a run to its batch.

import { post } from "./api.js";
import { errorBox } from "./app.js";
import { fill, formatNumber, h } from "./dom.js";

/** Return the panel that takes the state of a run. */
export function statePanel(context, settings, signal, onfound) {
  const text = h("textarea", { name: "state", rows: 3, class: "mono batch-state", spellcheck: "false",
    maxlength: 1 << 20, placeholder: '{"format": 1, "batch": 1200, "plan": {…}}' });
  const result = h("div", { role: "status", class: "batch-result", dataset: { state: "" } });

  async function submit() {
    const { world_size: ranks, mode } = settings.plan;
    try {
      const parameters = { split: settings.split.name, world_size: ranks, mode };
      const found = await (await post("state", text.value, parameters, signal)).json();
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
    h("label", { class: "batch-state-label" }, "JSON of loader.state_dict()", text),
    h("button", { type: "submit" }, "Go to its batch")),
    result);
}
