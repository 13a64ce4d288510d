// One head, opened: its attention on this prompt, the tokens it promotes, and what the run says of it.

import { ask } from "./api.js";
import { find, make, signed, table, visible } from "./dom.js";

export class OpenedHead {
  /** body(): the prompt and gates of the page. changed(name, query): the head or the row that is shown. */
  constructor(body, tasks, changed) {
    Object.assign(this, { body, tasks, changed });
    this.name = "";
    find("close").addEventListener("click", () => this.close());
  }

  /** Show a head; where it is shown already, its numbers are refreshed. `move`: bring it into view. */
  open(name, query = null, move = true) {
    const fresh = name !== this.name;
    this.name = name;
    if (fresh) this.parts = {};
    find("head").hidden = false;
    find("head-title").textContent = `Head ${name}`;
    if (fresh) find("head-body").replaceChildren(make("p", { class: "soft" }, "computing…"));
    if (move) { find("head").scrollIntoView({ block: "nearest", behavior: "auto" }); find("head-title").focus({ preventScroll: true }); }
    ask("head", { ...this.body(), head: name, query }, (event) => this.#take(event));
  }

  close() {
    this.name = "";
    find("head").hidden = true;
    this.changed("", -1);
    find("map").focus();
  }

  #take(event) {
    if (event.event === "error") { find("head-body").replaceChildren(make("p", { class: "soft" }, event.message)); return; }
    if (event.event === "attention") { this.seen = event.tokens ? event : { ...this.seen, ...event }; this.parts.attention = this.#attention(); }
    if (event.event === "promoted") this.parts.promoted = promoted(event);
    if (event.event === "rows") this.parts.rows = make("div", {}, event.tables.map((one) => make("div", {}, make("h3", {}, one.title), table(one.columns, one.rows, `${one.title}, ${event.head}`))));
    this.parts.card ??= this.#card();
    find("head-body").replaceChildren(...["attention", "promoted", "rows", "card"].map((name) => this.parts[name]).filter(Boolean));
    document.dispatchEvent(new CustomEvent("headwise:head", { detail: event.event }));
  }

  #row(query) {
    this.changed(this.name, query);
    ask("head", { ...this.body(), head: this.name, query, only_row: true }, (event) => {
      if (event.event !== "attention") return;
      const focused = find("head-body").querySelector(".tokens")?.contains(document.activeElement);
      this.#take(event);
      if (focused) find("head-body").querySelector(".tokens .query")?.focus();
    });
  }

