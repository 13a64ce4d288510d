// “Is this real?”: the effect of the gates on held-out examples beside matched random heads.

import { ask, stop } from "./api.js";
import { find, make, signed } from "./dom.js";

export function wireCheck(gates) {
  const done = () => { find("progress").hidden = find("stop").hidden = true; find("check").disabled = false; };
  find("check").addEventListener("click", () => {
    const { count, ...body } = gates();
    find("progress").value = 0;
    find("progress").hidden = find("stop").hidden = false;
    find("check").disabled = true;
    find("real").replaceChildren();
    ask("check", { ...body, task: find("task").value, n: Number(find("n").value) || 32 }, (event) => {
      if (event.event === "progress") { find("progress").max = event.of; find("progress").value = event.done; }
      if (event.event === "error") find("real").replaceChildren(make("p", {}, event.message));
      if (event.event === "significance") find("real").replaceChildren(...report(event, count, body.reference));
      if (event.event === "significance" || event.event === "error") { done(); document.dispatchEvent(new CustomEvent("headwise:real", { detail: event })); }
    });
  });
  find("stop").addEventListener("click", () => { stop("check"); done(); });
}

const interval = (one) => `${signed(one.mean)} [${signed(one.lo)}, ${signed(one.hi)}]`;

/** The result in sentences, and as a chart of three intervals. */
export function report(event, count, reference) {
  const { difference } = event, heads = `${count} head${count === 1 ? "" : "s"}`;
  const clear = difference.lo > 0 || difference.hi < 0;
  const verdict = !clear ? "Not distinguishable from random heads of the same layers."
    : difference.mean > 0 ? "Yes: these heads help this task more than random heads of the same layers." : "Yes, in the other direction: without these heads the task goes better than without random ones.";
  const sentence = `Effect on ${event.metric}, all heads minus these gates (${heads}, ${reference} ablation), on ${event.n} held-out examples of ${event.task}: ${interval(event.effect)}; with all heads it is ${signed(event.full).replace("+", "")}. The same gates on random heads of the same layers (mean of ${event.draws} draws): ${interval(event.control)}. Difference ${interval(difference)}, p ${difference.p < 0.001 ? "< 0.001" : `= ${difference.p.toFixed(3)}`}; 95 % intervals over examples.`;
  return [make("p", { class: "verdict" }, verdict), chart([["these heads", event.effect], ["random heads", event.control], ["difference", difference]], event.metric), make("p", { class: "soft" }, sentence)];
}

function chart(rows, metric) {
  const values = rows.flatMap(([, one]) => [one.lo, one.hi, 0]), low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  const x = (value) => 110 + ((value - low) / span) * 270, marks = [];
  rows.forEach(([name, one], at) => {
    const y = 18 + at * 24;
    marks.push(make("svg:text", { x: 0, y: y + 4, fill: "currentColor", "font-size": 12 }, name),
      make("svg:line", { x1: x(one.lo), x2: x(one.hi), y1: y, y2: y, stroke: "currentColor", "stroke-width": 2 }),
      make("svg:circle", { cx: x(one.mean), cy: y, r: 4.5, fill: "var(--mark)" }));
  });
  marks.push(make("svg:line", { x1: x(0), x2: x(0), y1: 4, y2: 78, stroke: "var(--soft)", "stroke-dasharray": "3 3" }), make("svg:text", { ...(x(0) > 320 ? { x: Math.min(398, x(0) + 6), "text-anchor": "end" } : { x: x(0), "text-anchor": "middle" }), y: 92, fill: "var(--soft)", "font-size": 11 }, `0 (${metric} lost)`));
  return make("svg:svg", { viewBox: "0 0 400 96", class: "forest", role: "img", "aria-label": rows.map(([name, one]) => `${name} ${interval(one)}`).join("; ") }, marks);
}
