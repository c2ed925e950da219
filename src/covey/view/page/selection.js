// Selected examples: ids per split, and their export as ids or Python code.

import { button, countOf, h } from "./dom.js";

const MAX_SHOWN_IDS = 200;

export const MAX_SELECTED = 100_000;

/** The ids of selected examples, per split. Dispatches "change" events. */
export class Selection extends EventTarget {
  constructor(context) {
    super();
    this.context = context;
    this.splits = new Map();
  }

  set(split) {
    if (!this.splits.has(split)) this.splits.set(split, new Set());
    return this.splits.get(split);
  }

  /** Return whether an example is selected. */
  has(split, id) {
    return this.set(split).has(id);
  }

  /** Select an example, or remove it from the selection. */
  toggle(split, id, isSelected = !this.has(split, id)) {
    if (isSelected) this.set(split).add(id);
    else this.set(split).delete(id);
    this.dispatchEvent(new Event("change"));
  }

  /** Select examples. */
  add(split, ids) {
    for (const id of ids) if (id !== undefined) this.set(split).add(id);
    this.dispatchEvent(new Event("change"));
  }

  /** Remove all examples of a split from the selection. */
  clear(split) {
    this.set(split).clear();
    this.dispatchEvent(new Event("change"));
  }

  /** Keep the check boxes of an element as the selection is, until `signal` is aborted. */
  follow(element, split, signal) {
    this.addEventListener("change", () => {
      for (const box of element.querySelectorAll(".card-box")) box.checked = this.has(split, Number(box.dataset.id));
    }, { signal });
  }

  /** Return Python code for examples of a split, and for all others. */
  code(split, ids) {
    const { code } = this.context.overview.splits.find((each) => each.name === split);
    const open = code === "ds" ? [] : ["import covey", "", `ds = ${code}`];
    return ["import numpy as np", "", ...open, `ids = [${ids.join(", ")}]`, "examples = ds[ids]  # the selection",
      "rest = ds.select(np.setdiff1d(range(len(ds)), ids))  # without it: to train on, or for covey.write()", "",
    ].join("\n");
  }

  /** Return the bar of a selection: number, export and clear. It is updated until `signal` is aborted. */
  bar(split, signal) {
    const status = h("strong", {});
    const element = h("div", { class: "selection-bar", role: "group", "aria-label": "Selection" }, status,
      button("Export…", () => this.openExport(split), { "data-action": "export" }),
      button("Clear", () => this.clear(split), { "data-action": "clear" }));
    const update = () => {
      const count = this.set(split).size;
      element.hidden = count === 0;
      status.textContent = `${countOf(count, "example")} selected`;
    };
    this.addEventListener("change", update, { signal });
    update();
    return element;
  }

  /** Open the export of a selection. */
  openExport(split) {
    const ids = [...this.set(split)].sort((a, b) => a - b);
    const code = this.code(split, ids);
    const note = h("p", { class: "muted", role: "status" });
    const save = () => {
      const href = URL.createObjectURL(new Blob([ids.map((id) => `${id}\n`).join("")], { type: "text/plain" }));
      h("a", { href, download: `${split.replace(/[^\w.-]+/g, "_") || "examples"}-${ids.length}.txt` }).click();
      setTimeout(() => URL.revokeObjectURL(href), 10_000);
    };
    const copy = () => navigator.clipboard.writeText(code).then(
      () => { note.textContent = "Copied."; },
      () => { note.textContent = "The browser does not allow it; copy the code above."; });
    const short = this.code(split, ids.slice(0, MAX_SHOWN_IDS)).replace("]\n", ", …]\n");
    openDialog("export", `Export ${countOf(ids.length, "example")}`, [], h("div", { class: "dialog-body" },
      h("p", {}, "The code has the selected examples, and all others: leave mislabelled ones out with its last line."),
      h("div", { class: "controls" }, button("Ids (text file)", save, { "data-action": "ids" }),
        button("Copy Python code", copy, { "data-action": "code" })),
      h("pre", { class: "code", tabindex: 0, "aria-label": "Python code" }, ids.length > MAX_SHOWN_IDS ? short : code),
      note));
  }
}

/** Show a dialog, and remove it when it is closed, or when another view is shown. */
export function openDialog(name, title, tools, body) {
  const heading = h("h2", { tabindex: -1 }, title);
  const close = () => dialog.close();
  const dialog = h("dialog", { class: "dialog", "aria-label": title, dataset: { dialog: name } },
    h("div", { class: "dialog-head" }, heading, h("div", { class: "controls" }, tools, button("Close", close))), body);
  dialog.addEventListener("close", () => {
    window.removeEventListener("hashchange", close);
    dialog.remove();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && close()); // the backdrop
  window.addEventListener("hashchange", close);
  document.body.append(dialog);
  dialog.showModal();
  heading.focus();
  return { dialog, heading };
}
