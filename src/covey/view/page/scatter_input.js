// Input of a point cloud: drag pans or draws a lasso, wheel and pinch zoom, click picks; keys for all of them.

const CLICK_DISTANCE = 4;
const LASSO_DISTANCE = 3;
const PAN_STEP = 60;
const KEY_RADIUS = 60; // pixels around the centre in which keys pick a point

/** Listens to the canvas of a Scatter until the signal is aborted. */
export class ScatterInput {
  constructor(scatter, signal) {
    this.scatter = scatter;
    this.pointers = new Map();
    const on = (name, action) => scatter.canvas.addEventListener(name, action, { signal, passive: false });
    on("pointerdown", (event) => this.onDown(event));
    on("pointermove", (event) => this.onMove(event));
    on("pointerup", (event) => this.onUp(event));
    on("pointercancel", (event) => this.onUp(event, true));
    on("pointerleave", () => scatter.hover(-1));
    on("wheel", (event) => this.onWheel(event));
    on("keydown", (event) => this.onKey(event));
  }

  at(event) {
    const box = this.scatter.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  onDown(event) {
    const { scatter } = this;
    if (event.button !== 0) return;
    this.scatter.canvas.setPointerCapture(event.pointerId);
    const [x, y] = this.at(event);
    this.pointers.set(event.pointerId, { x, y, startX: x, startY: y, isClick: this.pointers.size === 0 });
    if (this.pointers.size > 1) {
      scatter.lasso = null; // two fingers zoom
      for (const each of this.pointers.values()) each.isClick = false;
    } else if (event.shiftKey || scatter.isLassoMode) scatter.lasso = [x, y];
  }

  onMove(event) {
    const { scatter } = this;
    const [x, y] = this.at(event);
    const pointer = this.pointers.get(event.pointerId);
    if (!pointer) {
      scatter.hover(scatter.pick(x, y));
      return;
    }
    const [dx, dy] = [x - pointer.x, y - pointer.y];
    if (Math.hypot(x - pointer.startX, y - pointer.startY) > CLICK_DISTANCE) pointer.isClick = false;
    if (scatter.lasso) {
      // A browser reports the moves of one frame as one event.
      const moves = event.getCoalescedEvents?.() ?? [];
      for (const [a, b] of [...moves.map((move) => this.at(move)), [x, y]]) {
        if (Math.hypot(a - scatter.lasso.at(-2), b - scatter.lasso.at(-1)) >= LASSO_DISTANCE) scatter.lasso.push(a, b);
      }
      scatter.drawOverlay();
    } else if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const before = Math.hypot(pointer.x - other.x, pointer.y - other.y);
      const now = Math.hypot(x - other.x, y - other.y);
      scatter.pan(dx / 2, dy / 2);
      if (before > 0 && now > 0) scatter.zoom(now / before, (x + other.x) / 2, (y + other.y) / 2);
    } else if (!pointer.isClick) {
      scatter.hover(-1);
      scatter.pan(dx, dy);
    }
    [pointer.x, pointer.y] = [x, y];
  }

  onUp(event, isCanceled = false) {
    const { scatter } = this;
    const pointer = this.pointers.get(event.pointerId);
    if (!pointer) return;
    this.pointers.delete(event.pointerId);
    const { lasso } = scatter;
    scatter.lasso = null;
    scatter.drawOverlay();
    if (isCanceled) return;
    if (pointer.isClick) {
      const found = scatter.pick(pointer.x, pointer.y);
      if (found >= 0) scatter.options.onpick(found);
    } else if (lasso && lasso.length >= 6) {
      scatter.options.onlasso(scatter.inside(lasso));
    }
  }

  onWheel(event) {
    const { scatter } = this;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 30 : 1;
    const change = Math.max(-400, Math.min(400, event.deltaY * lines));
    scatter.zoom(Math.exp(-change * (event.ctrlKey ? 0.01 : 0.0018)), ...this.at(event));
  }

  onKey(event) {
    const { scatter } = this;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (moves[event.key]) scatter.pan(...moves[event.key].map((each) => each * PAN_STEP));
    else if (event.key === "+" || event.key === "=") scatter.zoom(1.4);
    else if (event.key === "-") scatter.zoom(1 / 1.4);
    else if (event.key === "0") scatter.fit();
    else if (event.key === "Escape" && scatter.lasso) scatter.lasso = null;
    else if (event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation(); // the page has keys, too
    const found = scatter.pick(scatter.width / 2, scatter.height / 2, KEY_RADIUS);
    scatter.hover(found);
    if (found < 0) return;
    if (event.key === "Enter") scatter.options.onpick(found);
    else scatter.options.announce?.(scatter.options.describe(found));
  }
}
