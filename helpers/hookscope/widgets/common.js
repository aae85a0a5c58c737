// What all widgets of hookscope share. It stands in front of every widget's own script.

/** Make an element. Text is always text: a layer called "<img onerror=…>" is shown, never run. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element && typeof value !== "string") element[key] = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Every widget has its own copy of this script, and an id must be the only one on the page.
let lastId = Math.floor(Math.random() * 1e12);
/** A control with its label; the label is what a screen reader says. */
function field(label, control, attributes = {}) {
  control.id ||= `hookscope-${++lastId}`;
  return h("span", { class: "hs-field", ...attributes }, h("label", { for: control.id }, label), control);
}

/** A <select> for [value, text] pairs that writes a trait. */
function choice(model, trait, options, parse = String) {
  const control = h("select", { onchange: () => put(model, { [trait]: parse(control.value) }), ...ownKeys });
  const fill = (pairs) => control.replaceChildren(...pairs.map(([value, text]) => h("option", { value: String(value) }, text)));
  const show = () => { control.value = String(model.get(trait)); };
  fill(options);
  show();
  listen(model, control, trait, show);
  return Object.assign(control, { fill: (pairs) => { fill(pairs); show(); } });
}

/** Else JupyterLab takes the arrow keys, to go to the next cell. */
const ownKeys = { "data-lm-suppress-shortcuts": "true" };

/** A slider that writes a number trait while it moves, and its value in words beside it. */
function slider(model, trait, { min, max, step = 1, text = (value) => String(value) }) {
  const control = h("input", { type: "range", min: String(min), max: String(max), step: String(step), ...ownKeys });
  const value = h("output", { class: "hs-value" });
  const show = () => {
    control.value = String(model.get(trait));
    value.textContent = text(model.get(trait));
    control.setAttribute("aria-valuetext", value.textContent);
  };
  control.addEventListener("input", () => put(model, { [trait]: Number(control.value) }));
  show();
  listen(model, control, trait, show);
  return { control, value, show };
}

/**
 * Write traits and send them, under a number that the kernel gives back once it has answered.
 * While the kernel is busy, ipywidgets keeps what is put, the newest of each trait, and sends it all together.
 */
function put(model, values) {
  for (const [trait, value] of Object.entries({ ...values, _request: model.get("_request") + 1 })) model.set(trait, value);
  model.save_changes();
}

/** Call back when traits of a control change, once for all that change together, while the widget is on the page. */
function listen(model, control, traits, callback) {
  let due = false;
  const once = () => {
    if (due) return;
    due = true;
    queueMicrotask(() => { due = false; callback(); });
  };
  for (const trait of traits.split(" ")) hear(model, `change:${trait}`, once);
}
function hear(model, event, callback) {
  model.on(event, callback);
  cleanups.get(model)?.push(() => model.off(event, callback));
}
const cleanups = new WeakMap();
const settles = new WeakMap(); // what looks again whether a widget is settled

/** An <img> of the PNG bytes in a trait, with the alternative text of another. */
function picture(model, bytes = "png", alt = "alt", attributes = {}) {
  const image = h("img", { class: "hs-picture", ...attributes });
  let url;
  const show = () => {
    const data = model.get(bytes);
    const old = url;
    url = data && data.byteLength ? URL.createObjectURL(new Blob([data], { type: "image/png" })) : undefined;
    image.hidden = !url;
    image.alt = model.get(alt);
    if (url) image.src = url;
    else image.removeAttribute("src");
    if (old) URL.revokeObjectURL(old);
    settles.get(model)?.();
  };
  show();
  listen(model, image, `${bytes} ${alt}`, show);
  cleanups.get(model)?.push(() => url && URL.revokeObjectURL(url));
  return image;
}

/** Lines of code in a trait, which can be scrolled and copied by keyboard. */
function codeLines(model, trait, label) {
  const code = h("pre", { class: "hs-code", tabindex: "0", role: "group", "aria-label": label, ...ownKeys });
  const show = () => { code.textContent = model.get(trait); };
  show();
  listen(model, code, trait, show);
  return code;
}

/** The plain torch lines for what is chosen, folded away until somebody asks for them. */
function codePanel(model) {
  const panel = h("details", { class: "hs-plain" }, h("summary", {}, "Show the PyTorch code"),
    codeLines(model, "code", "The PyTorch code"));
  const show = () => { panel.hidden = !model.get("code"); };
  show();
  listen(model, panel, "code", show);
  return panel;
}

// Its own cell alone would not do: the names it uses are gone with the kernel.
const FROM_THE_TOP = "To use it, run the cells from the top down to this one: click this cell, then choose " +
  "Kernel → Restart Kernel and Run up to Selected Cell…";
const CONTROLS = "button, select, input, [role=option], [role=listbox], [role=button], [role=grid], .ph-pad, .tk-map";
/**
 * Put a widget on the page: its name, what it shows, what went wrong, and a word when there is no kernel.
 * Its controls are held then; one that needs no kernel, since all it shows is on the page, adds the class hs-alone.
 * data-state of what this returns says "busy" until the kernel has answered what was asked last and its pictures are
 * loaded, then "ready"; "still" without a kernel. A screen reader waits with what changes while it is aria-busy.
 */
function stage(model, el, label, ...children) {
  const problem = h("p", { class: "hs-problem", role: "alert" });
  const saved = h("p", { class: "hs-saved" }, `This is how it was when the notebook was saved. ${FROM_THE_TOP}`);
  // A widget that is drawn from a saved notebook has no kernel behind it, nor has its layout, which says so.
  saved.hidden = model.get("layout")?.comm_live !== false;
  let gone = false;
  const show = () => {
    root.classList.toggle("hs-still", gone || !saved.hidden);
    problem.textContent = gone ? `The kernel behind this has stopped. ${FROM_THE_TOP}` : model.get("problem");
    problem.hidden = !problem.textContent;
    settle();
  };
  const root = h("section", { class: "hs-stage", "aria-label": label }, saved, problem, ...children);
  const settle = () => {
    const asks = model.get("_request") !== model.get("_response");
    const loads = [...root.querySelectorAll("img[src]")].some((image) => !image.complete);
    const state = root.matches(".hs-still") ? "still" : asks || loads ? "busy" : "ready";
    root.dataset.state = state;
    root.setAttribute("aria-busy", String(state === "busy" && !root.matches(".hs-alone")));
  };
  for (const type of ["load", "error"]) root.addEventListener(type, settle, true);
  settles.set(model, settle);
  hear(model, "change:_request", settle); // at once
  listen(model, root, "_response", settle); // after what came with it has been drawn
  show();
  listen(model, problem, "problem", show);
  hear(model, "comm_live_update", () => { gone = true; show(); });
  // Nobody would answer: rather nothing moves than that a choice and a picture part.
  const hold = (event) => {
    if (!root.matches(".hs-still:not(.hs-alone)") || !event.target.closest(CONTROLS)) return;
    if (event.type === "keydown" && (event.key === "Tab" || event.key === "Shift" || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  for (const type of ["click", "mousedown", "pointerdown", "keydown"]) root.addEventListener(type, hold, true);
  el.classList.add("hookscope");
  el.append(root);
  return root;
}

/** What anywidget calls: draw, and give back what undoes it. */
function widget(draw) {
  return {
    render({ model, el }) {
      cleanups.set(model, cleanups.get(model) ?? []);
      draw(model, el);
      return () => {
        for (const undo of cleanups.get(model)?.splice(0) ?? []) undo();
      };
    },
  };
}
