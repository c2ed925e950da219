// Examples and values that were loaded, and batched requests for those that are needed.

import { getColumns, getJson } from "./api.js";

const MAX_BATCH = 100;
const MAX_KEPT = 4000;
const MAX_PLOTS = 1000;
const WAIT_MS = 30;

/** The examples of a split: loaded in batches, the most recently used are kept. */
export class ExampleStore {
  constructor(split) {
    this.split = split;
    this.kept = new Map();
    this.failed = new Map(); // examples whose request failed, until another view is shown
    this.wanted = new Map(); // id -> the functions that wait for it
    this.timer = 0;
    this.running = 0;
  }

  /** Return an example if it is loaded. */
  peek(id) {
    const found = this.kept.get(id);
    if (found) {
      this.kept.delete(id); // the most recently used are last
      this.kept.set(id, found);
    }
    return found ?? this.failed.get(id);
  }

  /**
   * Return an example; an example that cannot be read is `{id, error}`.
   *
   * A request that `isKept` is not canceled.
   */
  load(id, isKept = false) {
    const found = this.peek(id);
    if (found && !this.failed.has(id)) return Promise.resolve(found);
    return new Promise((resolve) => {
      if (!this.wanted.has(id)) this.wanted.set(id, { waiting: [], isKept: false });
      this.wanted.get(id).waiting.push(resolve);
      this.wanted.get(id).isKept ||= isKept;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.send(), WAIT_MS);
    });
  }

  /** Forget the requests that have not been sent: their cells are out of view. */
  cancel() {
    for (const [id, { isKept }] of this.wanted) if (!isKept) this.wanted.delete(id);
  }

  async send() {
    if (this.running >= 2 || this.wanted.size === 0) return;
    // The last are those in view now.
    const batch = [...this.wanted].slice(-MAX_BATCH);
    for (const [id] of batch) this.wanted.delete(id);
    this.running += 1;
    let found = new Map();
    let isFailed = false; // the request, not an example: it may succeed later
    try {
      const { examples } = await getJson("examples", { split: this.split, ids: batch.map(([id]) => id) });
      found = new Map(examples.map((each) => [each.id, each]));
    } catch (error) {
      isFailed = true;
      found = new Map(batch.map(([id]) => [id, { id, error: error.message }]));
    }
    this.running -= 1;
    for (const [id, { waiting }] of batch) {
      const example = found.get(id) ?? { id, error: "the server did not return this example" };
      if (isFailed) this.failed.set(id, example);
      else {
        this.kept.set(id, example);
        this.failed.delete(id);
      }
      for (const resolve of waiting) resolve(example);
    }
    for (const id of this.kept.keys()) {
      if (this.kept.size <= MAX_KEPT) break;
      this.kept.delete(id);
    }
    this.send();
  }
}

const stores = new Map();

window.addEventListener("hashchange", () => {
  for (const each of stores.values()) each.failed.clear();
});

/** Return the examples of a split. */
export function examplesOf(split) {
  if (!stores.has(split)) stores.set(split, new ExampleStore(split));
  return stores.get(split);
}

const plots = new Map();

/** Return the columns of /api/values for a plot; they are kept. */
export function plotValues(split, id, feature) {
  const key = JSON.stringify([split, id, feature]);
  if (!plots.has(key)) {
    const loading = getColumns("values", { split, id, feature });
    loading.catch(() => plots.delete(key));
    plots.set(key, loading);
    if (plots.size > MAX_PLOTS) plots.delete(plots.keys().next().value);
  }
  return plots.get(key);
}
