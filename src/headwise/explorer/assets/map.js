// The map of all heads, which is also the control: one canvas, so that thousands of heads stay responsive.

const MARGIN = { left: 30, top: 18 };

export class HeadMap {
  /** hooks: toggle(key), select(keys), open(key), hover(key or null), set(gate), undo(), redo() */
  constructor(canvas, shape, exists, hooks) {
    Object.assign(this, { canvas, exists, hooks });
    [this.layers, this.heads] = shape;
    this.gates = new Map();
    this.selected = new Set();
    this.cursor = [0, 0];
    this.anchor = null;
    this.colour = null; // (layer, head) -> colour
    this.frames = 0;
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#up(event));
    canvas.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
    canvas.addEventListener("pointerleave", () => { if (!this.drag) this.hooks.hover(null); });
    canvas.addEventListener("dblclick", (event) => { const at = this.#cell(event); if (at) this.hooks.open(key(...at), true); });
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => { this.draw(); this.hooks.hover(key(...this.cursor)); });
    canvas.addEventListener("blur", () => this.draw());
    new ResizeObserver(() => this.#fit()).observe(canvas.parentElement);
  }

  #fit() {
    const room = this.canvas.parentElement.clientWidth - MARGIN.left - 2;
    this.wide = Math.max(4, Math.min(38, Math.floor(room / this.heads)));
    this.tall = Math.max(7, Math.min(17, Math.floor(620 / this.layers)));
    this.draw();
  }

  /** Draw at the next frame; many calls before it make one drawing. */
  draw() {
    if (this.waiting || !this.wide) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.#paint(); });
  }

  #paint() {
    const { canvas, wide, tall } = this;
    const width = MARGIN.left + wide * this.heads + 2, height = MARGIN.top + tall * this.layers + 2;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const [paper, soft, cell, off, gated, accent] = ["--paper", "--soft", "--cell", "--off", "--mark", "--accent"].map((name) => style.getPropertyValue(name));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = paper; pen.fillRect(0, 0, width, height);
    this.#labels(pen, soft);
    const gap = wide > 6 && tall > 6 ? 1 : 0.5;
    for (let layer = 0; layer < this.layers; layer++) {
      for (let head = 0; head < this.heads; head++) {
        if (!this.exists[layer][head]) continue;
        const [x, y] = this.#corner(layer, head), w = wide - gap, h = tall - gap, gate = this.gates.get(key(layer, head)) ?? 1;
        pen.fillStyle = this.colour?.(layer, head) ?? cell; pen.fillRect(x, y, w, h);
        if (gate < 1) { pen.fillStyle = off; pen.fillRect(x, y, w, h * (1 - gate)); }
        if (gate === 0 && wide > 9 && tall > 9) { pen.strokeStyle = paper; pen.lineWidth = 1.5; const m = Math.min(w, h) / 2 - 3, cx = x + w / 2, cy = y + h / 2; pen.beginPath(); pen.moveTo(cx - m, cy - m); pen.lineTo(cx + m, cy + m); pen.moveTo(cx + m, cy - m); pen.lineTo(cx - m, cy + m); pen.stroke(); }
        if (gate > 1) { pen.strokeStyle = gated; pen.lineWidth = 1 + 2 * (gate - 1); pen.strokeRect(x + 1, y + 1, w - 2, h - 2); }
      }
    }
    pen.strokeStyle = accent; pen.lineWidth = 2;
    pen.beginPath(); // one path: thousands of single strokes would cost frames
    for (const name of this.selected) { const [x, y] = this.#corner(...parts(name)); pen.rect(x - 0.5, y - 0.5, wide, tall); }
    pen.stroke();
    if (document.activeElement === canvas) {
      const [x, y] = this.#corner(...this.cursor);
      pen.setLineDash([3, 2]); pen.strokeStyle = off; pen.strokeRect(x - 1, y - 1, wide + 1, tall + 1); pen.setLineDash([]);
    }
    this.frames++;
  }

  #labels(pen, soft) {
    pen.fillStyle = soft; pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle"; pen.textAlign = "right";
    const down = step(this.layers, this.tall, 13), across = step(this.heads, this.wide, 18);
    for (let layer = 0; layer < this.layers; layer += down) pen.fillText(`L${layer}`, MARGIN.left - 5, this.#corner(layer, 0)[1] + this.tall / 2);
    pen.textAlign = "center";
    for (let head = 0; head < this.heads; head += across) pen.fillText(`H${head}`, this.#corner(0, head)[0] + Math.max(this.wide / 2, 8), MARGIN.top / 2);
  }

  #corner(layer, head) { return [MARGIN.left + head * this.wide, MARGIN.top + layer * this.tall]; }

  /** The middle of a cell in the window, for tests and the keyboard. */
  middle(layer, head) {
    const box = this.canvas.getBoundingClientRect(), [x, y] = this.#corner(layer, head);
    return [box.left + x + this.wide / 2, box.top + y + this.tall / 2];
  }

  #cell(event, clamp = false) {
    const box = this.canvas.getBoundingClientRect();
    let head = Math.floor((event.clientX - box.left - MARGIN.left) / this.wide), layer = Math.floor((event.clientY - box.top - MARGIN.top) / this.tall);
    if (clamp) { head = Math.min(this.heads - 1, Math.max(0, head)); layer = Math.min(this.layers - 1, Math.max(0, layer)); }
    return this.exists[layer]?.[head] ? [layer, head] : clamp ? [layer, head] : null;
  }

  #down(event) {
    const at = this.#cell(event);
    if (!at || event.button > 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.cursor = at;
    this.drag = { from: at, moved: false, more: event.shiftKey ? new Set(this.selected) : new Set() };
    this.draw();
  }

  #move(event) {
    const at = this.#cell(event, Boolean(this.drag));
    if (!this.drag) { this.hooks.hover(at ? key(...at) : null); return; }
    if (String(at) !== String(this.drag.from)) this.drag.moved = true;
    if (this.drag.moved && String(at) !== String(this.drag.to)) {
      this.drag.to = at;
      this.#choose(new Set([...this.drag.more, ...this.rectangle(this.drag.from, at)]));
    }
  }

