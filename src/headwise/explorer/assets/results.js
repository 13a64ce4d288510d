// The next-token distribution and the two continuations, with their differences marked.

import { find, make, percent, visible } from "./dom.js";

/** Draw the distribution of both models; a token is a button that makes it the target of live attribution. */
export function showNext(event, target, choose) {
  const rows = [...event.tokens].sort((a, b) => Math.max(b.full, b.gated) - Math.max(a.full, a.gated)).slice(0, 12);
  const most = Math.max(...rows.map((row) => Math.max(row.full, row.gated)), 1e-9);
  find("next").tBodies[0].replaceChildren(...rows.map((row) => {
    const button = make("button", { type: "button", "aria-pressed": String(row.id === target), title: `target of live attribution: ${visible(row.text)}` }, visible(row.text));
    button.addEventListener("click", () => choose(row.id));
    const bars = ["full", "gated"].map((side) => { const bar = make("div", { class: `bar ${side}` }); bar.style.width = `${(100 * row[side]) / most}%`; return bar; });
    return make("tr", { "data-token": row.id }, make("td", { class: "word" }, button), make("td", { class: "bars" }, bars),
      make("td", { class: "share full" }, percent(row.full)), make("td", { class: "share gated" }, percent(row.gated)));
  }));
  find("kl").textContent = event.kl > 1e-6 ? `KL ${event.kl < 0.01 ? event.kl.toExponential(1) : event.kl.toFixed(2)} nats` : "";
}

/** Both continuations; `ended` says which of them stopped at an end token. */
export function showTexts(texts, changed) {
  const gated = changed ? texts.gated : texts.full;
  const common = changed ? shared(gated.tokens, texts.full.tokens) : null;
  fill("gated-text", gated, common?.[0], true);
  fill("full-text", texts.full, gated.whole ? common?.[1] : null, gated.whole);
  const differ = changed && common ? common[0].filter((kept) => !kept).length : 0;
  const both = changed && gated.whole && texts.full.whole;
  find("same").textContent = !changed ? "no head is changed" : !both ? "" : differ || gated.tokens.length !== texts.full.tokens.length
    ? `${differ} of ${gated.tokens.length} tokens differ` : "the same text";
}

function fill(id, side, kept, mark) {
  const parts = [];
  side.tokens.forEach((token, at) => {
    const changed = mark && kept && !kept[at];
    parts.push(changed ? make("mark", {}, token.text) : token.text);
  });
  if (side.ended) parts.push(make("span", { class: "end" }, side.tokens.length ? " ■ end" : "■ ends at once"));
  find(id).replaceChildren(...parts);
}

/** Which tokens of both belong to their longest common subsequence. */
export function shared(a, b) {
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--) lengths[i][j] = a[i].id === b[j].id ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const kept = [new Array(a.length).fill(false), new Array(b.length).fill(false)];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i].id === b[j].id) kept[0][i++] = kept[1][j++] = true;
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return kept;
}
