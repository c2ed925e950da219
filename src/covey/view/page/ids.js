// Lists of record ids: all ids of a split, or those that a filter finds, which are loaded as needed.

import { getJson } from "./api.js";

const PAGE = 500;

/** All ids of a split. */
export class AllIds {
  constructor(count) {
    this.length = count;
    this.total = count;
    this.isDone = true;
    this.error = null;
  }

  at(index) {
    return index < this.length ? index : undefined;
  }

  indexOf(id) {
    return id < this.length ? id : -1;
  }

  async extend() {
    // All ids are known.
  }

  stop() {
    // Nothing is loaded.
  }
}

/**
 * The ids that /api/find returns, page by page.
 *
 * Args: `filter` (the parameters of the request), `onchange()` (called when there are more ids).
 */
export class FoundIds {
  constructor(filter, onchange, signal) {
    this.filter = filter;
    this.onchange = onchange;
    this.signal = signal;
    this.ids = [];
    this.positions = new Map();
    this.total = null; // number of ids, if it is known before they are
    this.scanned = 0;
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

  /** Stop the search; `extend` resumes it. */
  stop() {
    this.isStopped = true;
  }

  /** Load until there are `count` ids, or no more. */
  async extend(count) {
    this.wanted = Math.max(this.wanted, count);
    if (this.isRunning || this.isDone) return;
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
    this.cursor = found.cursor;
    this.isDone = found.cursor === null;
    this.total = this.isDone ? this.length : found.total;
    this.scanned = found.scanned ?? 0;
  }
}
