// The settings of the batches view: all of them are in the URL, and fields change them.

import { choice, splitChoice } from "./examples.js";
import { display, h } from "./dom.js";

const RANKS = ["world_size", "mode"];
const BALANCED = [
  "classes_per_batch", "examples_per_class", "seed", "small_classes", "class_weights", "total_examples_per_class",
  "class_part",
];
const EPOCHS = { shuffled: ["batch_size", "seed", "remainder"], sequential: ["batch_size", "remainder"] };
const CONTENTS = ["select", "image_size", "crop", "flip", "views"];
const OTHERS = ["x", "size"];
const MAX_FIELD_DIGITS = 20;

export const DEFAULT_SIZE = 96;

const KINDS = [
  ["balanced", "balanced: P classes × K examples"], ["shuffled", "shuffled"], ["sequential", "sequential"],
];
const SMALL = [["repeat", "repeat examples"], ["drop", "drop the class"], ["error", "error"]];
const WEIGHTS = [["", "equal"], ["sqrt", "square root of the size"], ["size", "size"]];
const MODES = [["split", "split: parts of a batch"], ["independent", "independent: a batch each"]];
const REMAINDERS = [["keep", "keep"], ["drop", "drop"], ["fill", "fill"]];
const CROPS = [["squash", "squash"], ["center", "center"], ["random", "random"]];

/** The settings of a split. */
export class Settings {
  constructor(parameters, context, split) {
    this.context = context;
    this.split = split;
    this.loader = context.overview.loader;
    const known = [
      "plan", "step", "weights", ...RANKS, ...BALANCED, "batch_size", "remainder", ...CONTENTS, ...OTHERS,
    ].filter((name) => parameters[name]);
    // The batches of a loader are shown as it returns them, unless the URL says otherwise.
    const defaults = this.loader ? { x: "1" } : {};
    this.values = { ...defaults, ...Object.fromEntries(known.map((name) => [name, parameters[name]])) };
  }

  /** Return a setting as a string; empty if it has its default. */
  get(name) {
    return this.values[name] ?? "";
  }

  /** Change a setting; an empty value restores its default. */
  set(name, value) {
    if (name === "x" && this.loader) this.values.x = value ? "1" : "0";
    else if (value === "" || value === null || value === undefined || value === false) delete this.values[name];
    else this.values[name] = value === true ? "1" : String(value);
  }

  /** Return the kind of the plan. */
  get kind() {
    return this.get("plan") || (this.split.classes === null ? "shuffled" : "balanced");
  }

  /** Return the size of a cell in pixels. */
  get size() {
    const size = Number(this.get("size"));
    return size >= 48 && size <= 480 ? size : DEFAULT_SIZE;
  }

  /** Return the parameters of requests: plan and ranks. */
  get plan() {
    const names = this.loader ? [] : ["plan", ...(this.kind === "balanced" ? BALANCED : EPOCHS[this.kind] ?? [])];
    return { split: this.split.name, ...this.pick([...names, "weights", ...RANKS]) };
  }

  /** Return the parameters of requests for x. */
  get contents() {
    return { ...this.plan, ...(this.loader ? {} : this.pick(CONTENTS)) };
  }

  pick(names) {
    return Object.fromEntries(names.filter((name) => this.get(name) !== "").map((name) => [name, this.get(name)]));
  }

  /** Return the parameters of the URL. */
  get url() {
    const isMany = this.context.overview.splits.length > 1;
    return { split: isMany ? this.split.name : null, ...this.values };
  }

  /** Take the parameters of a pasted state; those that it does not name have their defaults. */
  take(parameters) {
    for (const name of ["plan", "weights", ...BALANCED, "batch_size", "remainder"]) {
      if (!this.loader || name === "weights") this.set(name, parameters[name]);
    }
  }
}

/** Return a field for an integer, which changes a setting when it is left or with Enter. */
function integerField(label, name, value, { low, high, placeholder = "", onchange }) {
  const input = h("input", {
    type: "text", inputmode: "numeric", name, value, placeholder, class: "batch-number", autocomplete: "off",
    maxlength: MAX_FIELD_DIGITS,
    onchange: () => {
      const text = input.value.replace(/[\s,_]/g, "");
      const isValid = text === "" || (/^\d{1,20}$/.test(text) && BigInt(text) >= low && BigInt(text) <= high);
      input.setAttribute("aria-invalid", String(!isValid));
      if (isValid) onchange(text);
    },
  });
  return h("label", {}, label, input);
}

