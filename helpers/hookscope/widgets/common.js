// Functions for all widgets of hookscope. Python puts this text in front of the script of each widget.

/** Make an element. Strings become text nodes, so a layer named "<img onerror=…>" is displayed and not executed. */
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

/** Make an SVG element. Text is always text. */
function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** The place of the pointer in the units of an SVG. */
function pointerAt(svg, { clientX, clientY }) {
  const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM().inverse());
  return [x, y];
}

// The speed of all figures: 2 moves everything twice as fast. Each figure says in milliseconds how long its own ways take.
const SPEED = 1;

/** Whether the reader wants no motion. */
const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** The point after a share of the way, from 0 to 1, along a line through points. */
function pointAlong(points, share) {
  const parts = points.slice(1).map(([x, y], at) => Math.hypot(x - points[at][0], y - points[at][1]));
  let left = share * parts.reduce((sum, part) => sum + part, 0);
  let at = 0;
  while (left > parts[at] && at < parts.length - 1) left -= parts[at++];
  const [[x0, y0], [x1, y1]] = [points[at], points[at + 1]];
  const part = parts[at] ? left / parts[at] : 0;
  return [x0 + part * (x1 - x0), y0 + part * (y1 - y0)];
}

// Every widget has its own copy of this script, but ids must be unique on the page.
let lastId = Math.floor(Math.random() * 1e12);
/** A control with a label, which screen readers read out. */
function field(label, control, attributes = {}) {
  control.id ||= `hookscope-${++lastId}`;
  return h("span", { class: "hs-field", ...attributes }, h("label", { for: control.id }, label), control);
}

/** A <select> of [value, text] pairs that sets a trait, and `more` traits with it. */
function choice(model, trait, options, parse = String, more = {}) {
  const control = h("select", { onchange: () => put(model, { [trait]: parse(control.value), ...more }), ...ownKeys });
  const fill = (pairs) => control.replaceChildren(...pairs.map(([value, text]) => h("option", { value: String(value) }, text)));
  const show = () => { control.value = String(model.get(trait)); };
  fill(options);
  show();
  listen(model, control, trait, show);
  return Object.assign(control, { fill: (pairs) => { fill(pairs); show(); } });
}

/** Without this attribute, JupyterLab uses the arrow keys to move to another cell. */
const ownKeys = { "data-lm-suppress-shortcuts": "true" };

/** Do what a key means in a figure; in a notebook, arrows go to another cell. With Ctrl, Alt or Cmd, a key is the browser's. */
function actOn(event, act) {
  if (!act || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}

/** Let Enter and Space press what is no <button>. */
function pressByKey(element, press) {
  element.addEventListener("keydown", (event) => actOn(event, ["Enter", " "].includes(event.key) && press));
}

/** Say which of some buttons are pressed. */
const markPressed = (buttons, isPressed) =>
  [...buttons].forEach((button, at) => button.setAttribute("aria-pressed", String(isPressed(button, at))));

/** Buttons that set a trait, one for each of the [value, content] pairs. */
function switches(model, trait, pairs, { label, text, pick = (value) => put(model, { [trait]: value }), look = () => ({}), ...attributes }) {
  const buttons = pairs.map(([value, content]) => h("button", { type: "button", ...look(value), onclick: () => pick(value) }, content));
  const row = h("div", { class: "hs-row", role: "group", "aria-label": label, ...attributes }, text && h("span", {}, text), ...buttons);
  const show = () => markPressed(buttons, (button, at) => pairs[at][0] === model.get(trait));
  show();
  listen(model, row, trait, show);
  return row;
}

/** A checkbox that sets a trait. */
function checkbox(model, trait) {
  const control = h("input", { type: "checkbox", onchange: () => put(model, { [trait]: control.checked }) });
  const show = () => { control.checked = model.get(trait); };
  show();
  listen(model, control, trait, show);
  return control;
}

/** A box for a text of the reader's own. Enter and the button hand it to `ask`. */
function textBox(ask) {
  const entry = h("input", { type: "text", class: "hs-text", size: "34", spellcheck: "false", autocomplete: "off", ...ownKeys });
  entry.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") { event.preventDefault(); ask(entry.value); }
  });
  const read = h("button", { type: "button", onclick: () => ask(entry.value) }, "Read");
  return { entry, parts: [field("Text", entry), read] };
}

/** A slider that sets a number trait while it moves, with its value next to it. */
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
 * Set traits and send them with a request number, which the kernel returns with its answer.
 * While the kernel is busy, ipywidgets collects the latest value of each trait and sends them together.
 */
function put(model, values) {
  tell(model, { ...values, _request: model.get("_request") + 1 });
}

/** Set traits when everything is on the page already, so nothing is asked of the kernel. */
function tell(model, values) {
  for (const [trait, value] of Object.entries(values)) model.set(trait, value);
  model.save_changes();
}

