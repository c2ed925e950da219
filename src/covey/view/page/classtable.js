// The classes of a split: ids, numbers of examples and names, as typed arrays.
//
// A search looks for its string in one string of all names: one million names take milliseconds.

import { getColumns, Strings } from "./api.js";

/** The classes of a split, in the order of their ids. */
export class ClassTable {
  constructor({ values, arrays }) {
    this.ids = arrays.id;
    this.counts = arrays.count;
    this.names = arrays["name.offsets"] ? new Strings(arrays, "name") : null;
    this.label = values.label;
    this.lowered = null;
    this.orders = {};
  }

  get length() {
    return this.ids.length;
  }

  /** Return the name of the class at a position; without names it is the id. */
  name(position) {
    return this.names ? this.names.at(position) : String(this.ids[position]);
  }

  /**
   * Return the position of a class id, given as a BigInt or as a text; -1 if there is none.
   *
   * Ids are BigInts in ascending order: they may exceed 2^53.
   */
  position(text) {
    if (!/^-?\d{1,20}$/.test(text)) return -1;
    const id = BigInt(text);
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ids[middle] < id) low = middle + 1;
      else high = middle;
    }
    return this.ids[low] === id ? low : -1;
  }

  /** Return the positions sorted by count, the largest first. */
  bySize() {
    if (!this.orders.size) {
      // Counts and positions as one number each: numbers are sorted much faster than by a function.
      const count = this.length;
      const scale = 2 ** Math.ceil(Math.log2(Math.max(2, count)));
      const keys = Float64Array.from(this.counts, (each, position) => each * scale + (count - 1 - position)).sort();
      this.orders.size = Uint32Array.from(keys, (_, i) => count - 1 - (keys[count - 1 - i] % scale));
    }
    return this.orders.size;
  }

  /** Return the positions sorted by name, without regard to case; without names by id. */
  byName() {
    if (!this.orders.name) {
      const order = Uint32Array.from(this.ids, (_, position) => position);
      if (this.names) {
        const { text, offsets } = this.lower();
        const each = Array.from(order, (position) => text.slice(offsets[position], offsets[position + 1]));
        order.sort((a, b) => (each[a] < each[b] ? -1 : each[a] > each[b] ? 1 : a - b));
      }
      this.orders.name = order;
    }
    return this.orders.name;
  }

  /** Return all names in lower case as one string, and the offset of each. */
  lower() {
    if (this.lowered) return this.lowered;
    if (this.names?.data.every((byte) => byte < 128)) {
      const text = new TextDecoder().decode(this.names.data).toLowerCase();
      this.lowered = { text, offsets: this.names.offsets };
    } else {
      const names = Array.from({ length: this.length }, (_, position) => this.name(position).toLowerCase());
      const offsets = new Uint32Array(this.length + 1);
      for (let i = 0; i < names.length; i += 1) offsets[i + 1] = offsets[i] + names[i].length;
      this.lowered = { text: names.join(""), offsets };
    }
    return this.lowered;
  }

  /** Return the positions whose names contain a string, without regard to case; at most `limit`. */
  search(text, limit = Infinity) {
    const wanted = text.toLowerCase();
    const found = [];
    const { text: all, offsets } = this.lower();
    if (!wanted) return Uint32Array.from({ length: Math.min(limit, this.length) }, (_, position) => position);
    let position = 0;
    for (let at = all.indexOf(wanted); at >= 0 && found.length < limit;) {
      while (offsets[position + 1] <= at) position += 1;
      const isInside = at + wanted.length <= offsets[position + 1]; // not across two names
      if (isInside) found.push(position);
      at = all.indexOf(wanted, isInside ? offsets[position + 1] : at + 1);
    }
    return Uint32Array.from(found);
  }
}

/** Load the classes of a split. */
export async function loadClasses(split) {
  return new ClassTable(await getColumns("classes", { split }));
}