  #attention() {
    const seen = this.seen;
    if (seen.note) return make("p", { class: "soft" }, seen.note);
    const most = seen.most.slice(0, 5).map((one) => `${visible(one.text)} (${one.key}) ${one.share.toFixed(2)}`).join(", ");
    const title = make("h3", {}, `Attention of token ${seen.query} “${visible(seen.tokens[seen.query])}”, with the current gates`);
    const parts = [title, make("p", { class: "soft" }, `Most: ${most}. Choose another token to see its row.`), this.#tokens()];
    if (seen.map) parts.push(make("div", { class: "heat", tabindex: "0", role: "region", "aria-label": "Map of attention, queries from top to bottom" }, heat(seen, (query) => this.#row(query))));
    return make("div", {}, parts);
  }

  /** The prompt, each token shaded by the attention it gets; arrows move between tokens, Enter chooses a row. */
  #tokens() {
    const seen = this.seen, colour = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
    const box = make("div", { class: "tokens", role: "group", "aria-label": "Tokens of the prompt, shaded by attention" });
    const buttons = seen.tokens.map((text, at) => {
      const share = seen.row[at] ?? 0, chosen = at === seen.query;
      const button = make("button", { type: "button", tabindex: chosen ? "0" : "-1", class: chosen ? "query" : null, title: `token ${at}: ${share}`, "aria-pressed": String(chosen) }, text);
      if (share > 0.004) button.style.background = `color-mix(in srgb, ${colour} ${Math.round(15 + 60 * Math.min(1, share))}%, transparent)`;
      return button;
    });
    box.append(...buttons);
    box.addEventListener("click", (event) => { const at = buttons.indexOf(event.target); if (at >= 0) this.#row(at); });
    box.addEventListener("keydown", (event) => {
      const at = buttons.indexOf(document.activeElement), to = at + ({ ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0);
      if (at < 0 || to === at || !buttons[to]) return;
      buttons[at].tabIndex = -1; buttons[to].tabIndex = 0; buttons[to].focus(); event.preventDefault();
    });
    return box;
  }

  #card() {
    const select = make("select", { "aria-label": "Task of the card" }, this.tasks.map((name) => make("option", {}, name)));
    select.value = find("task").value;
    const button = make("button", { type: "button" }, "Make its card"), out = make("div", {});
    button.addEventListener("click", () => {
      out.replaceChildren(make("p", { class: "soft" }, "computing: the head on 16 examples of the task…"));
      ask("card", { head: this.name, task: select.value, n: 16 }, (event) => {
        if (event.event === "card") out.replaceChildren(make("pre", { tabindex: "0", "aria-label": "Card" }, event.text));
        if (event.event === "error") out.replaceChildren(make("p", { class: "soft" }, event.message));
      });
    });
    return make("div", {}, make("div", { class: "row" }, select, button), out);
  }
}

function promoted(event) {
  if (event.note) return make("p", { class: "soft" }, event.note);
  const list = (name, title) => make("div", {}, make("h3", {}, title), make("ol", {}, event[name].map((one) => make("li", {}, `${visible(one.text)} `, make("span", { class: "n" }, signed(one.logit))))));
  return make("div", {}, make("div", { class: "lists" }, list("promoted", "Promotes at the last token (logit)"), list("suppressed", "Suppresses at the last token (logit)")));
}

/** The whole map of a short prompt, tokens on both axes. */
function heat(seen, choose) {
  const size = seen.tokens.length, cell = Math.max(9, Math.min(18, Math.floor(560 / size))), side = 92, ratio = window.devicePixelRatio || 1;
  const canvas = make("canvas", { width: (side + cell * size) * ratio, height: (side + cell * size) * ratio, role: "img", "aria-label": `attention map of ${size} tokens` });
  canvas.style.width = canvas.style.height = `${side + cell * size}px`;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), [soft, accent, line, gated] = ["--soft", "--accent", "--line", "--mark"].map((name) => style.getPropertyValue(name).trim());
  pen.scale(ratio, ratio);
  pen.font = `${Math.min(11, cell)}px ui-monospace, monospace`; pen.textBaseline = "middle";
  seen.tokens.forEach((text, at) => {
    pen.fillStyle = at === seen.query ? gated : soft; pen.textAlign = "right";
    pen.fillText(visible(text).slice(0, 13), side - 4, side + cell * (at + 0.5));
    pen.save(); pen.translate(side + cell * (at + 0.5), side - 4); pen.rotate(-Math.PI / 2); pen.textAlign = "left"; pen.fillText(visible(text).slice(0, 13), 0, 0); pen.restore();
    for (let other = 0; other <= at; other++) {
      pen.globalAlpha = 1; pen.fillStyle = line; pen.fillRect(side + cell * other, side + cell * at, cell - 1, cell - 1);
      pen.globalAlpha = Math.min(1, seen.map[at][other]); pen.fillStyle = accent; pen.fillRect(side + cell * other, side + cell * at, cell - 1, cell - 1);
    }
    pen.globalAlpha = 1;
  });
  pen.strokeStyle = gated; pen.lineWidth = 1.5; pen.strokeRect(side - 0.5, side + cell * seen.query - 0.5, cell * (seen.query + 1), cell);
  canvas.addEventListener("click", (event) => { const at = Math.floor((event.offsetY - side) / cell); if (at >= 0 && at < size) choose(at); });
  return canvas;
}
