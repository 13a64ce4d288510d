// The explorer's page: reads the state of the screen, asks the server, shows the answers.

import { ask, start } from "./api.js";
import { wireCheck } from "./check.js";
import { scaleOf } from "./colours.js";
import { find, make, signed, visible } from "./dom.js";
import { OpenedHead } from "./head.js";
import { HeadMap, key, label, parts } from "./map.js";
import { showNext, showTexts } from "./results.js";
import { showSave } from "./save.js";
import { State } from "./state.js";

const LIVE = "live";
const DELAY = 350; // milliseconds after the last key in the prompt

let about, state, map, head, texts, attribution, last, timer, urlTimer;

const changed = () => state.gates.size > 0;
const body = () => ({ prompt: state.values.prompt, counterfactual: state.values.counterfactual, reference: state.values.reference, chat: state.values.chat, gates: state.listed() });
const emptyText = () => ({ tokens: [], ended: false, whole: false });

// ---- asking ---------------------------------------------------------------------------------------------

function refresh() {
  texts = { full: texts?.prompt === promptKey() ? texts.full : emptyText(), gated: emptyText(), prompt: promptKey() };
  find("busy").hidden = false;
  ask("run", { ...body(), new_tokens: state.values.new }, takeRun);
}

const promptKey = () => JSON.stringify([state.values.prompt, state.values.chat, state.values.new]);

function takeRun(event) {
  if (event.event === "error") { problem(event.message); find("busy").hidden = true; return; }
  if (event.event === "prompt") { problem(""); find("length").textContent = `${event.tokens} tokens`; return; }
  if (event.event === "next") { last = event; showNext(event, target(), chooseTarget); }
  if (event.event === "text") texts.full = { tokens: event.tokens, ended: event.ended, whole: true };
  if (event.event === "token") { if (!texts[event.side].started) texts[event.side] = { ...emptyText(), started: true }; texts[event.side].tokens.push(event); }
  if (event.event === "written") Object.assign(texts[event.side], { ended: event.ended, whole: true });
  if (event.event === "done" || event.event === "cancelled") find("busy").hidden = true;
  if (event.event !== "next") showTexts(texts, changed());
  document.dispatchEvent(new CustomEvent(`headwise:${event.event}`, { detail: event }));
}

const target = () => (state.values.target >= 0 ? state.values.target : attribution?.target.id);

function chooseTarget(id) {
  state.set("target", state.values.target === id ? -1 : id);
  if (state.values.colour !== LIVE) { state.set("colour", LIVE); find("colour").value = LIVE; }
}

function attribute() {
  if (state.values.colour !== LIVE) return;
  const wanted = state.values.target >= 0 ? state.values.target : null;
  ask("attribution", { ...body(), gates: [], target: wanted }, (event) => {
    if (event.event === "error") { problem(event.message); return; }
    attribution = event;
    paint();
    if (last) showNext(last, target(), chooseTarget);
    document.dispatchEvent(new CustomEvent("headwise:attribution", { detail: event }));
  });
}

function problem(message) {
  find("problem").textContent = message;
  find("problem").hidden = !message;
}

// ---- the map ----------------------------------------------------------------------------------------------

function scores() {
  if (state.values.colour === LIVE) return attribution ? { values: attribution.values, name: `attribution of “${visible(attribution.target.text)}” here`, unit: "nats" } : null;
  return about.maps[Number(state.values.colour)] ?? null;
}

function paint() {
  const shown = scores();
  const scale = shown && scaleOf(shown);
  map.colour = scale ? (layer, at) => (shown.values[layer]?.[at] == null ? null : scale.colour(shown.values[layer][at])) : null;
  map.gates = state.gates;
  map.draw();
  find("scale").replaceChildren(...(scale ? legend(shown, scale) : []));
  find("top-off").disabled = find("top-keep").disabled = !shown;
}

function legend(shown, scale) {
  const bar = make("canvas", { width: 120, height: 10, role: "img", "aria-label": "colour scale" }), pen = bar.getContext("2d");
  for (let at = 0; at < 120; at++) { pen.fillStyle = scale.ramp(at / 119); pen.fillRect(at, 0, 1, 10); }
  const [least, most] = scale.saturates ? ["≤ ", "≥ "] : ["", ""];
  const ends = scale.low < 0 ? [`hinders ${least}${signed(scale.low)}`, `${most}${signed(scale.high)} helps`] : ["0", most + signed(scale.high).slice(1)];
  return [ends[0], bar, ends[1], make("span", {}, `${shown.name}${shown.unit ? ` (${shown.unit})` : ""}`)];
}

