function draw(model, el) {
  const shown = () => model.get("shown");
  const layer = choice(model, "layer", shown().layers.map((name) => [name, name]));
  const shapes = () => shown().shapes.map((shape) => [String(shape), `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`]);
  const shape = choice(model, "input_shape", shapes(), (text) => text.split(",").map(Number));
  const check = (trait) => {
    const control = h("input", { type: "checkbox", onchange: () => put(model, { [trait]: control.checked }) });
    const update = () => { control.checked = model.get(trait); };
    update();
    listen(model, control, trait, update);
    return control;
  };
  const controls = { bias: check("bias"), inplace: check("inplace"), requires_grad: check("requires_grad") };
  const why = h("span", { class: "gi-why", id: `hookscope-${++lastId}` });
  controls.requires_grad.setAttribute("aria-describedby", why.id);
  const fields = {
    bias: field("bias", controls.bias),
    inplace: field("inplace", controls.inplace),
    shape: field("Input shape", shape),
    requires_grad: field("input requires grad", controls.requires_grad),
  };

  const verdict = h("p", { class: "gi-verdict", "aria-live": "polite" });
  const caption = h("caption");
  const body = h("tbody");
  const table = h("table", { class: "gi-compare" }, caption,
    h("thead", {}, h("tr", {}, ...["", "legacy hook: register_backward_hook", "full hook: register_full_backward_hook"].map((text) =>
      text ? h("th", { scope: "col" }, text) : h("td")))), body);
  const graph = h("div", { class: "gi-graph" });
  const aside = h("p", { class: "gi-aside" });
  const explanation = h("p", { class: "gi-explanation" });

  const show = () => {
    const view = shown();
    shape.fill(shapes());
    for (const option of ["bias", "inplace"]) fields[option].hidden = !view.options.includes(option);
    fields.shape.hidden = view.own;
    fields.requires_grad.hidden = view.own;
    controls.requires_grad.disabled = Boolean(view.fixed);
    why.textContent = view.fixed ? `(${view.fixed})` : "";
    verdict.textContent = view.verdict;
    caption.textContent = `What each hook on ${view.title} gets`;
    body.replaceChildren(...view.rows.map((row) => {
      const [legacy, full] = [row["legacy hook"], row["full hook"]];
      const differ = row.what.startsWith("grad_input") && legacy !== full;
      const cell = (text) => h("td", { class: /warning|error/.test(row.what) ? "gi-said" : "" }, text || "–");
      return h("tr", { class: differ ? "gi-differ" : "" }, h("th", { scope: "row" }, row.what, differ ? " ≠" : null), cell(legacy), cell(full));
    }));
    graph.replaceChildren(boxes(view.drawing, model.get("alt")));
    aside.textContent = view.aside;
    explanation.textContent = view.explanation;
  };
  show();
  listen(model, el, "shown", show);

  stage(model, el, "What backward hooks get",
    h("div", { class: "hs-row" }, field("Layer", layer), ...Object.values(fields), why),
    verdict, h("div", { class: "gi-wide", tabindex: "0", role: "region", ...ownKeys, "aria-label": "comparison" }, table),
    explanation, graph, aside);
}

export default widget(draw);
