"use strict";
// The head pages. Every text comes from prompts and tables of a run, so it is set as textContent only.
(() => {
  const cards = JSON.parse(document.getElementById("cards").textContent);
  const box = document.getElementById("card"), place = document.getElementById("card-page");
  const title = document.getElementById("card-title");
  const make = (tag, text, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const share = (node, value) => { node.style.setProperty("--share", String(Math.round(Math.max(0, Math.min(100, value))))); return node; };
  const number = (value, digits = 2) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
  const visible = (token) => token.replaceAll("\n", "↵").replaceAll("\t", "→").replace(/^ /, "␣");

  // ---- parts of a page ----------------------------------------------------------------------------------
  function promptOf(seen) {
    const line = make("p", null, { class: "prompt" });
    seen.tokens.forEach((token, i) => {
      const span = make("span", token, { class: "heat", title: `attention ${seen.row[i]}` });
      line.append(share(span, 45 * seen.row[i]));
    });
    return line;
  }

  function mapOf(seen, name) {
    const later = seen.map.flatMap((row) => row.slice(1)), most = Math.max(...later, 1e-9);
    const best = seen.row.indexOf(Math.max(...seen.row));
    const table = make("table", null, { class: "map" });
    const caption = `Attention map of ${name} on example ${seen.example}`;
    const head = make("tr", null, {}, make("td"));
    seen.tokens.forEach((token) => head.append(make("th", visible(token), { scope: "col" })));
    const body = make("tbody");
    seen.map.forEach((row, query) => {
      const line = make("tr", null, {}, make("th", visible(seen.tokens[query]), { scope: "row" }));
      row.forEach((value, key) => {
        if (key > query) { line.append(make("td")); return; }
        const words = `from “${seen.tokens[query]}” to “${seen.tokens[key]}”: ${value}`;
        line.append(share(make("td", null, { class: "heat", title: words }), (100 * value) / most));
      });
      body.append(line);
    });
    table.append(make("thead", null, {}, head), body);
    const region = make("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
    const words = `Rows attend to columns; the last row predicts the answer and attends most to “${seen.tokens[best]}” (${seen.row[best]}). Colours end at the largest attention to any token but the first.`;
    return [region, make("p", words, { class: "small" })];
  }

  function listOf(heading, tokens, down, answers) {
    const largest = Math.max(...tokens.map(([, logit]) => Math.abs(logit)), 1e-9);
    const body = make("tbody");
    for (const [token, logit] of tokens) {
      const cell = make("td", null, { class: down ? "logit down" : "logit" });
      cell.append(share(make("i"), (100 * Math.abs(logit)) / largest), make("span", number(logit)));
      const line = make("tr", null, {}, make("td", null, {}, make("code", visible(token))), cell);
      if (answers.includes(token)) line.className = "answer";
      body.append(line);
    }
    return make("div", null, {}, make("h4", heading), make("table", null, {}, body));
  }
  const lists = (of, answers) => make("div", null, { class: "lists" },
    listOf("Promoted tokens (logit)", of.promoted, false, answers), listOf("Suppressed tokens (logit)", of.suppressed, true, answers));

  function exampleOf(card, seen, open) {
    const part = make("details", null, open ? { open: "" } : {}, make("summary", `Example ${seen.example}: ${seen.tokens.map((token) => token.replace(/⋯$/, "")).join("").slice(-70)}`));
    part.append(make("h4", "Prompt, shaded by the attention of its last token"), promptOf(seen));
    if (seen.map) part.append(...mapOf(seen, card.name));
    else part.append(make("p", "The prompt is long: only the attention of its last token was kept.", { class: "small" }));
    const answers = [...seen.target, ...seen.foil];
    if (seen.promoted.length) part.append(lists(seen, answers.map(([token]) => token)));
    const written = [["right answer", seen.target], ["wrong answer", seen.foil]]
      .flatMap(([kind, tokens]) => tokens.map(([token, logit]) => `${kind} “${visible(token)}” ${number(logit)}`));
    if (written.length) part.append(make("p", `Logits that the head adds: ${written.join(", ")}.`, { class: "small" }));
    return part;
  }

  function tableOf(columns, rows) {
    const head = make("tr"), body = make("tbody");
    columns.forEach((column) => head.append(make("th", column, { scope: "col" })));
    rows.forEach((row) => body.append(make("tr", null, {}, ...row.map((value) => make("td", value)))));
    return make("table", null, {}, make("thead", null, {}, head), body);
  }

  function pageOf(card) {
    const parts = [make("h3", card.study ? `On ${card.task} (study ${card.study})` : "What it does"), make("ul", null, {}, ...card.sentences.map((s) => make("li", s)))];
    if (card.attention.length) parts.push(make("h4", "Strongest examples"), ...card.attention.map((seen, i) => exampleOf(card, seen, i === 0)));
    for (const of of card.weights) {
      parts.push(make("details", null, {}, make("summary", `OV weights alone, attending to “${visible(of.source)}”`), lists(of, [of.source])));
    }
    if (card.patterns.length) {
      const rows = card.patterns.map((p) => [p.pattern, p.prompts, p.attention.toFixed(3), `${p.rank} of ${p.heads}`]);
      parts.push(make("h4", "Known attention patterns"), tableOf(["pattern", "prompts", "attention", "rank"], rows));
    }
    for (const kind of ["helps", "hurts"]) {
      const words = `Examples on which it ${kind} most (metric with the head minus metric without it)`;
      const rows = card.examples.filter((e) => e.kind === kind).map((e) => [number(e.value), e.prompt, e.foils ? `${e.target}, not ${e.foils}` : e.target]);
      if (rows.length) parts.push(make("h4", words), tableOf([card.examples[0].metric, "prompt", "answer"], rows));
    }
    return parts;
  }

  if (!box) { // the page of one head, without a report
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const follow = () => { document.documentElement.dataset.theme = dark.matches ? "dark" : "light"; };
    dark.addEventListener("change", follow);
    follow();
    place.replaceChildren(...cards.flatMap(pageOf));
    return;
  }

  // ---- opening and closing ------------------------------------------------------------------------------
  const first = place.dataset.model; // of several models, the one whose heads are linked by their name alone
  const anchor = (model, name) => (model === first ? `#${name}` : `#${encodeURIComponent(model)}/${name}`);
  let last = null;

  document.addEventListener("head-chosen", ({ detail }) => {
    const name = detail && `L${detail.layer}H${detail.head}`;
    const of = detail ? cards.filter((card) => card.model === detail.model && card.name === name) : [];
    box.classList.toggle("page", of.length > 0);
    place.replaceChildren(...of.flatMap(pageOf));
    if (detail && !of.length) {
      place.append(make("p", `No card of this head is in the report. Make one: headwise card MODEL TASK ${name}`, { class: "small" }));
    }
    if (detail) {
      box.scrollTop = 0;
      title.setAttribute("tabindex", "-1");
      title.focus({ preventScroll: true });
      history.replaceState(null, "", anchor(detail.model, name));
    } else if (last) {
      history.replaceState(null, "", location.pathname + location.search);
      const button = [...document.querySelectorAll(".pick")].find((pick) => pick.textContent === last);
      if (button) button.focus({ preventScroll: true });
    }
    last = name;
  });

  function follow() {
    const [, model, layer, head] = /^#(?:(.+)\/)?L(\d+)H(\d+)$/.exec(location.hash) || [];
    if (layer === undefined) return;
    let of = first;
    try { if (model) of = decodeURIComponent(model); } catch { return; } // no address that this page has given
    document.dispatchEvent(new CustomEvent("choose-head", { detail: { model: of, layer: +layer, head: +head } }));
  }
  addEventListener("hashchange", follow);

  if (cards.length) {
    const links = make("nav", "Head pages: ", { id: "card-links", "aria-label": "Head pages" });
    const seen = new Set();
    for (const { model, name } of cards) {
      const href = anchor(model, name);
      if (seen.has(href)) continue;
      seen.add(href);
      const link = make("a", model === first ? name : `${name} of ${model}`, { href });
      // The address may already end in this head, and then nothing changes when it is followed.
      link.addEventListener("click", (event) => { event.preventDefault(); history.replaceState(null, "", href); follow(); });
      links.append(link);
    }
    document.getElementById("heads-title").after(links);
  }
  follow();
})();
