// The graph with both hooks in it: a choice moves the legacy hook from node to node, and an answer shows what they get.

const ANSWERS = { same: "the same", different: "different", raises: "the full one raises an error", never: "one is never called" };
const GOALS = { same: "both hooks get the same", raises: "the full hook raises an error", never: "one hook is never called" };
const SHORT = 560; // pixels; on a narrower page, gradients run down

/** The module, its nodes, and the two hooks. `from` is where the legacy hook was. */
function graphOf(layout, { title, alt, told, from }) {
  const { size, box: [wide, high], boxes, arrows, legacy, full, bar, tags, radius, font } = layout;
  const svg = scene(size, alt);
  svg.setAttribute("role", "img");
  svg.style.maxWidth = `${1.15 * size[0]}px`;
  const [x, y, width, height] = layout.frame;
  svg.append(s("rect", { class: "sc-frame", x, y, width, height, rx: 14 }),
    s("text", { x: layout.title[0], y: layout.title[1], "font-size": font, "font-weight": 700, "text-anchor": layout.anchor }, title));
  for (const { points } of arrows) svg.append(rail(points, "backward"));
  for (const { at: [cx, cy], kind, lines } of boxes) {
    const line = (text, row) => s("text", { x: cx, y: cy + 17 * (row - (lines.length - 1) / 2) + 0.35 * font,
      class: row ? "sc-soft" : "", "font-size": font, "font-weight": row ? 400 : 600, "text-anchor": "middle" }, text);
    svg.append(s("g", { class: `gi-box gi-${kind}` },
      s("rect", { x: cx - wide / 2, y: cy - high / 2, width: wide, height: high, rx: kind === "node" ? 4 : 14 }), ...lines.map(line)));
  }
  const [[x0, y0], [x1, y1]] = bar;
  if (x0 !== x1 || y0 !== y1) svg.append(s("line", { class: "gi-bar", x1: x0, y1: y0, x2: x1, y2: y1 }));
  const hook = (kind, at) => {
    const peg = s("g", { class: `gi-peg gi-${kind}` }, s("circle", { r: radius }), ...eye());
    const place = ([a, b]) => { peg.style.transform = `translate(${a}px, ${b}px)`; };
    place(at);
    svg.append(peg);
    return place;
  };
  hook("full", full);
  if (legacy) {
    const place = hook("legacy", from ?? legacy);
    if (from) requestAnimationFrame(() => requestAnimationFrame(() => place(legacy)));
  }
  if (!told) return svg;
  const tag = (kind, text, [a, b], anchor) => svg.append(s("text", { class: `gi-tag gi-${kind}`, x: a, y: b, "font-size": font, "text-anchor": anchor }, text));
  if (told.legacy) for (const { entry, tag: [a, b] } of arrows) if (entry) tag("legacy", entry, [a, b + 0.35 * font], "middle");
  if (told.full) for (const { text, at: [a, b] } of tags) {
    if (layout.anchor === "middle") tag("full", text, [a, b - radius - 6], "middle");
    else tag("full", text, [a + radius + 6, b + 0.35 * font], "start");
  }
  return svg;
}

