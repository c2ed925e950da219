// Lists of record ids: all ids of a split, or those that a filter finds, which are loaded as needed.

import { getJson } from "./api.js";

const PAGE = 500;

/** All ids of a split. */
export class AllIds {
  constructor(count) {
    this.length = count;
    this.total = count;
    this.isDone = true;
    this.isRunning = false;
    this.error = null;
  }

  at(index) {
    return index < this.length ? index : undefined;
  }

  indexOf(id) {
    return id < this.length ? id : -1;
  }

  want() {
    // All ids are known.
  }

  async all(limit) {
    return Array.from({ length: Math.min(limit, this.length) }, (_, index) => index);
  }
}

/**
 * Ids that /api/find returns without a condition on a value: pages can be loaded in any order.
 *
 * Args: `filter` (the parameters of the request), `onchange()` (called when there are more ids),
 * `signal`, `total` (the number of ids if it is known).
 */
export class PagedIds {
  constructor(filter, onchange, signal, total = null) {
    this.filter = filter;
    this.onchange = onchange;
    this.signal = signal;
    this.total = total;
    this.pages = new Map(); // number of a page -> ids, or the promise of them while it is loaded
    this.isDone = total !== null;
    this.isRunning = false;
    this.error = null;
  }

  get length() {
    return this.total ?? 0;
  }

  at(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  indexOf(id) {
    for (const [page, ids] of this.pages) {
      const found = Array.isArray(ids) ? ids.indexOf(id) : -1;
      if (found >= 0) return page * PAGE + found;
    }
    return -1;
  }

  /** Load the pages from `first` to `last`; errors are reported by `error`. */
  want(first, last) {
    if (this.error) return; // the same request would fail again
    this.load(first, last).catch((error) => {
      if (error.name === "AbortError") return;
      this.error = error;
      this.onchange?.();
    });
  }

  async load(first, last) {
    const end = Math.ceil(Math.min(last, this.total ?? last) / PAGE);
    for (let page = Math.floor(Math.max(0, first) / PAGE); page < end; page += 1) {
      if (!this.pages.has(page)) this.pages.set(page, this.loadPage(page));
      await this.pages.get(page);
    }
  }

  async loadPage(page) {
    this.isRunning = true;
    try {
      const { ids, total } = await getJson("find", { ...this.filter, cursor: page * PAGE, limit: PAGE }, this.signal);
      Object.assign(this, { total, isDone: true, isRunning: false });
      this.pages.set(page, ids);
    } catch (error) {
      this.pages.delete(page);
      throw error;
    }
    this.onchange?.();
  }

  /** Return the first `limit` ids. */
  async all(limit) {
    await this.load(0, Math.min(limit, PAGE));
    await this.load(0, Math.min(limit, this.total));
    const count = Math.min(limit, this.total);
    return Array.from({ length: count }, (_, index) => this.at(index));
  }
}

/** Ids that a condition on a value finds: a scan, which is paused when there are enough of them. */
export class ScannedIds {
  constructor(filter, onchange, signal) {
    this.filter = filter;
    this.onchange = onchange;
    this.signal = signal;
    this.ids = [];
    this.positions = new Map();
    this.total = null;
    this.scanned = 0;
    this.of = null; // examples to scan
    this.corrupt = 0;
    this.cursor = null;
    this.isDone = false;
    this.isRunning = false;
    this.isStopped = false;
    this.error = null;
    this.wanted = 0;
  }

  get length() {
    return this.ids.length;
  }

  at(index) {
    return this.ids[index];
  }

  indexOf(id) {
    return this.positions.get(id) ?? -1;
  }

  /** Stop the scan; `want` resumes it. */
  stop() {
    this.isStopped = true;
  }

  /** Scan until there are `last` ids. */
  want(first, last) {
    if (!this.isStopped && !this.error) this.extend(last); // the same request would fail again
  }

  /** Scan until there are `count` ids, or no more. */
  async extend(count) {
    this.wanted = Math.max(this.wanted, count);
    if (this.isRunning || this.isDone || this.length >= this.wanted) return;
    this.isRunning = true;
    this.isStopped = false;
    this.error = null;
    while (!this.isDone && !this.isStopped && this.length < this.wanted && !this.signal?.aborted) {
      try {
        await this.next();
      } catch (error) {
        if (error.name !== "AbortError") this.error = error;
        break;
      }
      this.onchange?.();
    }
    this.isRunning = false;
    if (!this.signal?.aborted) this.onchange?.();
  }

  async next() {
    const found = await getJson("find", { ...this.filter, cursor: this.cursor, limit: PAGE }, this.signal);
    for (const id of found.ids) {
      this.positions.set(id, this.ids.length);
      this.ids.push(id);
    }
    this.isDone = found.cursor === null;
    this.cursor = found.cursor;
    this.total = this.isDone ? this.length : null;
    this.scanned = found.cursor ?? found.of ?? this.scanned;
    this.of = found.of ?? found.total;
    this.corrupt += found.corrupt ?? 0;
  }

  /** Return the first `limit` ids. */
  async all(limit) {
    while (this.isRunning) await new Promise((resolve) => setTimeout(resolve, 50));
    await this.extend(limit);
    if (this.error) throw this.error;
    return this.ids.slice(0, limit);
  }
}

/** Return the list of ids of a filter: the parameters of /api/find. */
export function findIds(filter, onchange, signal, total = null) {
  return filter.feature ? new ScannedIds(filter, onchange, signal) : new PagedIds(filter, onchange, signal, total);
}
