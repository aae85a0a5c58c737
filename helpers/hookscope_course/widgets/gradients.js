const HEADS = {
  "tensor": "tensor", "value": "value", "is_leaf": "is_leaf", "requires_grad": "requires_grad", "retains_grad": "retains_grad",
  "arrived": "incoming gradient", "hook saw": "hook saw", "hook returned": "hook returned",
  ".grad before": ".grad before", ".grad after": ".grad after",
};

/** A word that can break after each "_" in a narrow column. */
const breakable = (text) => text.split("_").flatMap((part, index) => (index ? ["_", h("wbr"), part] : [part]));

/** An <input> for one number of a dict trait. Invalid text is reset when the input loses focus. */
function number(model, trait, name, label, otherwise) {
  const now = () => String(model.get(trait)[name] ?? otherwise);
  const control = h("input", { type: "number", step: "any", class: "gp-number", "aria-label": label, ...ownKeys });
  let last = now();
  control.value = last;
  const take = () => {
    const value = control.valueAsNumber;
    if (!Number.isFinite(value)) control.value = last;
    else if (String(value) !== last) {
      last = String(value);
      put(model, { [trait]: { ...model.get(trait), [name]: value } });
    }
  };
  control.addEventListener("change", take);
  control.addEventListener("keydown", (event) => { if (event.key === "Enter") take(); });
  const show = () => { if (now() !== last) control.value = last = now(); };
  return Object.assign(control, { show });
}

/** A row per tensor: the value of a leaf, the choice of hook and retain_grad, and the factor of the hook. */
function chooser(model) {
  const body = h("tbody");
  const table = h("table", { class: "gp-choose" },
    h("caption", {}, "What do you put on each tensor?"),
    h("thead", {}, h("tr", {}, ...["tensor", "value", "you put on it"].map((text) => h("th", { scope: "col" }, text)))),
    body);
  let drawn = "";
  let rows = [];
  const show = () => {
    const { tensors, kinds } = model.get("shown");
    const names = JSON.stringify(tensors);
    if (names !== drawn) {
      drawn = names;
      rows = tensors.map(({ name, made, leaf, free }) => {
        const value = leaf ? number(model, "values", name, `value of ${name}`, 0) : null;
        const factor = number(model, "factors", name, `factor of the hook on ${name}`, 2);
        const kind = h("select", { "aria-label": `what is put on ${name}`, disabled: !free, ...ownKeys },
          ...kinds.map((text) => h("option", { value: text }, text)));
        kind.addEventListener("change", () => put(model, { choices: { ...model.get("choices"), [name]: kind.value } }));
        const times = h("span", { class: "gp-factor" }, "× ", factor);
        const row = h("tr", {},
          h("th", { scope: "row" }, leaf ? name : `${name} = ${made}`),
          h("td", {}, value),
          h("td", {}, kind, free ? times : h("span", {}, " does not require grad, so torch refuses a hook")));
        return { name, value, factor, kind, times, row };
      });
      body.replaceChildren(...rows.map(({ row }) => row));
    }
    for (const { name, value, factor, kind, times } of rows) {
      kind.value = model.get("choices")[name] ?? "nothing";
      times.hidden = !kind.value.includes("hook");
      value?.show();
      factor.show();
    }
  };
  show();
  listen(model, table, "shown choices values factors", show);
  return table;
}

function draw(model, el) {
  const shown = () => model.get("shown");
  const own = model.get("expression");
  const pairs = shown().expressions;
  const expression = choice(model, "expression", pairs.some(([name]) => name === own) ? pairs : [...pairs, [own, own]]);
  expression.classList.add("gp-expression");
  listen(model, expression, "expression", () => {
    const text = model.get("expression");
    if (![...expression.options].some((option) => option.value === text)) expression.fill([...shown().expressions, [text, text]]);
  });
  const check = (trait) => {
    const control = h("input", { type: "checkbox", onchange: () => put(model, { [trait]: control.checked }) });
    const show = () => { control.checked = model.get(trait); };
    show();
    listen(model, control, trait, show);
    return control;
  };
  const run = h("button", { class: "hs-lit gp-run", onclick: () => put(model, { runs: model.get("runs") + 1 }) }, "Run backward");
  const restart = h("button", { onclick: () => put(model, { runs: 0 }) }, "Start again");
  const times = h("span", { class: "gp-times" });

  const graph = h("div", { class: "gp-graph" });
  const key = h("p", { class: "gp-key" }, "On each arrow: incoming gradient × local gradient of the step = gradient of the operand.");
  const notes = h("ul", { class: "gp-notes", "aria-live": "polite" });
  const body = h("tbody");
  const table = h("table", { class: "gp-numbers" },
    h("caption", {}, "The numbers in the graph"),
    h("thead", {}, h("tr", {}, ...Object.values(HEADS).map((text) => h("th", { scope: "col" }, ...breakable(text))))),
    body);
  const source = h("pre", { class: "gp-code", tabindex: "0", role: "region", ...ownKeys, "aria-label": "torch code of these choices" });
  const copied = h("span", { role: "status" });
  const copy = h("button", {
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(shown().code);
        copied.textContent = "Copied.";
      } catch {
        getSelection().selectAllChildren(source);
        copied.textContent = "Selected; press Ctrl+C.";
      }
    },
  }, "Copy the code");

  const show = () => {
    const { drawing, rows, notes: sentences, code, times: said, most } = shown();
    graph.replaceChildren(boxes(drawing, model.get("alt")), key);
    key.hidden = model.get("runs") === 0;
    notes.replaceChildren(...sentences.map((text) => h("li", {}, text)));
    body.replaceChildren(...rows.map((row) => h("tr", {}, ...Object.keys(HEADS).map((key, index) =>
      index ? h("td", {}, row[key]) : h("th", { scope: "row" }, row[key])))));
    source.textContent = code;
    copied.textContent = "";
    times.textContent = said;
    run.disabled = model.get("runs") >= most;
    restart.disabled = model.get("runs") === 0;
  };
  show();
  listen(model, el, "shown", show);

  stage(model, el, "Gradient playground",
    h("div", { class: "hs-row" }, field("Expression", expression)),
    h("div", { class: "hs-row" }, run, restart, times, field("set .grad of the leaves to None before each pass", check("zero_grad")),
      field("run at every change", check("live"))),
    h("div", { class: "hs-columns" }, graph, h("div", { class: "gp-side" }, chooser(model), notes)),
    h("div", { class: "gp-wide", tabindex: "0", role: "region", ...ownKeys, "aria-label": "numbers" }, table),
    h("details", { class: "gp-source" }, h("summary", {}, "The same in plain torch"), source,
      h("div", { class: "hs-row" }, copy, copied)));
}

export default widget(draw);
