const SIDE = 168; // pixels of a picture on the page, or a little less: a whole number for each value

/** One picture under its name, with how to read it below. */
function figure(model, name, title, frame = still) {
  const image = picture(model, `${name}_png`, `${name}_alt`, { draggable: "false" });
  const [height, width] = [model.get("height"), model.get("width")];
  const fits = SIDE / Math.max(height, width);
  const zoom = fits >= 1 ? Math.floor(fits) : fits;
  const size = `width: ${zoom * width}px; height: ${zoom * height}px`;
  image.style.cssText = size;
  if (zoom < 1) image.style.imageRendering = "auto";
  const note = h("figcaption");
  const show = () => { note.textContent = model.get("notes")[name] ?? ""; };
  show();
  listen(model, note, "notes", show);
  const colours = name === "difference" ? "coolwarm" : "viridis";
  const ramp = h("div", { class: `ph-ramp ph-${colours}`, "aria-hidden": "true", hidden: colours === "viridis" && model.get("in_color") });
  return h("figure", { class: "ph-figure" }, h("strong", {}, title), frame(model, image, size), ramp, note);
}

/** The box of a picture; it keeps its size when there is no picture. */
const still = (model, image, style) => h("div", { class: "ph-frame", style }, image);

/** Put the square under the pointer while it is pressed, and let the arrow keys move it. */
function pad(model, image, style) {
  const clamp = (value, trait) => Math.min(Math.max(value, 0), model.get(trait) - 1);
  const side = () => model.get("square") || Math.ceil(Math.min(model.get("height"), model.get("width")) / 4);
  const move = (row, column) => {
    const values = { square: side(), row: clamp(row, "height"), column: clamp(column, "width") };
    if (Object.entries(values).some(([trait, value]) => value !== model.get(trait))) put(model, values);
  };
  const follow = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const half = side() / 2;
    move(
      Math.round(((event.clientY - box.top) / box.height) * model.get("height") - half),
      Math.round(((event.clientX - box.left) / box.width) * model.get("width") - half),
    );
  };
  const outline = h("div", { class: "ph-outline", "aria-hidden": "true" });
  const show = () => {
    const part = (trait, whole) => `${(100 * model.get(trait)) / model.get(whole)}%`;
    outline.hidden = !model.get("square");
    Object.assign(outline.style, {
      left: part("column", "width"), top: part("row", "height"), width: part("square", "width"), height: part("square", "height"),
    });
  };
  show();
  listen(model, outline, "square row column", show);
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  return h("div", {
    class: "ph-frame ph-pad", style, tabindex: "0", role: "group",
    "aria-label": "Edited picture. Arrow keys move the square.",
    ...ownKeys,
    onkeydown: (event) => {
      const step = steps[event.key];
      if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      move(model.get("row") + step[0], model.get("column") + step[1]);
    },
    onpointerdown: (event) => {
      if (event.button !== 0) return;
      event.currentTarget.setPointerCapture(event.pointerId);
      follow(event);
    },
    onpointermove: (event) => {
      if (event.currentTarget.hasPointerCapture(event.pointerId)) follow(event);
    },
  }, image, outline);
}

/** The probabilities of each class without and with the hook, as bars and as numbers. */
function chart(model) {
  const percent = (p) => (p === null ? "NaN" : `${(100 * p).toFixed(1)} %`);
  const bar = (kind, p) => h("span", { class: `ph-bar ph-${kind}`, style: `width: ${100 * (p ?? 0)}%` });
  const body = h("tbody");
  const show = () => body.replaceChildren(...model.get("bars").map(([name, before, after]) => h("tr", {},
    h("th", { scope: "row", title: name }, name),
    h("td", { class: "ph-track" }, h("div", { "aria-hidden": "true" }, bar("before", before), bar("after", after))),
    h("td", {}, percent(before)), h("td", {}, percent(after)))));
  show();
  listen(model, body, "bars", show);
  const key = (kind, text) => h("span", { class: "ph-key" }, h("span", { class: `ph-bar ph-${kind}`, "aria-hidden": "true" }), text);
  return h("table", { class: "ph-chart" },
    h("caption", {}, "softmax of the model's output ", key("before", "outlined: original"), key("after", "filled: edited")),
    h("thead", {}, h("tr", {},
      h("th", { scope: "col" }, "class"),
      h("th", { scope: "col" }, "0 to 100 %"),
      h("th", { scope: "col" }, "original"), h("th", { scope: "col" }, "edited"))),
    body);
}

