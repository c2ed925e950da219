// The page: loads the overview, shows the view of the URL, and has what all views share.

import { getJson } from "./api.js";
import { loadClasses } from "./classtable.js";
import { display, fill, h } from "./dom.js";
import { current, go, hash, replace } from "./router.js";
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
const status = document.getElementById("status");
let shown = new AbortController();

/** What views share. */
class Context {
  constructor(overview) {
    this.overview = overview;
    this.selection = new Selection(this);
    this.tables = new Map();
  }

  /** Return the split that parameters name, by default the first: an entry of `overview.splits`. */
  split(parameters) {
    const { splits } = this.overview;
    if (parameters.split === undefined) return splits[0];
    const found = splits.find((each) => each.name === parameters.split);
    if (!found) throw new Error(`There is no split "${parameters.split}" in this dataset.`);
    return found;
  }

  /** Return the class table of a split (classtable.js); it is loaded once. */
  classes(split) {
    if (!this.tables.has(split)) {
      const table = loadClasses(split);
      table.catch(() => this.tables.delete(split));
      this.tables.set(split, table);
    }
    return this.tables.get(split);
  }

  /** Tell screen readers what changed. */
  announce(text) {
    status.textContent = text;
  }
}

/** Return an element for an error, which replaces the content that failed. */
export function errorBox(error) {
  return h("p", { class: "error", role: "alert" }, display(error.message ?? error, 2000));
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
  const root = h("div", { class: "view", dataset: { view } });
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

function showTabs(context) {
  const tabs = Object.entries(VIEWS).filter(([view]) => view !== "embeddings" || context.overview.embeddings);
  fill(
    document.getElementById("tabs"),
    tabs.map(([view, { title, key }]) =>
      h("a", { href: hash(view), dataset: { view }, title: `${title} (key ${key})`, "aria-keyshortcuts": key }, title)),
  );
}

function showTools() {
  const theme = h("button", { type: "button", id: "theme", title: "Light or dark (key t)", onclick: toggleTheme }, "Theme");
  fill(document.getElementById("tools"), theme);
}

function toggleTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("covey-theme", root.dataset.theme);
  window.dispatchEvent(new Event("covey-theme")); // canvases are drawn again
}

function onKey(event) {
  const isTyping = event.target.closest?.("input, select, textarea, [contenteditable]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const view = Object.entries(VIEWS).find(([, { key }]) => key === event.key)?.[0];
  if (view && document.querySelector(`#tabs a[data-view="${view}"]`)) go(view);
  else if (event.key === "t") toggleTheme();
  else if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
}

async function start() {
  const theme = localStorage.getItem("covey-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  showTools();
  try {
    const overview = await getJson("overview");
    document.getElementById("title").textContent = display(overview.title, 80);
    const context = new Context(overview);
    showTabs(context);
    if (overview.loader && !window.location.hash) replace("batches");
    window.addEventListener("hashchange", () => render(context));
    document.addEventListener("keydown", onKey);
    await render(context);
  } catch (error) {
    fill(main, errorBox(error));
  }
  document.documentElement.dataset.state = "ready";
}

start();
