// Examples, which are loaded in batches, lists of record ids, and the classes of a split.

import { getArrays, getJson, stream } from "./api.js";

const MAX_BATCH = 100;
const MAX_KEPT = 4000;
const MAX_WANTED = 1000; // older requests are out of view
const WAIT_MS = 30;
const PAGE = 500; // ids
const MAX_LIMIT = 1000;

const kept = new Map(); // "split/id" -> example, the most recently used are last
const wanted = new Map(); // "split/id" -> the functions that wait for it
let timer = 0;
let running = 0;

/** Keep examples that were loaded with something else. */
export function keepExamples(split, examples) {
  for (const each of examples) kept.set(`${split}/${each.id}`, each);
}

/** Return an example if it is loaded. */
export function peekExample(split, id) {
  return kept.get(`${split}/${id}`);
}

/** Return an example; an example that cannot be read is `{id, error}`. */
export function loadExample(split, id) {
  const key = `${split}/${id}`;
  if (kept.has(key)) return Promise.resolve(kept.get(key));
  return new Promise((resolve) => {
    if (!wanted.has(key)) wanted.set(key, { split, id, waiting: [] });
    wanted.get(key).waiting.push(resolve);
    if (wanted.size > MAX_WANTED) wanted.delete(wanted.keys().next().value);
    clearTimeout(timer);
    timer = setTimeout(send, WAIT_MS);
  });
}

async function send() {
  if (running >= 2 || !wanted.size) return;
  const { split } = [...wanted.values()].at(-1); // the last are in view now
  const batch = [...wanted].filter(([, each]) => each.split === split).slice(-MAX_BATCH);
  for (const [key] of batch) wanted.delete(key);
  running += 1;
  let find;
  try {
    const { examples } = await getJson("examples", { split, ids: batch.map(([, { id }]) => id).join() });
    const found = new Map(examples.map((each) => [each.id, each]));
    keepExamples(split, examples);
    find = (id) => found.get(id) ?? { id, error: "the server did not return it" };
  } catch (error) {
    find = (id) => ({ id, error: error.message }); // of the request: the example may be loaded later
  }
  running -= 1;
  for (const [, { id, waiting }] of batch) for (const resolve of waiting) resolve(find(id));
  for (const key of kept.keys()) if (kept.size > MAX_KEPT) kept.delete(key);
  send();
}

/** Return a list of known ids: an array, or a number for all ids below it. */
export function knownIds(ids) {
  const isAll = typeof ids === "number";
  const length = isAll ? ids : ids.length;
  return {
    length, isAll, isDone: true, at: (index) => (isAll ? index : ids[index]),
    indexOf: (id) => (isAll ? id : ids.indexOf(id)), want() {},
    all: async (limit) => Array.from({ length: Math.min(limit, length) }, (_, index) => (isAll ? index : ids[index])),
  };
}

/** The ids of a class, or of the examples that meet conditions: they are read as far as they are wanted. */
export class FoundIds {
  constructor(filter, onchange, signal) {
    Object.assign(this, { filter, onchange, signal, ids: [], cursor: 0, scanned: 0, of: 0, corrupt: 0 });
    this.running = null; // the promise of the request
    this.error = null;
  }

  get length() {
    return this.ids.length;
  }

  get isDone() {
    return this.cursor === null;
  }

  at(index) {
    return this.ids[index];
  }

  indexOf(id) {
    return this.ids.indexOf(id);
  }

  /** Search until there are `last` ids, or no more. */
  want(last) {
    if (this.running || this.isDone || this.error || this.length >= last) return this.running;
    this.running = this.read(Math.max(PAGE, last - this.length)).finally(() => {
      this.running = null;
      if (!this.signal.aborted) this.onchange();
    });
    return this.running;
  }

  async read(limit) {
    try {
      const parameters = { ...this.filter, cursor: this.cursor, limit: Math.min(limit, MAX_LIMIT) };
      for await (const part of stream("find", parameters, this.signal)) {
        for (const id of part.ids) this.ids.push(id);
        this.corrupt += part.corrupt ?? 0;
        Object.assign(this, { cursor: part.cursor, scanned: part.scanned, of: part.of });
        if (!this.signal.aborted) this.onchange();
      }
    } catch (error) {
      this.error = error;
    }
  }

  /** Return the first `limit` ids. */
  async all(limit) {
    while (this.length < limit && !this.isDone && !this.error) {
      await this.running;
      await this.want(limit);
    }
    if (this.error) throw this.error;
    return this.ids.slice(0, limit);
  }
}

/** The classes of a split, in the order of their ids, which are BigInts: they may exceed 2^53. */
class ClassTable {
  constructor({ id, count, name }) {
    Object.assign(this, { ids: id, counts: count, names: name, length: id.length });
  }

  /** Return the name of the class at a position; without names it is the id. */
  name(position) {
    return this.names ? this.names[position] : String(this.ids[position]);
  }

  /** Return the position of a class id, given as a BigInt or as a text; -1 if there is none. */
  position(text) {
    if (!/^-?\d{1,20}$/.test(text)) return -1;
    const id = BigInt(text);
    let [low, high] = [0, this.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ids[middle] < id) low = middle + 1;
      else high = middle;
    }
    return this.ids[low] === id ? low : -1;
  }

  /** Return the positions sorted by count, the largest first. */
  bySize() {
    this.order ??= Uint32Array.from(this.ids, (_, i) => i).sort((a, b) => this.counts[b] - this.counts[a] || a - b);
    return this.order;
  }

  /** Return the positions whose names contain a string, without regard to case; at most `limit`. */
  search(text, limit = Infinity) {
    this.lowered ??= Array.from(this.ids, (_, position) => this.name(position).toLowerCase());
    const wanted = text.toLowerCase();
    const found = [];
    for (let i = 0; i < this.length && found.length < limit; i += 1) {
      if (this.lowered[i].includes(wanted)) found.push(i);
    }
    return found;
  }
}

const tables = new Map();

/** Return the class table of a split; it is loaded once. */
export function classesOf(split) {
  if (!tables.has(split)) {
    const table = getArrays("classes", { split }).then((found) => new ClassTable(found));
    table.catch(() => tables.delete(split));
    tables.set(split, table);
  }
  return tables.get(split);
}
