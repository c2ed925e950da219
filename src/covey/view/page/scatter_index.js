// An index of points: a grid of cells, for the nearest point and for the points inside a polygon.

const POINTS_PER_CELL = 8;
const MAX_SIDE = 1024;

/** Return [low, high] of an array; [0, 0] if it is empty. */
function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < values.length; i += 1) {
    if (values[i] < low) low = values[i];
    if (values[i] > high) high = values[i];
  }
  return values.length ? [low, high] : [0, 0];
}

/** Return whether a point is inside a polygon: a flat list of x and y, by the even-odd rule. */
export function isInside(polygon, x, y) {
  let inside = false;
  for (let i = 0, j = polygon.length - 2; i < polygon.length; j = i, i += 2) {
    const [x1, y1, x2, y2] = [polygon[i], polygon[i + 1], polygon[j], polygon[j + 1]];
    if (y1 > y !== y2 > y && x < ((x2 - x1) * (y - y1)) / (y2 - y1) + x1) inside = !inside;
  }
  return inside;
}

/** Points in a grid of cells; `order` has the points of one cell after the other. */
export class PointIndex {
  constructor(x, y) {
    this.x = x;
    this.y = y;
    [this.left, this.right] = extent(x);
    [this.bottom, this.top] = extent(y);
    this.side = Math.max(1, Math.min(MAX_SIDE, Math.ceil(Math.sqrt(x.length / POINTS_PER_CELL))));
    this.cellWidth = (this.right - this.left) / this.side || 1;
    this.cellHeight = (this.top - this.bottom) / this.side || 1;
    const cells = new Uint32Array(x.length);
    this.starts = new Uint32Array(this.side * this.side + 1);
    for (let i = 0; i < x.length; i += 1) {
      cells[i] = this.column(x[i]) + this.side * this.row(y[i]);
      this.starts[cells[i] + 1] += 1;
    }
    for (let i = 1; i < this.starts.length; i += 1) this.starts[i] += this.starts[i - 1];
    const next = this.starts.slice();
    this.order = new Uint32Array(x.length);
    for (let i = 0; i < x.length; i += 1) {
      this.order[next[cells[i]]] = i;
      next[cells[i]] += 1;
    }
  }

  column(x) {
    return Math.max(0, Math.min(this.side - 1, Math.floor((x - this.left) / this.cellWidth)));
  }

  row(y) {
    return Math.max(0, Math.min(this.side - 1, Math.floor((y - this.bottom) / this.cellHeight)));
  }

  /** Call a function with each point in the cells of a box. */
  visit(left, bottom, right, top, action) {
    if (right < this.left || left > this.right || top < this.bottom || bottom > this.top) return;
    const [first, last] = [this.column(left), this.column(right)];
    for (let row = this.row(bottom); row <= this.row(top); row += 1) {
      const end = this.starts[row * this.side + last + 1];
      for (let at = this.starts[row * this.side + first]; at < end; at += 1) action(this.order[at]);
    }
  }

  /** Return the point nearest to a position, at most `radius` away; -1 if there is none. */
  nearest(x, y, radius) {
    let found = -1;
    let least = radius * radius;
    this.visit(x - radius, y - radius, x + radius, y + radius, (i) => {
      const distance = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
      // Of equal points the last is on top.
      if (distance < least || (distance === least && i > found)) [found, least] = [i, distance];
    });
    return found;
  }

  /** Return the points inside a polygon, in ascending order. */
  inside(polygon) {
    const xs = polygon.filter((_, i) => i % 2 === 0);
    const ys = polygon.filter((_, i) => i % 2 === 1);
    const found = [];
    this.visit(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys), (i) => {
      if (isInside(polygon, this.x[i], this.y[i])) found.push(i);
    });
    return Uint32Array.from(found).sort();
  }

  /** Return the points in a box, in ascending order. */
  inBox(left, bottom, right, top) {
    const found = [];
    this.visit(left, bottom, right, top, (i) => {
      const isIn = this.x[i] >= left && this.x[i] <= right && this.y[i] >= bottom && this.y[i] <= top;
      if (isIn) found.push(i);
    });
    return Uint32Array.from(found).sort();
  }
}
