const FIRST = 7; // the side of a square that is put on an uncovered digit

/** The digit; the square follows the pointer while it is pressed, and the arrow keys. */
function pad(model) {
  const sides = () => [model.get("_height"), model.get("_width")];
  const place = (row, column, size = model.get("size") || FIRST) => {
    const [height, width] = sides();
    const side = Math.min(Math.max(size, 0), height, width);
    const inside = (value, room) => Math.min(Math.max(value, 0), room - side);
    const values = { size: side, row: inside(row, height), column: inside(column, width) };
    if (Object.entries(values).some(([trait, value]) => value !== model.get(trait))) put(model, values);
  };
  const follow = (down, across) => {
    const [height, width] = sides();
    const half = (model.get("size") || FIRST) / 2;
    place(Math.round(down * height - half), Math.round(across * width - half));
  };
  const image = h("img", { class: "sq-image", draggable: "false" });
  const outline = h("div", { class: "sq-outline", "aria-hidden": "true" });
  const cells = h("div", { class: "sq-cells", role: "img" });
  const steps = { ArrowUp: [-1, 0, 0], ArrowDown: [1, 0, 0], ArrowLeft: [0, -1, 0], ArrowRight: [0, 1, 0], "+": [0, 0, 1], "-": [0, 0, -1] };
  const box = imagePad({
    label: "The digit. Arrow keys move the square, plus and minus change its size.", kind: "sq-pad", follow,
    onkeydown: (event) => actOn(event, steps[event.key] && (() => {
      const [[down, across, more], size] = [steps[event.key], model.get("size")];
      place(model.get("row") + (size ? down : 0), model.get("column") + (size ? across : 0), size ? size + more : FIRST);
    })),
  }, image, cells, outline);
  const show = () => {
    const [size, shown, map] = [model.get("size"), model.get("_shown"), model.get("_map")];
    Object.assign(image, { src: shown.src, alt: `The digit that the model receives. ${shown.sentence}` });
    outline.hidden = !size;
    layOver(outline, sides(), { row: model.get("row"), column: model.get("column"), size });
    const mapped = model.get("mapped") && map.cells !== undefined;
    box.classList.toggle("sq-mapped", mapped);
    cells.hidden = !mapped;
    if (!mapped) return;
    const shift = (map.size - map.step) / 2;
    cells.replaceChildren(...map.cells.map((cell) => {
      const one = h("span", { class: cell.reads === shown.was ? "" : "sq-other" }, String(cell.reads));
      one.style.background = `rgb(217 64 38 / ${0.8 * cell.lost})`;
      return layOver(one, sides(), { row: cell.row + shift, column: cell.column + shift, size: map.step });
    }));
    const others = map.cells.filter((cell) => cell.reads !== shown.was);
    cells.setAttribute("aria-label", `A ${map.size} by ${map.size} square in ${map.cells.length} places: in ${others.length} the model reads another digit: ` +
      others.map((cell) => `${cell.reads} at row ${cell.row}, column ${cell.column}`).join("; "));
  };
  show();
  listen(model, box, "row column size mapped _map _shown", show);
  return { box, place };
}

function draw(model, el) {
  const { box, place } = pad(model);
  const size = slider(model, "size", { min: 0, max: model.get("_height"), text: (side) => (side ? `${side} × ${side}` : "none") });
  const goal = choice(model, "goal", model.get("_goals").map((n) => [n, String(n)]), Number);
  const uncover = h("button", { type: "button", onclick: () => put(model, { size: 0, row: 0, column: 0 }) }, "Uncover");
  const toggle = (trait, text) => {
    const button = h("button", { type: "button", onclick: () => put(model, { [trait]: !model.get(trait) }) }, text);
    const show = () => markPressed([button], () => model.get(trait));
    show();
    listen(model, button, trait, show);
    return button;
  };
  const read = h("div", { class: "sq-read" });
  const scores = bars(withAndWithout());
  const score = h("p", { class: "sq-score", role: "status" });
  const hint = h("p", { class: "sq-hint", role: "status" });
  const show = () => {
    const shown = model.get("_shown");
    read.textContent = shown.read;
    read.classList.toggle("sq-flipped", shown.read !== shown.was);
    read.classList.toggle("sq-reached", shown.read === model.get("goal"));
    scores.show(shown.rows, shown.read);
    score.textContent = shown.score;
    hint.textContent = model.get("hinted") ? shown.hint || "Trying every square…" : "";
  };
  show();
  listen(model, read, "_shown goal hinted", show);
  stage(model, el, "The square that fools",
    h("div", { class: "hs-row sq-goal" }, field("Make it read a", goal), "with the smallest square.", score),
    sentence(model),
    h("div", { class: "sq-columns" },
      h("div", { class: "sq-left" }, box,
        h("p", { class: "sq-how" }, "Press on the digit and drag, or use the arrow keys, + and −."),
        h("div", { class: "hs-row" }, field("square", size.control), size.value),
        h("div", { class: "hs-row" }, uncover, toggle("mapped", "Try it in all places"))),
      h("div", { class: "sq-right" },
        h("div", { class: "hs-row sq-ask" }, toggle("hinted", "How small can it be?"), hint),
        h("div", { class: "sq-reading" }, read, scores.table),
        hookCode(model))));
}

export default widget(draw);
