// The page: loads the overview, shows the view of the URL, and has what all views share.

import { getJson, post } from "./api.js";
import { keepExamples } from "./data.js";
import { button, display, errorBox, fill, h } from "./dom.js";
import { choice } from "./fields.js";
import { Selection } from "./selection.js";

// Each module exports `show(root, parameters, context, signal)`.
const VIEWS = {
  overview: { title: "Overview", load: () => import("./overview.js"), key: "1" },
  classes: { title: "Classes", load: () => import("./classes.js"), key: "2" },
  examples: { title: "Examples", load: () => import("./examples.js"), key: "3" },
  batches: { title: "Batches", load: () => import("./batches.js"), key: "4" },
  embeddings: { title: "Embeddings", load: () => import("./embeddings.js"), key: "5" },
};

const main = document.getElementById("main");
let shown = new AbortController();

// The URL of a view: #/examples?split=train&class=3. Every view can be reached by its URL.

/** Return the hash of a view; empty parameters are omitted. */
export function hash(view, parameters = {}) {
  const found = Object.entries(parameters).filter(([, each]) => (each ?? "") !== "" && each !== false);
  const query = new URLSearchParams(found).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Show a view, with an entry in the history. */
export function go(view, parameters) {
  window.location.hash = hash(view, parameters);
}

/** Return `{view, parameters}` of the URL. */
function current() {
  const [path, query = ""] = window.location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "overview", parameters: Object.fromEntries(new URLSearchParams(query)) };
}

/** What views share. */
class Context {
  constructor(overview) {
    this.overview = overview;
    this.selection = new Selection(this);
    const hasImages = overview.features.some(({ kind }) => kind === "image");
    this.cellRatio = hasImages ? 1 : 1.9; // texts and waveforms need wide cells
    const { first } = overview;
    if (first) keepExamples(first.split, [...first.examples, ...first.batch_examples]);
  }

  /** Return the split that parameters name, by default the first: an entry of `overview.splits`. */
  split({ split }) {
    const { splits } = this.overview;
    if (!splits.length) throw new Error("The dataset has no splits.");
    const found = splits.find(({ name }) => name === (split ?? splits[0].name));
    if (!found) throw new Error(`There is no split "${split}" in this dataset.`);
    return found;
  }

  /** Return the field that chooses the split of a view; null if there is one. */
  splitChoice(view, split) {
    const names = this.overview.splits.map(({ name }) => [name, display(name, 60)]);
    return names.length > 1 ? choice("Split", "split", names, split, (name) => go(view, { split: name })) : null;
  }

  /** Return the field that chooses the label of a dataset without one. */
  labelChoice(problem) {
    const { candidates } = this.overview;
    const names = [["", "none: choose one"], ...candidates.map((name) => [name, display(name, 60)])];
    return candidates.length === 0 ? "none" : choice("", "label", names, "", (label) => {
      post("label", JSON.stringify({ label })).then(
        () => window.location.reload(), (error) => fill(problem, errorBox(error)));
    });
  }

  /** Change the parameters of the URL, without a new entry in the history. */
  replace(view, parameters, signal) {
    if (!signal.aborted) window.history.replaceState(null, "", hash(view, parameters));
  }

  /** Tell screen readers what changed. */
  announce(text) {
    document.getElementById("status").textContent = text;
  }
}

async function render(context) {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  const { view, parameters } = current();
  const found = VIEWS[view] ?? VIEWS.overview;
  for (const tab of document.querySelectorAll("#tabs a")) {
    if (tab.dataset.view === view) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.title = `${found.title} - covey view`;
  const root = h("div", { class: `view ${view}`, dataset: { view } });
  fill(main, root);
  try {
    const module = await found.load();
    if (!signal.aborted) await module.show(root, parameters, context, signal);
    root.dataset.state = "ready";
  } catch (error) {
    if (signal.aborted) return;
    root.dataset.state = "error";
    fill(root, h("h2", {}, found.title), errorBox(error));
  }
}

function toggleTheme() {
  const root = document.documentElement;
  const { theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" } = root.dataset;
  root.dataset.theme = theme === "dark" ? "light" : "dark";
  localStorage.setItem("covey-theme", root.dataset.theme);
  window.dispatchEvent(new Event("covey-theme")); // canvases are drawn again
}

function onKey(event) {
  const isTyping = event.target.closest?.("input, select, textarea, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const view = Object.keys(VIEWS).find((each) => VIEWS[each].key === event.key);
  if (view && document.querySelector(`#tabs a[data-view="${view}"]`)) go(view);
  else if (event.key === "t") toggleTheme();
  else if (event.key === "/") {
    event.preventDefault();
    document.querySelector("input[type=search]")?.focus();
  }
}

async function start() {
  window.history.replaceState(null, "", `/${window.location.hash}`); // without the token
  const theme = localStorage.getItem("covey-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  fill(document.getElementById("tools"), button("Theme", toggleTheme, { id: "theme", title: "Light or dark (key t)" }));
  try {
    const context = new Context(await getJson("overview"));
    const { overview } = context;
    document.getElementById("title").textContent = display(overview.title, 80);
    const tabs = Object.entries(VIEWS).filter(([view]) => view !== "embeddings" || overview.embeddings);
    fill(document.getElementById("tabs"), tabs.map(([view, { title, key }]) => h(
      "a", { href: hash(view), dataset: { view }, title: `${title} (key ${key})`, "aria-keyshortcuts": key }, title)));
    if (overview.loader && !window.location.hash) window.history.replaceState(null, "", hash("batches"));
    window.addEventListener("hashchange", () => render(context));
    document.addEventListener("keydown", onKey);
    await render(context);
  } catch (error) {
    fill(main, errorBox(error));
  }
  document.documentElement.dataset.state = "ready";
}

start();
