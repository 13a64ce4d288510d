// Save: a heads file, and the command and the Python lines that do the same as the screen.

import { find, make } from "./dom.js";
import { label } from "./map.js";

const shell = (text) => (/^[\w./:@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** Heads of a heads file: those whose gate is not 1, as L12H3. */
export const headsFile = (gates) => `${JSON.stringify([...gates.keys()].map(label), null, 0).replaceAll('","', '",\n"')}\n`;

/** The command that bakes the same gates into a checkpoint; null where none does. */
export function command(source, gates, reference, task) {
  const values = new Set(gates.values());
  if (!gates.size || values.size > 1 || reference !== "zero") return null;
  const [gate] = values;
  return `headwise export ${shell(source)} --heads heads.json${gate === 0 ? "" : ` --gate ${gate}`} --out exported --measure ${shell(task)}`;
}

export function python(source, gates, values, task) {
  const off = [...gates].filter(([, gate]) => gate === 0).map(([name]) => label(name)), text = (value) => JSON.stringify(value);
  const lines = ["import headwise as hw", "", `model = hw.load(${text(source)})`, `gates = model.gates(ablate=${JSON.stringify(off).replaceAll(",", ", ")})`];
  for (const [name, gate] of gates) if (gate !== 0) lines.push(`gates[${name.replace(".", ", ")}] = ${gate}`);
  if (values.reference === "patch") lines.push(`hw.measure(model, ${text(task)}, gates, reference="patch")`);
  else lines.push(`hw.generate(model, ${text(values.prompt)}, gates, reference=${text(values.reference)}, max_new_tokens=${values.new}${values.chat ? ", chat=True" : ""})`, `hw.measure(model, ${text(task)}, gates, reference=${text(values.reference)})`);
  return lines.join("\n");
}

export function showSave(about, state) {
  const { gates, values } = state, task = find("task").value, line = command(about.source, gates, values.reference, task);
  const body = find("saved-body");
  if (!gates.size) body.replaceChildren(make("p", {}, "No head is changed: switch heads off first."));
  else {
    const link = make("a", { href: URL.createObjectURL(new Blob([headsFile(gates)], { type: "application/json" })), download: "heads.json" }, "heads.json");
    body.replaceChildren(make("p", {}, "The heads file ", link, ` names the ${gates.size} heads whose gate is not 1.`),
      line ? make("div", {}, make("h3", {}, "Command"), make("pre", { tabindex: "0", id: "command", "aria-label": "Command" }, line)) : make("p", { class: "soft" }, "A checkpoint can have one gate for all heads, and zero ablation only; the Python lines do the same as this screen."),
      make("h3", {}, "Python"), make("pre", { tabindex: "0", id: "python", "aria-label": "Python" }, python(about.source, gates, values, task)));
    link.click();
  }
  find("saved").showModal();
}