/** Everything that the hook does, a slider each. ipywidgets itself sends the newest values once the last are answered. */
function controls(model) {
  const [height, width, reach] = ["height", "width", "reach"].map((trait) => model.get(trait));
  const short = (value) => String(Number(value.toPrecision(4)));
  const line = (label, trait, options) => {
    const { control, value } = slider(model, trait, { text: short, ...options });
    return h("div", { class: "ph-line" }, field(label, control), value);
  };
  const seed = h("input", { type: "number", min: "0", max: "999999", step: "1", required: true });
  const show = () => { if (seed.valueAsNumber !== model.get("seed")) seed.value = String(model.get("seed")); };
  seed.addEventListener("change", show); // an empty or wrong one goes back when it is left
  seed.addEventListener("input", () => seed.validity.valid && put(model, { seed: seed.valueAsNumber }));
  show();
  listen(model, seed, "seed", show);
  return h("div", { class: "ph-controls" },
    line("brightness", "brightness", { min: -reach, max: reach, step: reach / 100 }),
    line("contrast", "contrast", { min: 0, max: 3, step: 0.05 }),
    line("noise", "noise", { min: 0, max: reach, step: reach / 100 }),
    h("div", { class: "ph-line" }, field("noise seed", seed)),
    line("square: size", "square", { min: 0, max: Math.max(height, width) }),
    line("square: row", "row", { min: 0, max: height - 1 }),
    line("square: column", "column", { min: 0, max: width - 1 }),
    line("shift down", "shift_rows", { min: 1 - height, max: height - 1 }),
    line("shift right", "shift_columns", { min: 1 - width, max: width - 1 }),
    h("button", { type: "button", onclick: () => put(model, model.get("_neutral")) }, "Reset: no edit"));
}

/** The hook as it stands, to read and to copy. */
function listing(model) {
  const text = h("pre", { class: "ph-code", tabindex: "0", role: "region", "aria-label": "The hook as code" });
  const done = h("span", { role: "status" });
  const show = () => { text.textContent = model.get("code"); done.textContent = ""; };
  show();
  listen(model, text, "code", show);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(model.get("code"));
      done.textContent = "Copied. Paste it into a cell.";
    } catch {
      getSelection().selectAllChildren(text);
      done.textContent = "Selected: press Ctrl+C.";
    }
  };
  return h("div", { class: "ph-listing" },
    h("div", { class: "hs-row" }, h("strong", {}, "The hook that does this"), h("button", { type: "button", onclick: copy }, "Copy"), done),
    text);
}

function draw(model, el) {
  const answer = h("p", { class: "ph-answer", role: "status" });
  const show = () => { answer.textContent = model.get("answer"); };
  show();
  listen(model, answer, "answer", show);
  stage(model, el, model.get("title"),
    h("p", { class: "ph-title" }, model.get("title")),
    h("div", { class: "hs-columns" },
      figure(model, "original", "original"),
      figure(model, "edited", "edited by the hook", pad),
      figure(model, "difference", "edited − original")),
    h("p", { class: "ph-hint" }, "Press on the edited picture and drag: a square covers what is under the pointer. Arrow keys move it."),
    answer,
    h("div", { class: "hs-columns" }, controls(model), chart(model)),
    listing(model));
}

export default widget(draw);
