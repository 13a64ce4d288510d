// What the screen shows, its undo history, and its form in the URL: a link reproduces the screen.

const MOST_UNDO = 200;

export class State {
  constructor(defaults) {
    this.defaults = defaults;
    this.values = { ...defaults };
    this.gates = new Map(); // "layer.head" -> gate; heads at 1 are not in it
    this.past = [];
    this.future = [];
    this.listeners = [];
  }

  /** `listen(what)` is called with "gates" or the name of a value after it has changed. */
  onChange(listen) { this.listeners.push(listen); }
  tell(what) { for (const listen of this.listeners) listen(what); }

  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    this.tell(name);
  }

  gate(key) { return this.gates.get(key) ?? 1; }

  /** Gates after `changes` (key -> gate), as one step of the history; while a slider moves, `commit` is false. */
  change(changes, commit = true) {
    const next = new Map(this.gates);
    for (const [key, gate] of changes) gate === 1 ? next.delete(key) : next.set(key, gate);
    this.replace(next, commit);
  }

  replace(next, commit = true) {
    const before = this.before ?? this.gates;
    if (commit) {
      this.before = undefined;
      if (same(before, next)) { this.gates = next; this.tell("gates"); return; }
      this.past = [...this.past, before].slice(-MOST_UNDO);
      this.future = [];
    } else {
      this.before = before;
    }
    this.gates = next;
    this.tell("gates");
  }

  undo() { this.#step(this.past, this.future); }
  redo() { this.#step(this.future, this.past); }

  /** Take the last `count` steps back without a way to redo them. */
  forget(count) {
    while (count-- > 0 && this.past.length) this.gates = this.past.pop();
    this.tell("gates");
  }

  #step(from, to) {
    if (!from.length) return;
    to.push(this.gates);
    this.gates = from.pop();
    this.tell("gates");
  }

  /** The gates as the server takes them. */
  listed() { return [...this.gates].map(([key, gate]) => [...key.split(".").map(Number), gate]); }

  // ---- the URL ----------------------------------------------------------------------------------------

  fragment() {
    const { defaults } = this;
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(this.values)) {
      if (value !== defaults[name] && value !== "" && value !== null) parameters.set(name, value);
      else if (value === "" && defaults[name]) parameters.set(name, "");
    }
    const byGate = new Map();
    for (const [key, gate] of this.gates) byGate.set(gate, [...(byGate.get(gate) ?? []), key]);
    for (const [gate, keys] of byGate) parameters.append("g", `${gate}:${keys.join(",")}`);
    return parameters.toString();
  }

  read(fragment, exists) {
    const parameters = new URLSearchParams(fragment);
    this.values = { ...this.defaults };
    for (const [name, value] of Object.entries(this.values)) {
      if (!parameters.has(name)) continue;
      const given = parameters.get(name);
      if (typeof value === "number") { const number = Number.parseInt(given, 10); if (number >= 0) this.values[name] = number; }
      else this.values[name] = typeof value === "boolean" ? given === "true" : given;
    }
    this.gates = new Map();
    for (const part of parameters.getAll("g")) {
      const [gate, keys] = part.split(":");
      for (const key of (keys ?? "").split(",")) {
        const [layer, head] = key.split(".").map(Number);
        const number = Number(gate);
        if (exists[layer]?.[head] && number >= 0 && number <= 2 && number !== 1) this.gates.set(`${layer}.${head}`, number);
      }
    }
  }
}

function same(a, b) {
  return a.size === b.size && [...a].every(([key, gate]) => b.get(key) === gate);
}