/** Run a callback when some traits change, once per batch of changes, while the widget is on the page. */
function listen(model, control, traits, callback) {
  let due = false;
  const once = () => {
    if (due) return;
    due = true;
    queueMicrotask(() => { due = false; callback(); });
  };
  for (const trait of traits.split(" ")) subscribe(model, `change:${trait}`, once);
}
function subscribe(model, event, callback) {
  model.on(event, callback);
  cleanups.get(model)?.push(() => model.off(event, callback));
}
const cleanups = new WeakMap();
const settles = new WeakMap(); // the function that updates data-state, by model

/** An <img> that shows the PNG bytes of one trait with the alt text of another. */
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

/** Code as a block that can be scrolled and copied by keyboard. */
const codeBlock = (label, code = "", attributes = {}) =>
  h("pre", { class: "hs-code", tabindex: "0", role: "group", "aria-label": label, ...ownKeys, ...attributes }, code);

/** Copy a text, or else select the element that shows it. Returns whether it is copied. */
async function copyOrSelect(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return false;
  }
}

/** Text with what stands between backticks as code. */
const worded = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));

/** Text with values in the place of names in braces. */
const fillNames = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

/** A number as people write it, with a minus that is as long as a plus. */
const signed = (number) => String(number).replace("-", "−");

/** The code in a trait. */
function codeLines(model, trait, label) {
  const code = codeBlock(label);
  const show = () => { code.textContent = model.get(trait); };
  show();
  listen(model, code, trait, show);
  return code;
}

/** The plain torch code for the current choice, in a <details> that starts closed. */
function codePanel(model) {
  const panel = h("details", { class: "hs-plain" }, h("summary", {}, "Show the PyTorch code"),
    codeLines(model, "code", "The PyTorch code"));
  const show = () => { panel.hidden = !model.get("code"); };
  show();
  listen(model, panel, "code", show);
  return panel;
}

// Running only this cell would fail, because the variables of earlier cells are gone.
const RESTARTED = "Python was restarted: choose Run → Run All Above Selected Cell, then run this cell.";
const CONTROLS = "button, select, input, [role=option], [role=listbox], [role=button], [role=grid], .ph-pad, .tk-map";
/**
 * Put a widget on the page: its label, its content, its error, and a message if there is no kernel.
 * Without a kernel, the controls are blocked. A widget that works without one adds the class hs-alone.
 * data-state is "busy" until the kernel has answered the last request and all images are loaded, then "ready".
 * Without a kernel it is "still". Screen readers wait while the element is aria-busy.
 */
