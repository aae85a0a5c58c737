// The attention picker: controls for layer, head and sample, the map, and a table with a row per query.

function draw(model, el) {
  const counted = (count) => Array.from({ length: count }, (_, index) => [index, String(index)]);
  const layer = choice(model, "layer", model.get("_layers"));
  const head = choice(model, "head", [], Number);
  const sample = choice(model, "sample", [], Number);
  const several = field("Sample", sample);
  const caption = h("p", { class: "at-caption", role: "status" }); // screen readers read it out when it changes
  const notes = h("ul", { class: "at-notes" });
  const body = h("tbody");
  const heads = ["query", "looks most at", "weight", "entropy (bits)"].map((name) => h("th", { scope: "col" }, name));
  const numbers = h("div", { class: "at-numbers", tabindex: "0", role: "group", "aria-label": "Top key of each query" },
    h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body));
  const short = (value) => (typeof value === "number" ? Number(value.toPrecision(4)).toString() : String(value ?? ""));
  const show = () => {
    head.fill(counted(model.get("_heads")));
    sample.fill(counted(model.get("_samples")));
    several.hidden = model.get("_samples") < 2;
    caption.textContent = model.get("_caption");
    notes.replaceChildren(...model.get("_notes").map((text) => h("li", {}, text)));
    notes.hidden = !model.get("_notes").length;
    body.replaceChildren(...model.get("_rows").map((row) => h("tr", {}, ...row.map((value, at) =>
      h(at ? "td" : "th", at ? {} : { scope: "row" }, short(value))))));
  };
  stage(model, el, "Attention picker",
    h("div", { class: "hs-row" }, field("Layer", layer), field("Head", head), several),
    h("div", { class: "hs-columns" }, h("div", { class: "at-map" }, picture(model), caption, notes), numbers));
  listen(model, body, "_heads _samples _caption _notes _rows", show);
  show();
}

export default widget(draw);
