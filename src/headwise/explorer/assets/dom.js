// Small helpers for the page. Text always becomes a text node: nothing of a prompt or a model is read as HTML.

export const find = (id) => document.getElementById(id);

/** An element with attributes, and children that are elements or texts. */
export function make(name, attributes = {}, ...children) {
  const element = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(attribute, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(attribute, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A token with its spaces and line breaks visible. */
export const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ /, "·") || "∅";

export function percent(share) {
  if (share >= 0.1) return `${(100 * share).toFixed(1)} %`;
  if (share >= 0.0001) return `${(100 * share).toFixed(2)} %`;
  return share === 0 ? "0" : "< 0.01 %";
}

/** A number with its sign and three significant digits. */
export function signed(value) {
  const size = Math.abs(value);
  const text = size >= 1000 || (size < 0.001 && size > 0) ? size.toExponential(1) : Number(size.toPrecision(3)).toString();
  return `${value < 0 ? "−" : "+"}${text}`;
}

export function table(columns, rows, caption) {
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("thead", {}, make("tr", {}, columns.map((name) => make("th", { scope: "col" }, name.replaceAll("_", " "))))),
      make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, cell)))))));
}