function stage(model, el, label, ...children) {
  const problem = h("p", { class: "hs-problem", role: "alert" });
  const saved = h("p", { class: "hs-saved" }, `This is the state from when the notebook was saved. ${RESTARTED}`);
  // The layout of a widget from a saved notebook has no live comm.
  saved.hidden = model.get("layout")?.comm_live !== false;
  let gone = false;
  const show = () => {
    root.classList.toggle("hs-still", gone || !saved.hidden);
    problem.textContent = gone ? RESTARTED : model.get("problem");
    problem.hidden = !problem.textContent;
    settle();
  };
  const root = h("section", { class: "hs-stage", "aria-label": label }, saved, problem, ...children);
  root.style.setProperty("--hs-time", 1 / SPEED); // for the transitions in CSS
  const settle = () => {
    const asks = model.get("_request") !== model.get("_response");
    const loads = [...root.querySelectorAll("img[src]")].some((image) => !image.complete);
    const state = root.matches(".hs-still") ? "still" : asks || loads ? "busy" : "ready";
    root.dataset.state = state;
    root.setAttribute("aria-busy", String(state === "busy" && !root.matches(".hs-alone")));
  };
  for (const type of ["load", "error"]) root.addEventListener(type, settle, true);
  settles.set(model, settle);
  subscribe(model, "change:_request", settle); // at once, not batched
  listen(model, root, "_response", settle); // after what came with it has been drawn
  show();
  listen(model, problem, "problem", show);
  subscribe(model, "comm_live_update", () => { gone = true; show(); });
  // Block the controls, or a choice would no longer match the image.
  const hold = (event) => {
    if (!root.matches(".hs-still:not(.hs-alone)") || !event.target.closest(CONTROLS)) return;
    if (event.type === "keydown" && (event.key === "Tab" || event.key === "Shift" || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  for (const type of ["click", "mousedown", "pointerdown", "keydown"]) root.addEventListener(type, hold, true);
  el.classList.add("hookscope");
  el.append(root);
  if (saved.hidden) showTop(model, root);
  keepKeys(model, root);
  requestAnimationFrame(() => passOn(model, root)); // once it is in its cell
  return root;
}

/**
 * Keys belong to the figure that has the focus, until Escape, Tab or a click elsewhere. Otherwise an arrow key would move
 * to another cell or fold a heading of the notebook, also after the button with the focus has been replaced.
 */
function keepKeys(model, root) {
  root.tabIndex = -1; // a click on a part without a control gives the focus to the figure
  let has = false;
  const isAround = (target) => target === document.body || (target.matches?.(".jp-Cell, .jp-Notebook") && target.contains(root));
  const focus = ({ target }) => { has = root.contains(target) || (has && isAround(target)); };
  const leave = ({ target }) => { if (!root.contains(target)) has = false; };
  const press = (event) => {
    const { key, target } = event;
    if (!has || ["Tab", "Shift"].includes(key) || event.ctrlKey || event.altKey || event.metaKey) return;
    if (key === "Enter" && event.shiftKey) return;
    if (key === "Escape") {
      has = false;
      setTimeout(() => root.closest(".jp-Cell")?.focus({ preventScroll: true }));
    } else if (root.contains(target)) { // its shortcuts look for the attribute from the element with the focus upward
      const [[name, value]] = Object.entries(ownKeys);
      if (target.hasAttribute(name)) return;
      target.setAttribute(name, value);
      setTimeout(() => target.removeAttribute(name)); // after this event
    } else if (isAround(target)) { // the control that had the focus is gone
      event.preventDefault();
      event.stopImmediatePropagation();
      root.focus({ preventScroll: true });
    }
  };
  const listeners = { focusin: focus, pointerdown: leave, keydown: press };
  for (const [type, each] of Object.entries(listeners)) window.addEventListener(type, each, true);
  cleanups.get(model)?.push(() => {
    for (const [type, each] of Object.entries(listeners)) window.removeEventListener(type, each, true);
  });
}

/**
 * In a figure that was touched, Shift+Enter runs the next cell. JupyterLab would run this one again, and the figure
 * would forget what was done in it. A click elsewhere in the cell gives the key back.
 */
function passOn(model, root) {
  const cell = root.closest(".jp-CodeCell");
  if (!cell || root.matches(".hs-runs-again")) return;
  let touched = false;
  const note = (event) => {
    touched = root.contains(event.target);
    if (!touched && root.contains(document.activeElement)) cell.focus({ preventScroll: true });
  };
  const leave = ({ relatedTarget }) => { if (relatedTarget && !cell.contains(relatedTarget)) touched = false; };
  const press = (event) => {
    const next = cell.nextElementSibling;
    if (event.key !== "Enter" || !event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) {
      if (event.key !== "Shift" && root.contains(event.target)) touched = true;
    } else if (touched && !event.target.closest(".jp-InputArea") && next?.matches(".jp-Cell")) {
      event.preventDefault();
      event.stopImmediatePropagation();
      next.focus();
      next.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", code: "Enter", keyCode: 13, shiftKey: true, bubbles: true, cancelable: true }));
    }
  };
  const listeners = { pointerdown: note, focusout: leave, keydown: press };
  for (const [type, each] of Object.entries(listeners)) cell.addEventListener(type, each, true);
  cleanups.get(model)?.push(() => {
    for (const [type, each] of Object.entries(listeners)) cell.removeEventListener(type, each, true);
  });
}

const drawn = new WeakSet(); // the models that have been drawn before
/**
 * Scroll once to the top of the output of a cell that has just run. JupyterLab scrolls to the next cell, so the top of
 * a tall output leaves the page. Do nothing if the reader has gone elsewhere, or moves the page.
 */
function showTop(model, root) {
  if (drawn.has(model)) return;
  drawn.add(model);
  const types = ["wheel", "keydown", "pointerdown", "touchmove"];
  let timer;
  const end = () => {
    clearTimeout(timer);
    document.removeEventListener("scroll", later, true);
    for (const type of types) document.removeEventListener(type, end, true);
  };
  const scroll = () => {
    const panel = root.closest(".jp-WindowedPanel-outer");
    const cell = root.closest(".jp-Cell");
    if (!panel || !cell) return;
    const active = panel.querySelector(".jp-Cell.jp-mod-active");
    const above = panel.getBoundingClientRect().top - root.closest(".jp-OutputArea").getBoundingClientRect().top;
    if (above <= 0 || (active !== cell && active !== cell.nextElementSibling)) return;
    end();
    panel.scrollTop -= above + 8;
  };
  const later = () => { // JupyterLab scrolls some time after the output is there, sometimes in two steps
    clearTimeout(timer);
    timer = setTimeout(scroll, 150);
  };
  later();
  setTimeout(end, 2000);
  document.addEventListener("scroll", later, true);
  for (const type of types) document.addEventListener(type, end, true);
}

/** The object that anywidget calls: render() draws the widget and returns a cleanup function. */
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
