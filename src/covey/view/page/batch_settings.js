// The settings of the batches view: all of them are in the URL, and fields change them.

import { button, display, h } from "./dom.js";
import { checkbox, choice, integerField } from "./fields.js";

const PLANS = {
  balanced: ["classes_per_batch", "examples_per_class", "seed", "small_classes", "class_weights",
    "total_examples_per_class"],
  shuffled: ["batch_size", "seed", "remainder"],
  sequential: ["batch_size", "remainder"],
};
const RANKS = ["world_size", "mode"];
const CONTENTS = ["select", "image_size", "crop", "flip", "views"];
const KNOWN = ["plan", "state", "step", "x", "size", ...Object.values(PLANS).flat(), ...RANKS, ...CONTENTS];

const CHOICES = {
  plan: ["Plan", [["balanced", "P classes × K examples"], ["shuffled", "shuffled"], ["sequential", "sequential"]]],
  small_classes: ["Small classes", [["repeat", "repeat examples"], ["drop", "drop the class"], ["error", "error"]]],
  class_weights: ["Class weights", [["", "equal"], ["sqrt", "square root of the size"], ["size", "size"]]],
  remainder: ["Remainder", [["keep", "keep"], ["drop", "drop"], ["fill", "fill"]]],
  mode: ["Mode", [["split", "split: parts of a batch"], ["independent", "independent: a batch each"]]],
  crop: ["Crop", [["squash", "squash"], ["center", "center"], ["random", "random"]]],
};

/** The settings of a split: the parameters of the URL. */
export class Settings {
  constructor(parameters, context, split) {
    const { loader } = context.overview;
    // The batches of a loader are shown as it returns them, unless the URL says otherwise.
    Object.assign(this, { context, split, loader, values: loader ? { x: "1" } : {} });
    for (const name of KNOWN) if (parameters[name]) this.values[name] = parameters[name];
  }

  /** Return a setting as a string; empty if it has its default. */
  get(name) {
    return this.values[name] ?? "";
  }

  /** Change a setting; an empty value restores its default. */
  set(name, value) {
    this.values[name] = name === "x" && this.loader ? Number(value) : value === true ? 1 : value || "";
  }

  get kind() {
    return this.get("plan") || (this.split.classes === null ? "shuffled" : "balanced");
  }

  /** Return the parameters of requests: plan and ranks, and those of x if `hasContents`. */
  parameters(hasContents = false) {
    const plan = this.loader ? [] : this.get("state") ? ["state"] : ["plan", ...PLANS[this.kind] ?? []];
    const names = [...plan, ...RANKS, ...(hasContents && !this.loader ? CONTENTS : [])];
    return { split: this.split.name, ...Object.fromEntries(names.map((name) => [name, this.get(name)])) };
  }
}

/** Return `{first, more}`: the fields that are always shown, and those that few need. */
export function settingFields(settings, onchange) {
  const { loader, split, context } = settings;
  const change = (name) => (value) => {
    settings.set(name, value);
    onchange(name);
  };
  const integer = (label, name, placeholder, low = 1, high = 16384) =>
    integerField(label, name, settings.get(name), { low, high, placeholder }, change(name));
  const select = (name, initial = CHOICES[name][1][0][0], omitted = null) => choice(CHOICES[name][0], name,
    CHOICES[name][1].filter(([each]) => each !== omitted), settings.get(name) || initial, change(name));
  const { kind } = settings;
  const isBalanced = kind === "balanced";
  const isBuilt = Number(settings.get("x")) === 1;
  const first = [context.splitChoice("batches", split.name)];
  const more = [];
  if (loader) first.push(h("span", { class: "muted mono" }, display(loader.plan, 400)));
  else if (settings.get("state")) {
    first.push(h("span", {}, "The plan of the pasted state"), button("Other settings", () => change("state")("")));
  } else {
    const records = String(Math.min(32, split.records ?? 32));
    const seed = kind !== "sequential" && integer("Seed", "seed", "0", 0, 2 ** 64);
    const classes = String(Math.min(8, split.classes ?? 8));
    first.push(select("plan", kind, split.classes === null ? "balanced" : null), isBalanced
      ? [integer("P", "classes_per_batch", classes), integer("K", "examples_per_class", "4")]
      : integer("Batch size", "batch_size", records), seed);
    more.push(isBalanced ? [select("small_classes"), select("class_weights"),
      integer("Limit per class", "total_examples_per_class", "none", 1, 2 ** 53)] : select("remainder"));
  }
  more.push(integer("Ranks", "world_size", String(loader?.world_size ?? 1), 1, 64),
    select("mode", loader?.mode ?? "split"));
  first.push(checkbox("As the loader returns it", "x", isBuilt, change("x")));
  if (isBuilt && !loader) more.push(contentFields(settings, change, integer, select));
  return { first, more };
}

function contentFields(settings, change, integer, select) {
  const { features, label } = settings.context.overview;
  const names = features.map(({ name }) => name).filter((name) => name !== label);
  const size = h("input", {
    type: "text", name: "image_size", class: "short", value: settings.get("image_size"), maxlength: 20,
    list: "image-sizes", placeholder: "as stored", autocomplete: "off",
    onchange: () => change("image_size")(size.value.trim()),
  });
  const sizes = h("datalist", { id: "image-sizes" },
    ["ragged", "64", "128", "224", "224x320"].map((value) => h("option", { value })));
  const selected = [["", "the input"], ["all", "all"], ...names.map((each) => [each, display(each, 40)])];
  return [
    names.length > 1 && choice("Feature", "select", selected, settings.get("select"), change("select")),
    features.some(({ kind }) => kind === "image") && [h("label", {}, "Image size", size), sizes, select("crop"),
      integer("Views", "views", "1", 1, 8),
      checkbox("Flip", "flip", Number(settings.get("flip")) === 1, change("flip"))],
  ];
}
