/** The two ways to run a module. */
const waysOf = (model) => switches(model, "way", Object.entries(model.get("_ways")).map(([way, { title }]) => [way, title]), {
  label: "What you write", text: "You write", pick: (way) => put(model, { way, step: 1 }), look: (way) => ({ class: "cs-way", "data-way": way }),
});

/** How many lines have run, and what the last of them does. */
function stepOf(model) {
  const steps = model.get("_ways")[model.get("way")].steps;
  return { steps, at: Math.min(model.get("step"), steps.length) };
}

function walk(model) {
  const go = (to) => () => {
    const { steps, at } = stepOf(model);
    if (to(at) !== at && to(at) <= steps.length) put(model, { step: to(at) });
  };
  const first = h("button", { type: "button", onclick: go(() => 1) }, "From the start");
  const next = h("button", { type: "button", onclick: go((at) => at + 1) }, "Next line");
  const count = h("span");
  const show = () => {
    const { steps, at } = stepOf(model);
    first.setAttribute("aria-disabled", String(at === 1));
    next.setAttribute("aria-disabled", String(at === steps.length));
    count.textContent = `line ${at} of ${steps.length}`;
  };
  show();
  const row = h("div", { class: "hs-row" }, first, next, count);
  listen(model, row, "way step", show);
  return row;
}

function sourceLines(model) {
  const rows = model.get("_lines").map(({ number, code, note, kind }) =>
    h("li", { class: `cs-line cs-${kind}` },
      h("span", { class: "cs-order" }), h("span", { class: "cs-number" }, number ? String(number) : "yours"),
      h("code", {}, code), h("span", { class: "cs-note" }, note)));
  const list = h("ol", { class: "cs-lines", "aria-label": "Lines of the source, with notes" }, ...rows);
  const show = () => {
    const { steps, at } = stepOf(model);
    list.dataset.way = model.get("way");
    rows.forEach((row, place) => {
      const order = steps.findIndex(([line]) => line === place) + 1;
      const ran = order > 0 && order <= at;
      row.classList.toggle("cs-ran", ran);
      row.classList.toggle("cs-now", order === at);
      row.firstChild.textContent = ran ? String(order) : "";
    });
  };
  show();
  listen(model, list, "way step", show);
  return list;
}

function draw(model, el) {
  const said = h("p", { class: "cs-said", role: "status" });
  const show = () => {
    const { steps, at } = stepOf(model);
    said.textContent = steps[at - 1][1];
  };
  show();
  listen(model, said, "way step", show);
  const title = h("p", { class: "cs-title" }, "nn.Module._call_impl, in torch/nn/modules/module.py");
  stage(model, el, "What a call runs", waysOf(model), said, title, sourceLines(model), walk(model)).classList.add("hs-alone");
}

export default widget(draw);
