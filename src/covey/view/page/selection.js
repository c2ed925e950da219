// Selected examples: ids per split, and their export as ids or Python code.

import { countOf, h } from "./dom.js";

const MAX_SHOWN_IDS = 200;

/** Return a string as a Python literal. */
export function pythonString(text) {
  // The escapes of JSON are escapes of Python; characters above U+FFFF are two escapes only there.
  const hex = (code, digits) => code.toString(16).padStart(digits, "0");
  return JSON.stringify(text)
    .replace(/[\u007f-\uffff]/g, (each) => `\\u${hex(each.charCodeAt(0), 4)}`)
    .replace(/\\ud([89ab]..)\\ud([c-f]..)/g, (_, high, low) => {
      const code = 0x10000 + ((parseInt(`d${high}`, 16) - 0xd800) << 10) + (parseInt(`d${low}`, 16) - 0xdc00);
      return `\\U${hex(code, 8)}`;
    });
}

/** Save data as a file of the user. */
export function download(blob, filename) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: filename }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Copy text to the clipboard; return whether that is possible. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // denied, or not a secure context
  }
}

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
    return this.splits.get(split)?.has(id) ?? false;
  }

  /** Return the number of selected examples. */
  count(split) {
    return this.splits.get(split)?.size ?? 0;
  }

  /** Return the selected ids in ascending order. */
  ids(split) {
    return [...this.set(split)].sort((a, b) => a - b);
  }

  /** Select an example, or remove it from the selection. */
  toggle(split, id, isSelected = !this.has(split, id)) {
    if (isSelected) this.set(split).add(id);
    else this.set(split).delete(id);
    this.changed(split);
  }

  /** Select examples. */
  add(split, ids) {
    const found = this.set(split);
    for (const id of ids) found.add(id);
    this.changed(split);
  }

  /** Select exactly these examples. */
  replace(split, ids) {
    this.splits.set(split, new Set(ids));
    this.changed(split);
  }

  /** Remove all examples of a split from the selection. */
  clear(split) {
    this.set(split).clear();
    this.changed(split);
  }

  changed(split) {
    this.dispatchEvent(new CustomEvent("change", { detail: { split } }));
  }

  /** Return Python code for the selected examples of a split, and for all others. */
  code(split, ids = this.ids(split)) {
    const pattern = "{split!r}";
    const { code } = this.context.overview;
    const at = code.lastIndexOf(pattern);
    const opened = at < 0 ? code : code.slice(0, at) + pythonString(split) + code.slice(at + pattern.length);
    const start = opened === "ds" ? ["import numpy as np", ""]
      : ["import numpy as np", "", "import covey", "", `ds = ${opened}`];
    return [...start, `ids = [${ids.join(", ")}]`, "examples = ds[ids]  # the selection",
      "rest = ds.select(np.setdiff1d(range(len(ds)), ids))  # all others, to train on or covey.write()", ""].join("\n");
  }

  /** Return the bar of a selection: number, export and clear. It is updated until `signal` is aborted. */
  bar(split, signal) {
    const status = h("strong", {});
    const element = h(
      "div",
      { class: "selection-bar", role: "group", "aria-label": "Selection" },
      status,
      h("button", { type: "button", dataset: { action: "export" }, onclick: () => this.openExport(split) }, "Export…"),
      h("button", { type: "button", dataset: { action: "clear" }, onclick: () => this.clear(split) }, "Clear"),
    );
    const update = () => {
      element.hidden = this.count(split) === 0;
      status.textContent = `${countOf(this.count(split), "example")} selected`;
    };
    this.addEventListener("change", update, { signal });
    update();
    return element;
  }

  /** Open the export of a selection. */
  openExport(split) {
    const ids = this.ids(split);
    const name = `${split.replace(/[^\w.-]+/g, "_") || "examples"}-${ids.length}`;
    const note = h("p", { class: "muted", role: "status" });
    const code = this.code(split, ids);
    const first = this.code(split, ids.slice(0, MAX_SHOWN_IDS)).replace("]\n", ", …]\n");
    const short = ids.length > MAX_SHOWN_IDS ? first : code;
    const lines = () => ids.map((id) => `${id}\n`).join("");
    const saveIds = () => download(new Blob([lines()], { type: "text/plain" }), `${name}.txt`);
    const copyCode = async () => {
      note.textContent = (await copy(code)) ? "Copied." : "The browser does not allow it; copy the code above.";
    };
    const dialog = h(
      "dialog",
      { class: "dialog", "aria-label": "Export of the selection", dataset: { dialog: "export" } },
      h("div", { class: "dialog-head" }, h("h2", {}, `Export ${countOf(ids.length, "example")}`),
        h("button", { type: "button", onclick: () => dialog.close() }, "Close")),
      h("div", { class: "controls" },
        h("button", { type: "button", dataset: { action: "ids" }, onclick: saveIds }, "Ids (text file)"),
        h("button", { type: "button", dataset: { action: "code" }, onclick: copyCode }, "Copy Python code")),
      h("pre", { class: "code", tabindex: 0, "aria-label": "Python code" }, short),
      note,
    );
    showModal(dialog);
  }
}

/** Show a dialog, and remove it when it is closed, or when another view is shown. */
export function showModal(dialog) {
  const close = () => dialog.close();
  dialog.addEventListener("close", () => {
    window.removeEventListener("hashchange", close);
    dialog.remove();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // the backdrop
  window.addEventListener("hashchange", close);
  document.body.append(dialog);
  dialog.showModal();
}