  #up() {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    this.anchor = null;
    if (!drag.moved) { this.#choose(new Set([...drag.more, key(...drag.from)])); this.hooks.toggle(key(...drag.from)); }
    this.draw();
  }

  #choose(keys) { this.selected = keys; this.hooks.select(keys); this.draw(); }

  /** The heads in the rectangle between two cells. */
  rectangle(a, b) {
    const found = [];
    for (let layer = Math.min(a[0], b[0]); layer <= Math.max(a[0], b[0]); layer++)
      for (let head = Math.min(a[1], b[1]); head <= Math.max(a[1], b[1]); head++) if (this.exists[layer][head]) found.push(key(layer, head));
    return found;
  }

  #key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity], PageUp: [-5, 0], PageDown: [5, 0] };
    const name = key(...this.cursor), command = event.ctrlKey || event.metaKey;
    if (command && event.key.toLowerCase() === "z") event.shiftKey ? this.hooks.redo() : this.hooks.undo();
    else if (command && event.key.toLowerCase() === "a") this.#choose(new Set(this.rectangle([0, 0], [this.layers - 1, this.heads - 1])));
    else if (command || event.altKey) return;
    else if (moves[event.key]) {
      const from = this.anchor ?? this.cursor, [down, across] = moves[event.key];
      this.cursor = [clip(this.cursor[0] + down, this.layers), clip(this.cursor[1] + across, this.heads)];
      this.anchor = event.shiftKey ? from : null;
      if (event.shiftKey) this.#choose(new Set(this.rectangle(from, this.cursor)));
      this.hooks.hover(key(...this.cursor));
    } else if (event.key === " ") { if (this.selected.size < 2) this.#choose(new Set([name])); this.hooks.toggle(name); }
    else if (event.key === "Enter") this.hooks.open(name);
    else if (event.key === "0" || event.key === "1") { if (!this.selected.size) this.#choose(new Set([name])); this.hooks.set(Number(event.key)); }
    else if (event.key === "Escape") this.#choose(new Set());
    else return;
    event.preventDefault();
    this.draw();
  }
}

export const key = (layer, head) => `${layer}.${head}`;
export const parts = (name) => name.split(".").map(Number);
export const label = (name) => `L${name.replace(".", "H")}`;
const clip = (value, count) => Math.min(count - 1, Math.max(0, value));
/** Every how many cells a label fits. */
const step = (count, size, least) => [1, 2, 4, 5, 8, 10, 16, 20].find((every) => every * size >= least) ?? count;