function hover(name) {
  if (!name) { find("at").textContent = ""; return; }
  const [layer, at] = parts(name), value = scores()?.values[layer]?.[at], gate = state.gate(name);
  find("at").textContent = `${label(name)}${value == null ? "" : `: ${signed(value)}`}, gate ${gate}${gate === 0 ? " (off)" : ""}`;
}

function showGates() {
  const off = [...state.gates.values()].filter((gate) => gate === 0).length, other = state.gates.size - off;
  find("off").textContent = [off && `${off} off`, other && `${other} scaled`].filter(Boolean).join(", ");
  find("undo").disabled = !state.past.length;
  find("redo").disabled = !state.future.length;
  find("reset").disabled = !state.gates.size;
  find("random").disabled = !state.gates.size;
  showChosen();
}

function showChosen() {
  const chosen = [...map.selected], gate = chosen.length ? state.gate(chosen[0]) : 1;
  find("chosen").textContent = !chosen.length ? "no head" : chosen.length === 1 ? label(chosen[0]) : `${chosen.length} heads`;
  find("gate").disabled = !chosen.length;
  find("open").disabled = chosen.length !== 1;
  find("gate").value = gate;
  find("gate-value").textContent = String(gate);
}

const setAll = (gate, commit = true) => state.change([...map.selected].map((name) => [name, gate]), commit);

function toggle(name) {
  const names = map.selected.size > 1 && map.selected.has(name) ? [...map.selected] : [name];
  const gate = state.gate(name) === 1 ? 0 : 1;
  state.change(names.map((one) => [one, gate]));
  hover(name);
}

function openHead(name, twice = false) {
  if (twice) state.forget(2); // the two clicks of a double-click switched the head off and on
  state.set("head", label(name));
  state.set("query", -1);
  head.open(label(name));
}

// ---- presets ----------------------------------------------------------------------------------------------

const every = () => about.exists.flatMap((row, layer) => row.map((there, at) => (there ? key(layer, at) : null)).filter(Boolean));

function ranked() {
  const values = scores().values, by = find("by").value;
  const size = { signed: (value) => value, absolute: Math.abs, hinders: (value) => -value }[by];
  const score = (name) => { const [layer, at] = parts(name), value = values[layer][at]; return value == null ? -Infinity : size(value); };
  return every().map((name, at) => [name, score(name), at]).sort((a, b) => b[1] - a[1] || a[2] - b[2]).map(([name]) => name);
}

function keepOnly(names) {
  const kept = new Set(names);
  state.replace(new Map(every().filter((name) => !kept.has(name)).map((name) => [name, 0])));
}

const switchOff = (names) => state.replace(new Map(names.map((name) => [name, 0])));

function wirePresets() {
  const first = () => ranked().slice(0, Math.max(1, Number(find("k").value) || 1));
  find("top-off").addEventListener("click", () => switchOff(first()));
  find("top-keep").addEventListener("click", () => keepOnly(first()));
  let seed = 0;
  find("random").addEventListener("click", () => ask("control", { gates: state.listed(), reference: state.values.reference, seed: seed++ }, (event) => {
    if (event.event === "error") problem(event.message);
    else if (event.event === "control") state.replace(new Map(event.gates.map(([layer, at, gate]) => [key(layer, at), gate])));
  }));
  find("named-row").hidden = !about.presets.length;
  find("named").append(...about.presets.map((one, at) => make("option", { value: at }, one.name)));
  find("apply").addEventListener("click", () => {
    const chosen = about.presets[Number(find("named").value)], names = chosen.heads.map((one) => one.slice(1).replace("H", "."));
    chosen.action === "keep" ? keepOnly(names) : switchOff(names);
  });
}

// ---- wiring -----------------------------------------------------------------------------------------------

function onChange(what) {
  if (what === "gates") { showGates(); map.gates = state.gates; map.draw(); refresh(); if (head.name) head.open(head.name, state.values.query < 0 ? null : state.values.query, false); }
  else if (["prompt", "counterfactual", "reference", "chat", "new"].includes(what)) {
    if (what === "prompt" || what === "chat") { attribution = undefined; state.values.target = -1; state.values.query = -1; }
    if (what !== "counterfactual" || state.values.reference === "patch") { refresh(); attribute(); if (head.name) head.open(head.name, null, false); }
  } else if (what === "colour" || what === "target") { attribute(); paint(); if (last) showNext(last, target(), chooseTarget); }
  clearTimeout(urlTimer);
  urlTimer = setTimeout(writeUrl, 150);
}