/** Return the fields of the plan and of the ranks. */
export function planFields(settings, onchange) {
  const { loader, split, context } = settings;
  const change = (name) => (value) => {
    settings.set(name, value);
    if (name !== "world_size" && name !== "mode") settings.set("weights", "");
    onchange(name);
  };
  const integer = (label, name, placeholder, low = 1, high = 16384) =>
    integerField(label, name, settings.get(name),
      { low: BigInt(low), high: BigInt(high), placeholder, onchange: change(name) });
  const select = (label, name, options) =>
    choice(label, name, options, settings.get(name) || options[0][0], change(name));
  const kind = settings.kind;
  const seed = integer("Seed", "seed", "0", 0, 18446744073709551615n);
  const ranks = [
    integer("Ranks", "world_size", String(loader?.world_size ?? 1), 1, 64),
    choice("Mode", "mode", MODES, settings.get("mode") || (loader?.mode ?? "split"), change("mode")),
  ];
  if (loader) return [h("p", { class: "muted mono" }, display(loader.plan, 400)), ...ranks];
  const plans = split.classes === null ? KINDS.slice(1) : KINDS;
  const fields = kind === "balanced"
    ? [
      integer("Classes (P)", "classes_per_batch", String(Math.min(8, split.classes ?? 8))),
      integer("Examples of each (K)", "examples_per_class", "4"),
      seed,
      select("Small classes", "small_classes", SMALL),
      select("Class weights", "class_weights", WEIGHTS),
      integer("Limit per class", "total_examples_per_class", "none", 1, 2 ** 53),
      settings.get("class_part") && select("Classes", "class_part",
        [["", "all"], [settings.get("class_part"), "a part of split_classes()"]]),
    ]
    : [
      integer("Batch size", "batch_size", String(Math.min(32, split.records ?? 32))),
      kind === "shuffled" && seed,
      select("Remainder", "remainder", REMAINDERS),
    ];
  return [
    splitChoice(context, split.name, (name) => {
      window.location.hash = `#/batches?${new URLSearchParams({ split: name })}`;
    }),
    choice("Plan", "plan", plans, kind, change("plan")),
    ...fields,
    ...ranks,
  ];
}

/** Return the fields of what cells show: stored examples, or x with its options. */
export function contentFields(settings, onchange) {
  const change = (name) => (value) => {
    settings.set(name, value);
    onchange(name);
  };
  const isBuilt = settings.get("x") === "1";
  const toggle = h("input", { type: "checkbox", name: "x", checked: isBuilt,
    onchange: () => change("x")(toggle.checked) });
  const first = h("label", {}, toggle, "As the loader returns it");
  const note = (text) => h("span", { class: "muted" }, text);
  if (!isBuilt) return [first, note("Cells are examples as they are stored.")];
  if (settings.loader) return [first, note("Cells are x, with the options and functions of the loader.")];
  const { features, label } = settings.context.overview;
  const names = features.map(({ name }) => name).filter((name) => name !== label);
  const size = h("input", {
    type: "text", name: "image_size", class: "batch-number", value: settings.get("image_size"), maxlength: 20,
    list: "batch-image-sizes", placeholder: "as stored", autocomplete: "off",
    onchange: () => change("image_size")(size.value.trim()),
  });
  const flip = h("input", { type: "checkbox", name: "flip", checked: settings.get("flip") === "1",
    onchange: () => change("flip")(flip.checked) });
  const hasImages = features.some(({ kind }) => kind === "image");
  return [
    first,
    names.length > 1 && choice("Feature", "select",
      [["", "the input"], ["all", "all"], ...names.map((each) => [each, display(each, 40)])],
      settings.get("select"), change("select")),
    hasImages && [
      h("label", {}, "Image size", size),
      h("datalist", { id: "batch-image-sizes" },
        ["ragged", "64", "128", "224", "224x320"].map((value) => h("option", { value }))),
      choice("Crop", "crop", CROPS, settings.get("crop") || "squash", change("crop")),
      integerField("Views", "views", settings.get("views"),
        { low: 1n, high: 8n, placeholder: "1", onchange: change("views") }),
      h("label", {}, flip, "Flip"),
    ],
  ];
}