function draw(model, el) {
  const shown = () => model.get("shown");
  const layer = choice(model, "layer", shown().layers.map((name) => [name, name]));
  const shapes = () => shown().shapes.map((shape) => [String(shape), `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`]);
  const shape = choice(model, "input_shape", shapes(), (text) => text.split(",").map(Number));
  const controls = Object.fromEntries(["bias", "inplace", "requires_grad"].map((trait) => [trait, checkbox(model, trait)]));
  const why = h("span", { class: "gi-why", id: `hookscope-${++lastId}` });
  controls.requires_grad.setAttribute("aria-describedby", why.id);
  const fields = {
    shape: field("Input shape", shape),
    bias: field("bias", controls.bias),
    inplace: field("inplace", controls.inplace),
    requires_grad: field("input requires grad", controls.requires_grad),
  };

  const say = h("p", { class: "sc-say", role: "status" });
  const holder = h("div", { class: "gi-graph" });
  const sits = h("span");
  const legend = h("p", { class: "gi-legend" }, h("span", { class: "gi-dot gi-full" }), "full hook: at the edge of the module",
    h("span", { class: "gi-dot gi-legacy" }), sits);
  const aside = h("p", { class: "gi-aside" });
  const answer = (key) => model.get("answers")[key];
  const choose = (which) => {
    const { key, outcome } = shown();
    if (answer(key)) return;
    put(model, { answers: { ...model.get("answers"), [key]: [which, outcome] } });
    show();
  };
  const buttons = Object.entries(ANSWERS).map(([which, text]) =>
    [which, h("button", { type: "button", onclick: () => choose(which) }, text)]);
  const score = h("span", { class: "gi-score" });
  const ask = h("div", { class: "hs-row gi-ask", role: "group", "aria-label": "Do both hooks get the same grad_input?" },
    h("strong", {}, "Do both hooks get the same grad_input?"), ...buttons.map(([, button]) => button), score);
  const marks = Object.entries(GOALS).map(([which, text]) => {
    const mark = h("span", { class: "gi-mark", "aria-hidden": "true" });
    const found = h("span", { class: "gi-heard" });
    return { which, mark, found, item: h("li", {}, mark, text, found) };
  });
  const goals = h("div", { class: "gi-goals" }, h("strong", {}, "Find a layer for which"),
    h("ul", {}, ...marks.map(({ item }) => item)));
  const verdict = h("p", { class: "gi-verdict", role: "status" });
  const caption = h("caption");
  const body = h("tbody");
  const table = h("table", { class: "gi-compare" }, caption,
    h("thead", {}, h("tr", {}, ...["", "legacy hook: register_backward_hook", "full hook: register_full_backward_hook"].map((text) =>
      text ? h("th", { scope: "col" }, text) : h("td")))), body);
  const explanation = h("p", { class: "gi-explanation" });
  const more = h("details", { class: "gi-more" }, h("summary", {}, "What each hook gets"),
    h("div", { class: "gi-wide", tabindex: "0", role: "region", ...ownKeys, "aria-label": "comparison" }, table), explanation);

  let before = null; // the node of the legacy hook and its place, in the layout that is drawn
  let narrow;
  const show = () => {
    const view = shown();
    shape.fill(shapes());
    for (const option of ["bias", "inplace"]) fields[option].hidden = !view.options.includes(option);
    fields.shape.hidden = view.own;
    fields.requires_grad.hidden = view.own;
    controls.requires_grad.disabled = Boolean(view.fixed);
    why.textContent = view.fixed ? `(${view.fixed})` : "";
    const given = answer(view.key);
    const layout = view.drawing[narrow ? "narrow" : "wide"];
    const moved = before && before.node !== view.node && before.node && view.node;
    say.textContent = before && before.key === view.key ? say.textContent :
      moved ? `The legacy hook jumps from ${before.node} to ${view.node}. The full hook stays at the edge of the module.` :
        view.node || given ? view.where : "The full hook is at the edge of the module."; // that it has no node is the answer
    const told = given && Object.fromEntries(["legacy", "full"].map((kind) =>
      [kind, view.rows.some((row) => row.what.startsWith("grad_input[") && row[`${kind} hook`])]));
    const from = before?.at && layout.legacy && before.key !== view.key && !calm() ? before.at : null;
    holder.replaceChildren(graphOf(layout, { title: view.title, alt: model.get("alt"), told, from }));
    before = { node: view.node, at: layout.legacy, key: view.key };
    sits.textContent = view.node ? `legacy hook: on ${view.node}` : given ? "legacy hook: there is no node for it" : "legacy hook";
    aside.textContent = view.aside;
    aside.hidden = !view.aside;
    for (const [which, button] of buttons) {
      button.setAttribute("aria-pressed", String(given?.[0] === which));
      button.setAttribute("aria-disabled", String(Boolean(given) && given[0] !== which));
    }
    const all = Object.values(model.get("answers"));
    score.textContent = all.length ? `${all.filter(([said, is]) => said === is).length} of ${all.length} right` : "";
    for (const { which, mark, found, item } of marks) {
      const done = all.some(([said, is]) => is === which && said === is);
      item.classList.toggle("gi-found", done);
      mark.textContent = done ? "☑" : "☐";
      found.textContent = done ? ": found" : ": not found yet";
    }
    verdict.hidden = more.hidden = !given;
    if (!given) { verdict.textContent = ""; body.replaceChildren(); explanation.textContent = ""; return; }
    const right = given[0] === given[1];
    verdict.replaceChildren(h("b", { class: right ? "gi-good" : "gi-bad" }, right ? "Right. " : "No. "), view.verdict);
    caption.textContent = `What each hook on ${view.title} gets`;
    body.replaceChildren(...view.rows.map((row) => {
      const [legacy, full] = [row["legacy hook"], row["full hook"]];
      const differ = row.what.startsWith("grad_input") && legacy !== full;
      const cell = (text) => h("td", { class: /warning|error/.test(row.what) ? "gi-said" : "" }, text || "–");
      return h("tr", { class: differ ? "gi-differ" : "" }, h("th", { scope: "row" }, row.what, differ ? " ≠" : null), cell(legacy), cell(full));
    }));
    explanation.textContent = view.explanation;
  };
  const figure = h("div", { class: "sc-figure gi-figure" },
    h("div", { class: "hs-row gi-controls" }, field("Layer", layer), ...Object.values(fields), why),
    say, holder, legend, aside, ask, goals, verdict, more);
  stage(model, el, "The graph with both hooks in it", figure);
  fitWidth(model, figure, SHORT, (wanted) => {
    narrow = wanted;
    if (before) before.at = null;
    show();
  });
  listen(model, el, "shown answers", show);
}

export default widget(draw);
