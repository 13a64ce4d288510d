"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const make = (tag, text, attributes = {}) => {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const short = (value) => (value === null || value === undefined ? "–" : String(+Number(value).toPrecision(4)));
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // ---- charts -------------------------------------------------------------------------------------------
  const drawn = new Map(); // id of a chart -> its references, once it is on the page
  let chosen = null; // {model, layer, head}

  // `pixels`: the length of the axis. Many names (the tokens of a prompt) are written smaller, and where even that does
  // not fit, every second or third is left out.
  const axisStyle = (given, domain, anchor, pixels) => {
    const { title, ...rest } = given || {};
    let size = 11;
    if (rest.ticktext && rest.ticktext.length > 12) {
      const every = Math.ceil((8 * rest.ticktext.length) / pixels);
      rest.tickvals = rest.tickvals.filter((_, i) => i % every === 0);
      rest.ticktext = rest.ticktext.filter((_, i) => i % every === 0);
      size = Math.max(7, Math.min(11, (0.8 * pixels) / rest.ticktext.length));
    }
    return {
      gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--soft"), ...rest,
      domain, anchor, title: title ? { text: title, standoff: 6, font: { size: 12 } } : undefined, tickfont: { size },
    };
  };

  // Words on lines of at most so many characters; a word alone may be longer.
  function folded(text, most) {
    const lines = [""];
    for (const word of text.replaceAll("<br>", " ").trim().split(/(?<=[ _/,;-])/)) {
      if (lines.at(-1) && (lines.at(-1) + word).trimEnd().length > most) lines.push(word);
      else lines.push(lines.pop() + word);
    }
    return lines.map((line) => line.trim()).join("<br>");
  }
  const lineCount = (text) => text.split("<br>").length;

  const lighter = (part) => Math.round(0.7 * part + 0.3 * 255); // lines and bands on a dark page

  // Colours that depend on the page: text, background, and palettes that are nearly white at 0.
  function themed(trace) {
    const { dark, ...rest } = trace;
    const named = (value) => {
      if (value === "ink" || value === "paper") return colour(`--${value}`);
      const hex = root.dataset.theme === "dark" && /^#([\da-f]{2})([\da-f]{2})([\da-f]{2})$/i.exec(value || "");
      return hex ? `rgb(${hex.slice(1).map((part) => lighter(parseInt(part, 16)))})` : value;
    };
    const on = root.dataset.theme === "dark";
    if (dark && on) rest.colorscale = dark;
    if (rest.fillcolor && on) rest.fillcolor = rest.fillcolor.replace(/^rgba\((\d+),(\d+),(\d+),([\d.]+)\)$/,
      (_, r, g, b, a) => `rgba(${[r, g, b].map(lighter)},${Math.min(1, 1.6 * a)})`);
    if (rest.line) rest.line = { ...rest.line, color: named(rest.line.color) };
    if (rest.error_y && on) rest.error_y = { ...rest.error_y, color: named(rest.error_y.color) };
    if (rest.marker) {
      rest.marker = { ...rest.marker, color: rest.type === "scatter" ? named(rest.marker.color) : rest.marker.color };
      if (rest.marker.line) rest.marker.line = { ...rest.marker.line, color: named(rest.marker.line.color) };
    }
    return rest;
  }

  // A panel's own legend, in the corner that its curves leave free.
  function cornerLegend(layout, i, corner, across, up) {
    const name = `legend${i + 2}`, right = corner.includes("right"), top = corner.includes("upper");
    const middle = corner.includes("center");
    layout[name] = {
      x: middle ? (across[0] + across[1]) / 2 : right ? across[1] : across[0], xanchor: middle ? "center" : right ? "right" : "left",
      y: top ? up[1] : up[0], yanchor: top ? "top" : "bottom", orientation: top ? "h" : "v",
      bgcolor: "rgba(128,128,128,0.08)", font: { size: 11 },
    };
    return name;
  }

  function layOut(chart, width) {
    const many = chart.panels.length;
    const columns = Math.max(1, Math.min(chart.columns, many, Math.floor(width / chart.min_panel_width)));
    const rows = Math.ceil(many / columns);
    const entries = chart.panels.flatMap((p) => p.traces.filter((t) => t.showlegend && !t.corner).map((t) => t.name));
    const longest = Math.max(0, ...entries.map((name) => name.length));
    const legendLines = Math.ceil(entries.length / Math.max(1, Math.floor(width / (60 + 7 * longest))));
    // On a phone colour bars are above the panels, and long names at the left are on several lines.
    const narrow = width < 500, most = Math.max(66, 0.32 * width);
    const foldable = narrow && chart.gap > most && chart.panels.every((p) => !p.y.ticktext || chart.height / p.y.ticktext.length > 30);
    const letters = Math.floor((most - 18) / 6);
    const left = (foldable ? most : chart.gap) - 4, right = chart.bars && !narrow ? 112 : 20;
    const each = (width - left - right - chart.gap * (columns - 1)) / columns; // pixels of a panel
    const wrapped = (title) => ((title.length * 6.8 > each) ? folded(title, Math.floor((columns > 1 ? each : width - 40) / 6.8)) : title);
    const titleLines = Math.max(1, ...chart.panels.map((p) => lineCount(wrapped(p.title))));
    const barTitle = (bar) => folded(bar.title.text, Math.floor(each / 6));
    const bars = narrow ? chart.panels.flatMap((p) => p.traces).filter((t) => t.colorbar).map((t) => 60 + 14 * lineCount(barTitle(t.colorbar))) : [];
    const legendTop = 18 + 16 * titleLines + 22 * legendLines;
    const label = (axis) => (narrow && axis.title ? folded(axis.title, Math.floor(each / 6.2)) : axis.title);
    const labelLines = Math.max(1, ...chart.panels.map((p) => lineCount(label(p.x) || "")));
    const above = legendTop + bars.reduce((sum, height) => sum + height, 0), below = chart.below + 15 * (labelLines - 1);
    const panelHeight = chart.square ? Math.max(220, Math.min(each, 520)) : chart.height;
    const height = rows * panelHeight + (rows - 1) * (below + 16 * titleLines) + above + below;
    const inner = height - above - below;
    const gapX = columns > 1 ? chart.gap / Math.max(1, width - left - right) : 0, gapY = (below + 16 * titleLines) / inner;
    const wide = (1 - gapX * (columns - 1)) / columns, tall = (1 - gapY * (rows - 1)) / rows;
    const layout = {
      width, height, autosize: false, margin: { l: left, r: right, t: above, b: below }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", color: colour("--ink"), size: 12 }, hovermode: "closest", dragmode: false,
      hoverlabel: { bgcolor: colour("--paper"), bordercolor: colour("--soft"), font: { color: colour("--ink") } },
      showlegend: true, legend: { orientation: "h", x: 0, y: 1 + (6 + 18 * titleLines) / inner, yanchor: "bottom", xanchor: "left" },
      shapes: [], annotations: [], barmode: "overlay", uirevision: "keep",
    };
    const traces = [], references = [];
    chart.panels.forEach((panel, i) => {
      const row = Math.floor(i / columns), column = i % columns;
      const n = i === 0 ? "" : String(i + 1);
      const start = column * (wide + gapX), bottom = 1 - row * (tall + gapY) - tall;
      layout["xaxis" + n] = axisStyle({ ...panel.x, title: label(panel.x) }, [start, start + wide], "y" + n, each);
      const y = foldable && panel.y.ticktext ? { ...panel.y, ticktext: panel.y.ticktext.map((name) => folded(name, letters)) } : panel.y;
      layout["yaxis" + n] = axisStyle(y, [bottom, bottom + tall], "x" + n, tall * inner);
      const centre = columns > 1 ? start + wide / 2 : (width / 2 - left) / (width - left - right);
      layout.annotations.push({
        text: wrapped(panel.title), x: wrapped(panel.title) === panel.title ? start + wide / 2 : centre, y: bottom + tall, xref: "paper", yref: "paper", yanchor: "bottom", xanchor: "center",
        showarrow: false, font: { size: 12.5 },
      });
      for (const mark of panel.marks) {
        const { kind, ...rest } = mark;
        const of = (axis, ref) => (ref === "domain" ? `${axis}${n} domain` : axis + n);
        (kind === "shape" ? layout.shapes : layout.annotations).push({ ...rest, xref: of("x", mark.xref), yref: of("y", mark.yref) });
      }
      for (const trace of panel.traces) {
        const { corner, ...rest } = themed(trace);
        if (rest.colorbar) {
          const { number, ...bar } = rest.colorbar, share = Math.min(1 / chart.bars, 300 / inner);
          const up = bars.slice(number + 1).reduce((sum, height) => sum + height, legendTop);
          rest.colorbar = narrow
            ? { ...bar, orientation: "h", len: 0.96, x: 0.5, xanchor: "center", y: 1 + up / inner, yanchor: "bottom", xpad: 0, ypad: 0, tickfont: { size: 10 }, title: { ...bar.title, text: barTitle(bar) } }
            : { ...bar, len: 0.96 * share, y: 1 - number * share, yanchor: "top", tickfont: { size: 10 } };
        }
        if (corner) rest.legend = cornerLegend(layout, i, corner, [start, start + wide], [bottom, bottom + tall]);
        traces.push({ ...rest, xaxis: "x" + n, yaxis: "y" + n });
      }
      references.push({ xref: "x" + n, yref: "y" + n, panel });
    });
    return { traces, layout, references, columns, narrow, shapes: layout.shapes.length };
  }

  // An MLP has the head number -1, the embeddings are (0, -2), key/value head k is -1000 - k.
  const nameOf = (layer, head) => (head <= -1000 ? `L${layer}KV${-1000 - head}` : head === -1 ? `MLP${layer}` : head === -2 ? "input" : `L${layer}H${head}`);

  function marksOf(references) {
    const shapes = [], ink = colour("--mark");
    if (!chosen) return shapes;
    const name = nameOf(chosen.layer, chosen.head);
    for (const { xref, yref, panel } of references) {
      if (panel.model && panel.model !== chosen.model) continue;
      if (panel.map) {
        shapes.push({
          type: "rect", xref, yref, x0: chosen.head - 0.5, x1: chosen.head + 0.5, y0: chosen.layer - 0.5, y1: chosen.layer + 0.5,
          line: { color: ink, width: 3 }, name: "chosen",
        });
      }
      for (const [series, order] of Object.entries(panel.orders)) {
        if ((panel.owners[series] || panel.model) !== chosen.model) continue;
        const place = order.indexOf(name);
        const enters = panel.root ? Math.sqrt(place + 1) : place + 1;
        if (place >= 0) {
          shapes.push({
            type: "line", xref, yref: yref + " domain", x0: enters, x1: enters, y0: 0, y1: 1,
            line: { color: ink, width: 1.5, dash: "dot" }, name: "chosen",
          });
        }
      }
    }
    return shapes;
  }

  function draw(id, width = byId(id).clientWidth || 800) {
    const place = byId(id), chart = data.charts[id];
    const made = layOut(chart, width);
    const own = made.layout.shapes;
    made.layout.shapes = [...own, ...marksOf(made.references)];
    // Plotly leaves the words of a colour bar where they were when the bar is turned.
    const anew = !drawn.has(id) || drawn.get(id).narrow !== made.narrow;
    (anew ? Plotly.newPlot : Plotly.react)(place, made.traces, made.layout, { responsive: false, displaylogo: false, displayModeBar: false });
    if (anew) {
      place.on("plotly_click", (event) => {
        const point = event.points[0];
        const panel = drawn.get(id).references.find((r) => r.xref === point.data.xaxis).panel;
        const named = /^L(\d+)H(\d+)$/.exec(point.id || "");
        if (panel.map) choose({ model: panel.model, layer: point.y, head: point.x });
        else if (named && panel.model && point.data.meta === undefined) choose({ model: panel.model, layer: +named[1], head: +named[2] });
        else if (point.data.meta !== undefined) showExamples(chart.sets, point.data.meta, point.id);
      });
    }
    drawn.set(id, { ...made, own, width });
  }

  const waiting = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      waiting.unobserve(entry.target);
      draw(entry.target.id);
    }
  }, { rootMargin: "400px" });
  for (const [id, chart] of Object.entries(data.charts)) {
    const place = byId(id);
    place.style.minHeight = `${layOut(chart, place.clientWidth || 800).layout.height}px`; // nothing jumps when it is drawn
    waiting.observe(place);
  }
  const drawAll = (width) => { for (const id of Object.keys(data.charts)) { waiting.unobserve(byId(id)); draw(id, width); } };
  let timer = 0;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { for (const [id, was] of drawn) if (byId(id).clientWidth !== was.width) draw(id); }, 120);
  });
  addEventListener("beforeprint", () => drawAll(850)); // page.css makes it as wide as A4 and Letter are between their margins
  addEventListener("afterprint", () => drawAll());

  // ---- the chosen head ----------------------------------------------------------------------------------
  const heads = data.heads;
  const word = (name, row) => heads[name].words[heads[name].codes[row]];
  const headName = (row) => nameOf(heads.layer[row], heads.head[row]);

  function choose(head) {
    chosen = head;
    for (const [id, was] of drawn) Plotly.relayout(byId(id), { shapes: [...was.own, ...marksOf(was.references)] });
    card();
    fill();
    document.dispatchEvent(new CustomEvent("head-chosen", { detail: head })); // card.js shows its page
  }
  document.addEventListener("choose-head", (event) => choose(event.detail));

  function card() {
    const box = byId("card"), body = byId("card-body");
    box.hidden = !chosen;
    if (!chosen) return;
    const name = nameOf(chosen.layer, chosen.head);
    byId("card-title").textContent = `${name} of ${chosen.model}`;
    body.replaceChildren();
    const byStudy = new Map();
    for (let row = 0; row < heads.rows; row++) {
      if (heads.layer[row] !== chosen.layer || heads.head[row] !== chosen.head || word("model", row) !== chosen.model) continue;
      const study = word("study", row);
      if (!byStudy.has(study)) byStudy.set(study, []);
      byStudy.get(study).push(row);
    }
    for (const [study, rows] of byStudy) {
      body.append(make("h3", study));
      const table = make("table"), inside = make("tbody");
      for (const row of rows) {
        const line = make("tr");
        line.append(make("td", `${word("task", row)}, ${word("measure", row)}`));
        const between = heads.lo[row] === null ? "" : ` [${short(heads.lo[row])}, ${short(heads.hi[row])}]`;
        line.append(make("td", short(heads.score[row]) + between, { class: "number" }));
        const cell = make("td"), behind = setOf(row);
        if (behind !== undefined) {
          const button = make("button", "examples", { type: "button", "aria-label": `Examples behind ${name}, ${word("task", row)}, ${word("measure", row)}` });
          button.addEventListener("click", () => showExamples([behind], behind, name));
          cell.append(button);
        }
        line.append(cell);
        inside.append(line);
      }
      table.append(inside);
      body.append(table);
    }
    const curves = new Map();
    for (const chart of Object.values(data.charts)) {
      for (const panel of chart.panels) {
        if (panel.model && panel.model !== chosen.model) continue;
        for (const [series, order] of Object.entries(panel.orders)) {
          if ((panel.owners[series] || panel.model) !== chosen.model) continue;
          const place = order.indexOf(name);
          if (place >= 0) curves.set(`${chart.title}: ${panel.title}, ${series}`, place + 1);
        }
      }
    }
    if (curves.size) {
      body.append(make("h3", "Curves it is in"));
      const list = make("ul");
      for (const [where, place] of curves) list.append(make("li", `${where}: number ${place}`));
      body.append(list);
    }
    const seen = Object.entries(data.charts).flatMap(([id, chart]) =>
      chart.panels.filter((p) => p.attention === name && p.model === chosen.model).map(() => id));
    if (seen.length) {
      body.append(make("h3", "Its attention"));
      body.append(make("a", "Go to its map", { href: `#${seen[0]}-title` }));
    }
  }
  byId("close").addEventListener("click", () => choose(null));
  addEventListener("keydown", (event) => { if (event.key === "Escape" && chosen && !byId("examples").open) choose(null); });

  // ---- the examples behind a number -----------------------------------------------------------------------
  const setOf = (row) => {
    const found = data.sets.findIndex((s) => s.run === heads.run[row] && s.columns.method === word("measure", row)
      && s.columns.model === word("model", row) && s.columns.task === word("task", row));
    return found < 0 ? undefined : found;
  };
  const kinds = { head: (point) => point, k: (point) => `k = ${point}`, model: (point) => point };
  let open = { set: 0, point: "" };

  // `among`: the sets that the reader can switch to; `set` and `point`: what is shown first.
  function showExamples(among, set, point) {
    const select = byId("examples-set");
    select.replaceChildren(...among.map((number) => make("option", `${data.sets[number].label} (${data.sets[number].unit})`, { value: number })));
    select.value = String(set);
    open = { set, point };
    fillPoints();
    if (!byId("examples").open) byId("examples").showModal();
  }
  function fillPoints() {
    const chosenSet = data.sets[open.set], points = Object.keys(chosenSet.points), select = byId("examples-point");
    if (open.point === undefined) open.point = points[0];
    if (!points.includes(String(open.point)) && open.point !== "") points.unshift(String(open.point));
    select.replaceChildren(...points.map((point) => make("option", kinds[chosenSet.kind](point), { value: point })));
    select.value = String(open.point);
    fillExamples();
  }
  function exampleNote(set, point) {
    if (!point) return set.omitted ? "These examples are not on the page, because it would become too large. They are in the run's tables." : `The examples of this ${set.kind} are not on the page: it has those of the ${Object.keys(set.points).length} heads with the largest mean values. The others are in the run's table examples.`;
    const notes = [point.n > point.e.length ? `${point.e.length} of ${point.n} examples: the highest and the lowest values. All are in the run's tables.` : `${point.n} ${point.n === 1 ? "example" : "examples"}, highest value first.`];
    if (set.left) notes.push(`The page has the examples of the ${Object.keys(set.points).length} heads with the largest mean values; those of ${set.left} other heads are in the run's tables.`);
    if (set.inputs === null) notes.push("This run stores no prompts (it was written by an earlier version of headwise), so examples are shown by number.");
    if (point.t) notes.push("Where several draws were made, the value is their mean and the text is of the first.");
    return notes.join(" ");
  }
  function fillExamples() {
    const set = data.sets[open.set], point = set.points[open.point], table = byId("examples-table");
    const inputs = set.inputs === null ? {} : data.inputs[set.inputs];
    const texts = Object.values(inputs);
    const parts = [["example", (e) => e], [set.unit, (e, i) => short(point.v[i])]];
    if (texts.length) parts.push(["prompt", (e) => (inputs[e] || [""])[0]], ["target", (e) => (inputs[e] || ["", ""])[1]]);
    if (texts.some((t) => t[2])) parts.push(["foils", (e) => (inputs[e] || ["", "", ""])[2]]);
    if (point && point.t) parts.push([set.kind === "k" ? "text, these heads masked" : "text", (e, i) => point.t[i]]);
    if (point && set.full && open.point !== "0") parts.push(["text, all heads", (e) => set.full[e] || ""]);
    byId("examples-title").textContent = `${kinds[set.kind](open.point)}: ${set.label}`;
    byId("examples-note").textContent = exampleNote(set, point);
    const header = make("tr");
    if (point) for (const [name] of parts) header.append(make("th", name, { scope: "col" }));
    table.tHead.replaceChildren(header);
    table.tBodies[0].replaceChildren(...(point ? point.e : []).map((e, i) => {
      const line = make("tr");
      for (const [name, text] of parts) line.append(make("td", text(e, i), { class: ["example", set.unit].includes(name) ? "number" : name === "prompt" ? "long" : "" }));
      return line;
    }));
  }
  byId("examples-set").addEventListener("change", (event) => { open.set = Number(event.target.value); fillPoints(); });
  byId("examples-point").addEventListener("change", (event) => { open.point = event.target.value; fillExamples(); });
  byId("examples-close").addEventListener("click", () => byId("examples").close());
  byId("examples").addEventListener("click", (event) => { if (event.target === byId("examples")) byId("examples").close(); });
  for (const button of document.querySelectorAll(".behind")) {
    const sets = data.charts[button.dataset.chart].sets;
    button.addEventListener("click", () => showExamples(sets, sets[0], undefined));
  }

  // ---- the table of heads -------------------------------------------------------------------------------
  // The numbers come first, so that a phone shows them; a word that is the same in every row has no column.
  const columns = [
    ["head", "head"], ["score", "number"], ["q", "number"], ["lo", "number"], ["hi", "number"], ["n", "number"],
    ["task", "word"], ["measure", "word"], ["study", "word"], ["model", "word"],
  ].filter(([name, kind]) => kind !== "word" || (heads.rows && heads[name].words.length > 1));
  const significant = (row) => heads.q[row] !== null && heads.q[row] < 0.05;
  const page = 100;
  let sorted = { column: "score", down: true }, limit = page;
  const filters = {};

  function value(column, row) {
    if (column === "head") return heads.layer[row] * 1e4 + heads.head[row];
    return heads[column].codes ? word(column, row) : heads[column][row];
  }
  // "ioi q < 0.05 |score| > 0.5" as words and comparisons; what cannot be read is named.
  const comparable = ["score", "lo", "hi", "n", "q", "layer", "head"];
  const compare = {
    "<": (x, y) => x < y, "<=": (x, y) => x <= y, ">": (x, y) => x > y, ">=": (x, y) => x >= y,
    "=": (x, y) => x === y, "!=": (x, y) => x !== y,
  };
  function query(text) {
    const tests = [], problems = [];
    const rest = text.toLowerCase().replace(/≤/g, "<=").replace(/≥/g, ">=").replace(/−/g, "-").replace(
      /(\|?[\p{L}\d_]*\|?)\s*(<=|>=|!=|==|<|>|=)\s*([^\s,;]*)/gu, (all, name, sign, number) => {
        const size = /^\|.*\|$/.test(name), column = size ? name.slice(1, -1) : name;
        const limit = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?%?$/.test(number) ? parseFloat(number) / (number.endsWith("%") ? 100 : 1) : NaN;
        if (!comparable.includes(column) || Number.isNaN(limit)) problems.push(all.trim());
        else tests.push((row) => heads[column][row] !== null && compare[sign.replace("==", "=")](size ? Math.abs(heads[column][row]) : heads[column][row], limit));
        return " ";
      });
    return { words: rest.split(/[\s,;]+/).filter((w) => w && w !== "and"), tests, problems };
  }

  function matching() {
    const { words, tests } = query(byId("find").value);
    const rows = [];
    for (let row = 0; row < heads.rows; row++) {
      if (Object.entries(filters).some(([name, wanted]) => wanted && word(name, row) !== wanted)) continue;
      if (!tests.every((test) => test(row))) continue;
      if (words.length) {
        const text = `${headName(row)} ${word("model", row)} ${word("study", row)} ${word("task", row)} ${word("measure", row)}`.toLowerCase();
        const whole = headName(row).toLowerCase();
        if (!words.every((w) => (/^l\d+h\d+$/.test(w) ? whole === w : text.includes(w)))) continue;
      }
      rows.push(row);
    }
    const sign = sorted.down ? -1 : 1;
    const key = new Map(rows.map((row) => [row, value(sorted.column, row)]));
    return rows.sort((a, b) => {
      const x = key.get(a), y = key.get(b);
      if (x === null || y === null) return (x === null) - (y === null);
      return (typeof x === "string" ? x.localeCompare(y) : x - y) * sign || a - b;
    });
  }
  function fill() {
    if (!heads.rows) { byId("count").textContent = "These runs have no scores."; return; }
    const rows = matching(), body = byId("table").tBodies[0];
    const fragment = document.createDocumentFragment();
    for (const row of rows.slice(0, limit)) {
      const line = make("tr");
      const same = chosen && chosen.layer === heads.layer[row] && chosen.head === heads.head[row] && chosen.model === word("model", row);
      if (same) line.className = "chosen";
      for (const [name, kind] of columns) {
        const cell = make("td", kind === "word" ? word(name, row) : kind === "number" ? short(heads[name][row]) : undefined);
        if (kind === "number") cell.className = "number";
        if (name === "q" && significant(row)) { cell.className = "number significant"; cell.title = "significant: q < .05"; }
        if (kind === "head") cell.append(make("button", headName(row), { type: "button", class: "pick" }));
        line.append(cell);
      }
      line.addEventListener("click", () => choose({ model: word("model", row), layer: heads.layer[row], head: heads.head[row] }));
      fragment.append(line);
    }
    body.replaceChildren(fragment);
    const { problems } = query(byId("find").value);
    const total = filters.unit ? heads.unit.codes.filter((code) => heads.unit.words[code] === filters.unit).length : heads.rows;
    const counted = `${rows.length} of ${total} rows${rows.length > limit ? `, the first ${limit} shown` : ""}; ${rows.filter(significant).length} significant (q < .05).`;
    byId("count").textContent = counted + (problems.length ? ` Cannot read “${problems.join("”, “")}”: compare score, lo, hi, n, q, layer or head with a number, as in q < 0.05.` : "");
    byId("more").hidden = rows.length <= limit;
  }
  function header() {
    const line = make("tr");
    for (const [name, kind] of columns) {
      const cell = make("th", undefined, { scope: "col", class: kind });
      if (sorted.column === name) cell.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      const arrow = sorted.column === name ? (sorted.down ? " ↓" : " ↑") : "";
      const shown = name === "score" ? `score (${filters.unit || heads.unit.words[0]})` : name;
      const button = make("button", shown + arrow, { type: "button", "data-column": name });
      button.addEventListener("click", () => {
        sorted = { column: name, down: sorted.column === name ? !sorted.down : name === "score" };
        limit = page;
        header();
        fill();
        byId("table").querySelector(`[data-column="${name}"]`).focus();
      });
      cell.append(button);
      line.append(cell);
    }
    byId("table").tHead.replaceChildren(line);
  }
  if (heads.rows) {
    // Scores of different units cannot be compared, so the table shows one unit at a time.
    if (heads.unit.words.length > 1) filters.unit = heads.unit.words[0];
    for (const name of ["unit", "model", "study", "task", "measure"]) {
      if (heads[name].words.length < 2) continue;
      const label = make("label", `${name} `), select = make("select", undefined, { "data-filter": name });
      if (name !== "unit") select.append(make("option", "all", { value: "" }));
      for (const w of heads[name].words) select.append(make("option", w, { value: w }));
      select.addEventListener("change", () => { filters[name] = select.value; limit = page; header(); fill(); });
      label.append(select);
      byId("selects").append(label);
    }
    byId("find").addEventListener("input", () => { limit = page; fill(); });
    byId("more").addEventListener("click", () => { limit += page * 4; fill(); });
    header();
  }
  fill();

  // ---- glossary and documentation ---------------------------------------------------------------------------
  function unfold() {
    const target = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const inside = target.closest("details") || (target.classList.contains("doc") && target.querySelector("details"));
    if (inside && !inside.open) { inside.open = true; target.scrollIntoView(); }
  }
  addEventListener("hashchange", unfold);
  unfold();
  byId("find-term").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const entry of document.querySelectorAll("#terms li")) entry.hidden = !entry.textContent.toLowerCase().includes(wanted);
  });

  // ---- colours, copying ---------------------------------------------------------------------------------
  function theme(name) {
    root.dataset.theme = name;
    byId("theme").setAttribute("aria-pressed", String(name === "dark"));
    for (const id of drawn.keys()) draw(id);
  }
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  theme(preferred.matches ? "dark" : "light");
  preferred.addEventListener("change", (event) => theme(event.matches ? "dark" : "light"));
  byId("theme").addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", () => {
      const code = button.parentElement.querySelector("code");
      const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, () => {});
      else { const range = document.createRange(); range.selectNodeContents(code); getSelection().removeAllRanges(); getSelection().addRange(range); }
    });
  }
})();
