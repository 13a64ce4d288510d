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

  const axisStyle = (given, domain, anchor) => {
    const { title, ...rest } = given || {};
    return {
      gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--soft"), ...rest,
      domain, anchor, title: title ? { text: title, standoff: 6, font: { size: 12 } } : undefined, tickfont: { size: 11 },
    };
  };

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
    const columns = Math.max(1, Math.min(chart.columns, many, Math.floor(width / chart.least)));
    const rows = Math.ceil(many / columns);
    const entries = chart.panels.flatMap((p) => p.traces.filter((t) => t.showlegend && !t.corner).map((t) => t.name));
    const longest = Math.max(0, ...entries.map((name) => name.length));
    const legendLines = Math.ceil(entries.length / Math.max(1, Math.floor(width / (60 + 7 * longest))));
    const titleLines = Math.max(1, ...chart.panels.map((p) => p.title.split("<br>").length));
    const above = 18 + 16 * titleLines + 22 * legendLines, below = chart.below;
    const height = rows * chart.height + above + below;
    const inner = height - above - below;
    const left = chart.gap - 4, right = chart.bars ? 112 : 20;
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
      layout["xaxis" + n] = axisStyle(panel.x, [start, start + wide], "y" + n);
      layout["yaxis" + n] = axisStyle(panel.y, [bottom, bottom + tall], "x" + n);
      layout.annotations.push({
        text: panel.title, x: start + wide / 2, y: bottom + tall, xref: "paper", yref: "paper", yanchor: "bottom", xanchor: "center",
        showarrow: false, font: { size: 12.5 },
      });
      for (const mark of panel.marks) {
        const { kind, ...rest } = mark;
        const of = (axis, ref) => (ref === "domain" ? `${axis}${n} domain` : axis + n);
        (kind === "shape" ? layout.shapes : layout.annotations).push({ ...rest, xref: of("x", mark.xref), yref: of("y", mark.yref) });
      }
      for (const trace of panel.traces) {
        const { corner, ...rest } = trace;
        for (const part of ["line", "marker"]) if (rest[part] && rest[part].color === "ink") rest[part] = { ...rest[part], color: colour("--ink") };
        if (rest.colorbar) {
          const { number, ...bar } = rest.colorbar, each = Math.min(1 / chart.bars, 300 / inner);
          rest.colorbar = { ...bar, len: 0.96 * each, y: 1 - number * each, yanchor: "top", tickfont: { size: 10 } };
        }
        if (corner) rest.legend = cornerLegend(layout, i, corner, [start, start + wide], [bottom, bottom + tall]);
        traces.push({ ...rest, xaxis: "x" + n, yaxis: "y" + n });
      }
      references.push({ xref: "x" + n, yref: "y" + n, panel });
    });
    return { traces, layout, references, columns, shapes: layout.shapes.length };
  }

  function marksOf(references) {
    const shapes = [], ink = colour("--mark");
    if (!chosen) return shapes;
    const name = `L${chosen.layer}H${chosen.head}`;
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

  function draw(id) {
    const place = byId(id), chart = data.charts[id];
    const made = layOut(chart, place.clientWidth || 800);
    const own = made.layout.shapes;
    made.layout.shapes = [...own, ...marksOf(made.references)];
    Plotly.react(place, made.traces, made.layout, { responsive: false, displaylogo: false, displayModeBar: false });
    if (!drawn.has(id)) {
      place.on("plotly_click", (event) => {
        const point = event.points[0];
        const panel = drawn.get(id).references.find((r) => r.xref === point.data.xaxis).panel;
        if (panel.map) choose({ model: panel.model, layer: point.y, head: point.x });
      });
    }
    drawn.set(id, { ...made, own, width: place.clientWidth });
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
  const drawAll = () => { for (const id of Object.keys(data.charts)) { waiting.unobserve(byId(id)); draw(id); } };
  let timer = 0;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { for (const [id, was] of drawn) if (byId(id).clientWidth !== was.width) draw(id); }, 120);
  });
  addEventListener("beforeprint", drawAll);

  // ---- the chosen head ----------------------------------------------------------------------------------
  const heads = data.heads;
  const word = (name, row) => heads[name].words[heads[name].codes[row]];
  const headName = (row) => `L${heads.layer[row]}H${heads.head[row]}`;

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
    const name = `L${chosen.layer}H${chosen.head}`;
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
  addEventListener("keydown", (event) => { if (event.key === "Escape" && chosen) choose(null); });

  // ---- the table of heads -------------------------------------------------------------------------------
  const columns = [
    ["head", "head"], ["model", "word"], ["study", "word"], ["task", "word"], ["measure", "word"],
    ["score", "number"], ["lo", "number"], ["hi", "number"], ["n", "number"], ["q", "number"],
  ];
  const page = 100;
  let sorted = { column: "score", down: true }, limit = page;
  const filters = {};

  function value(column, row) {
    if (column === "head") return heads.layer[row] * 1e4 + heads.head[row];
    return heads[column].codes ? word(column, row) : heads[column][row];
  }
  function matching() {
    const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [];
    for (let row = 0; row < heads.rows; row++) {
      if (Object.entries(filters).some(([name, wanted]) => wanted && word(name, row) !== wanted)) continue;
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
        if (kind === "head") cell.append(make("button", headName(row), { type: "button", class: "pick" }));
        line.append(cell);
      }
      line.addEventListener("click", () => choose({ model: word("model", row), layer: heads.layer[row], head: heads.head[row] }));
      fragment.append(line);
    }
    body.replaceChildren(fragment);
    byId("count").textContent = `${rows.length} of ${heads.rows} rows${rows.length > limit ? `, the first ${limit} shown` : ""}`;
    byId("more").hidden = rows.length <= limit;
  }
  function header() {
    const line = make("tr");
    for (const [name] of columns) {
      const cell = make("th", undefined, { scope: "col" });
      if (sorted.column === name) cell.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      const arrow = sorted.column === name ? (sorted.down ? " ↓" : " ↑") : "";
      const button = make("button", name + arrow, { type: "button", "data-column": name });
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
    for (const name of ["model", "study", "task", "measure"]) {
      if (heads[name].words.length < 2) continue;
      const label = make("label", `${name} `), select = make("select", undefined, { "data-filter": name });
      select.append(make("option", "all", { value: "" }));
      for (const w of heads[name].words) select.append(make("option", w, { value: w }));
      select.addEventListener("change", () => { filters[name] = select.value; limit = page; fill(); });
      label.append(select);
      byId("selects").append(label);
    }
    byId("find").addEventListener("input", () => { limit = page; fill(); });
    byId("more").addEventListener("click", () => { limit += page * 4; fill(); });
    header();
  }
  fill();

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
