function draw(model, el) {
  const image = h("img", { class: "lk-image", draggable: "false", alt: "The image that the model reads" });
  const cells = h("div", { class: "lk-cells", role: "img" });
  const frame = h("div", { class: "lk-frame" }, image, cells);
  image.src = model.get("_image");
  image.classList.toggle("lk-pixels", model.get("_image").startsWith("data:image/png"));
  const paint = () => {
    const { columns, cells: values, highest } = model.get("_map");
    cells.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
    while (cells.children.length < values.length) cells.append(h("span"));
    values.forEach((value, at) => {
      // The alpha follows the value, so what says nothing stays clear.
      cells.children[at].style.background = `rgb(${value > 0 ? "180 4 38" : "59 76 192"} / ${0.78 * Math.abs(value)})`;
      cells.children[at].classList.toggle("lk-highest", at === highest);
    });
    cells.setAttribute("aria-label", `${model.get("_shown").words} ${model.get("_shown").place}`);
  };
  const end = model.get("_reach").toFixed(model.get("_reach") < 1 ? 2 : 1);
  const scale = h("div", { class: "lk-scale" },
    h("span", {}, `against: −${end}`), h("span", { class: "lk-bar", "aria-hidden": "true" }), h("span", {}, `for: +${end}`));
  paint();
  listen(model, frame, "_map _shown", paint);

  const classes = switches(model, "target", model.get("_classes"),
    { label: "Show where it looks for", class: "hs-row lk-classes", look: () => ({ class: "lk-class" }) });

  const far = (step) => `${((100 * model.get("_most") * step) / 20).toFixed(1)} % of the norm of the output`;
  const step = slider(model, "step", { min: 0, max: 20, text: far });
  const scores = bars(withAndWithout("after the step", "before"));
  const words = h("p", { class: "lk-words" });
  const toward = h("strong");
  const show = () => {
    const shown = model.get("_shown");
    scores.show(shown.rows, shown.read);
    words.textContent = shown.words;
    const [, name] = model.get("_classes").find(([number]) => number === model.get("target"));
    toward.textContent = `Step toward ${name}`;
    scores.table.classList.toggle("lk-turned", shown.turned);
  };
  show();
  listen(model, scores.table, "_shown target", show);
  stage(model, el, "Where it looks",
    sentence(model),
    h("div", { class: "hs-row" }, h("strong", {}, "Where does it look for"), classes),
    h("div", { class: "lk-columns" },
      h("div", {}, frame, scale, words),
      h("div", {},
        h("div", { class: "lk-toward" }, toward),
        h("div", { class: "hs-row lk-step" }, field("length of the step", step.control), step.value),
        scores.table)),
    hookCode(model));
}

export default widget(draw);
