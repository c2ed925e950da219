// The classes of a split: ids, numbers of examples and names, as typed arrays.

import { getColumns, Strings } from "./api.js";

/** The classes of a split, in the order of their ids. */
export class ClassTable {
  constructor({ values, arrays }) {
    this.ids = arrays.id;
    this.counts = arrays.count;
    this.names = arrays["name.offsets"] ? new Strings(arrays, "name") : null;
    this.label = values.label;
    this.positions = null;
    this.lowered = null;
  }

  get length() {
    return this.ids.length;
  }

  /** Return the name of the class at a position; without names it is the id. */
  name(position) {
    return this.names ? this.names.at(position) : String(this.ids[position]);
  }

  /** Return the position of a class id; -1 if there is none. Ids are in ascending order. */
  position(id) {
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
    const order = Uint32Array.from({ length: this.length }, (_, position) => position);
    return order.sort((a, b) => this.counts[b] - this.counts[a] || a - b);
  }

  /** Return the positions whose names contain a string, without regard to case. */
  search(text) {
    const found = [];
    const wanted = text.toLowerCase();
    for (let position = 0; position < this.length; position += 1) {
      if (this.name(position).toLowerCase().includes(wanted)) found.push(position);
    }
    return Uint32Array.from(found);
  }
}

/** Load the classes of a split. */
export async function loadClasses(split) {
  return new ClassTable(await getColumns("classes", { split }));
}