const writeUrl = () => history.replaceState(null, "", `#${state.fragment()}`);

function fillFields() {
  const { values } = state;
  for (const name of ["prompt", "counterfactual", "new", "colour"]) find(name).value = values[name];
  find("chat").checked = values.chat;
  for (const radio of document.getElementsByName("reference")) radio.checked = radio.value === values.reference;
}

function wireFields() {
  for (const name of ["prompt", "counterfactual"]) find(name).addEventListener("input", (event) => { clearTimeout(timer); timer = setTimeout(() => state.set(name, event.target.value), DELAY); });
  find("new").addEventListener("change", (event) => { const count = Math.min(about.limits.new, Math.max(1, Number(event.target.value) || 32)); event.target.value = count; state.set("new", count); });
  find("chat").addEventListener("change", (event) => state.set("chat", event.target.checked));
  find("colour").addEventListener("change", (event) => state.set("colour", event.target.value));
  for (const radio of document.getElementsByName("reference")) radio.addEventListener("change", () => state.set("reference", radio.value));
  find("gate").addEventListener("input", (event) => setAll(Number(event.target.value), false));
  find("gate").addEventListener("change", (event) => setAll(Number(event.target.value)));
  find("undo").addEventListener("click", () => state.undo());
  find("redo").addEventListener("click", () => state.redo());
  find("reset").addEventListener("click", () => state.replace(new Map()));
  find("open").addEventListener("click", () => openHead([...map.selected][0]));
  find("save").addEventListener("click", () => showSave(about, state));
  find("link").addEventListener("click", copyLink);
  find("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
  addEventListener("hashchange", () => { state.read(location.hash.slice(1), about.exists); fillFields(); showGates(); paint(); refresh(); attribute(); });
}

async function copyLink() {
  writeUrl();
  try { await navigator.clipboard.writeText(location.href); find("link").textContent = "Copied"; } catch { find("link").textContent = "It is in the address bar"; }
  setTimeout(() => { find("link").textContent = "Copy link"; }, 1500);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  find("theme").setAttribute("aria-pressed", String(theme === "dark"));
  if (map) paint();
  if (head?.name) head.open(head.name, state.values.query < 0 ? null : state.values.query, false);
}

function describe() {
  const [layers, heads] = about.shape, run = about.run;
  document.title = `${about.model} – headwise explorer`;
  find("model").textContent = `${about.model} · ${layers} layers × ${heads} heads${run ? ` · run ${run.name} (${run.study})` : ""}`;
  find("about").textContent = `headwise ${about.version}. The gate of a head multiplies its output: z′ = g·z + (1 − g)·r. Everything is computed on this machine; the address has a token, so share it only with people who may use the model.`;
  find("chat-label").hidden = !about.chat;
  find("colour").append(make("option", { value: "" }, "nothing"), make("option", { value: LIVE }, "live attribution on this prompt"), ...about.maps.map((one, at) => make("option", { value: at }, one.name)));
  find("task").append(...about.tasks.map((name) => make("option", {}, name)));
  if (!run && about.tasks.includes("ioi")) find("task").value = "ioi";
  find("map").setAttribute("aria-label", `Map of ${every().length} heads of ${about.model}`);
}

async function begin() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  try { about = await start(); } catch (error) { problem(`The explorer does not answer: ${error.message}`); return; }
  const defaults = { prompt: about.prompt, counterfactual: about.counterfactual, reference: "mean", new: 32, chat: false, colour: about.maps.length ? "0" : LIVE, target: -1, head: "", query: -1 };
  state = new State(defaults);
  describe();
  state.read(location.hash.slice(1), about.exists);
  map = new HeadMap(find("map"), about.shape, about.exists, { toggle, select: showChosen, open: openHead, hover, set: setAll, undo: () => state.undo(), redo: () => state.redo() });
  head = new OpenedHead(body, about.tasks, (name, query) => { state.set("head", name); state.set("query", query); });
  wireFields();
  wirePresets();
  wireCheck(() => ({ gates: state.listed(), reference: state.values.reference, count: state.gates.size }));
  fillFields();
  state.onChange(onChange);
  showGates();
  paint();
  refresh();
  attribute();
  if (/^L\d+H\d+$/.test(state.values.head)) head.open(state.values.head, state.values.query < 0 ? null : state.values.query, false);
  window.headwise = { map, state }; // for the console and for tests
  document.dispatchEvent(new CustomEvent("headwise:ready"));
}

begin();
