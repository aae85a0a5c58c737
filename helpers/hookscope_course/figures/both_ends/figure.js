// Both ends of a module: close a gate, mark the gradients that go dark, run the backward pass, and see.

const NARROW = 560; // pixels; a narrower page gets the narrow drawing
const LEG = 420; // milliseconds from one station to the next

function draw(model, el) {
  const GATES = ["stop_input", "stop_output"];
  const INPUTS = ["x1", "x2"];
  const ENDS = ["x1.grad", "x2.grad", "W.grad"];
  const has = (trait, name) => model.get(trait).includes(name);
  const flip = (trait, name, all) => all.filter((each) => has(trait, each) !== (each === name));
  const pass = () => model.get("_passes")[[...GATES, ...INPUTS].filter((name) => has("stops", name) || has("plain", name)).join()];
  const text = (value) => (value === null ? "None" : String(value));
  const missed = () => ENDS.filter((name, at) => has("marks", name) === Boolean(pass().ends[at]));

  const say = h("p", { class: "sc-say", role: "status" });
  const holder = h("div");
  const why = h("div", { class: "be-why", role: "status" });
  const checks = INPUTS.map((name) => h("input", { type: "checkbox", onchange: () => ask({ plain: flip("plain", name, INPUTS) }), ...ownKeys }));
  const run = h("button", { type: "button", onclick: () => go() }, "Run backward");
  const over = h("button", { type: "button", onclick: () => { ask({ stops: [], plain: [] }); gates[GATES[1]]?.element.focus({ preventScroll: true }); } }, "Start over");
  const controls = h("div", { class: "sc-player" }, run, ...INPUTS.map((name, at) => field(`${name} requires grad`, checks[at])), over);

  let layout;
  let boxes = {};
  let ends = {};
  let gates = {};
  let buttons = [];
  let shades = [];
  let tokens = [];
  let flying = false;

  /** Another gate or input: hide the gradients, and ask again. */
  const ask = (change) => {
    halt();
    if ("stops" in change) put(model, { stops: change.stops, plain: change.plain ?? model.get("plain"), marks: [], ran: false });
    else put(model, { plain: change.plain, marks: [], ran: false });
    show();
  };
  const toggle = (gate) => ask({ stops: flip("stops", gate, GATES) });
  const press = (name) => {
    if (model.get("ran")) return;
    put(model, { marks: flip("marks", name, ENDS) });
    show();
  };

  /** The part of a gate to take hold of: its arrow says which way the gate goes next. */
  const gateHandle = ([x, y]) => {
    const arrow = s("path");
    const point = (shut) => arrow.setAttribute("d", `M${x - 6} ${y + (shut ? 3 : -3)} L${x} ${y + (shut ? -4 : 4)} L${x + 6} ${y + (shut ? 3 : -3)}`);
    return { element: s("g", { class: "be-handle" }, s("rect", { x: x - 15, y: y - 12, width: 30, height: 24, rx: 8 }), arrow), point };
  };

  /** The button below a gate. The gate itself is the switch for the keyboard, so a reader hears of one only. */
  const gateButton = (name) => {
    const [x, y, width, height] = layout.buttons[name];
    const label = s("text", { x, y: y + 0.35 * layout.font, "font-size": layout.font, "text-anchor": "middle" });
    const element = s("g", { class: "be-switch", "aria-hidden": "true", "data-button": name },
      s("rect", { x: x - width / 2, y: y - height / 2, width, height, rx: 8 }), label);
    const light = (on) => mark(gates[name].element, "be-hot", on);
    element.addEventListener("pointerenter", () => light(true));
    element.addEventListener("pointerleave", () => light(false));
    element.addEventListener("pointerdown", (event) => { event.preventDefault(); gates[name].element.focus({ preventScroll: true }); });
    element.addEventListener("click", () => toggle(name));
    return { element, set: () => { label.textContent = `${has("stops", name) ? "Open" : "Close"} ${name}`; } };
  };

  /** A gate is a switch: a click or Enter moves it, arrows move it up or down, and it can be dragged. */
  const gate = (name) => {
    const [x, y, width, height, lift] = layout.gates[name];
    const bar = s("rect", { class: "be-bar", x: x - width / 2, y: y - height / 2, width, height, rx: 6 });
    const handle = gateHandle([x, y]);
    const focus = focusFrame([x, y, width, height], 7, 10, "be-focus");
    const grip = s("rect", { class: "be-reach", x: x - 22, y: y - height / 2 - 4, width: 44, height: height + 8 });
    const element = s("g", { class: "be-gate", role: "switch", tabindex: 0, "aria-label": `${name} closed`, "data-gate": name, ...ownKeys }, focus, grip, bar, handle.element);
    const rest = () => (has("stops", name) ? 0 : -lift);
    const set = () => {
      move(element, [0, rest()]);
      element.setAttribute("aria-checked", String(has("stops", name)));
      mark(element, "be-shut", has("stops", name));
      handle.point(has("stops", name));
    };
    const there = (down) => Math.min(0, Math.max(-lift, rest() + down / element.ownerSVGElement.getScreenCTM().a));
    drag(element, {
      vertical: true,
      follow: (event, [, down]) => move(element, [0, there(down)]),
      drop: (event, [, down]) => {
        const shut = there(down) > -lift / 2;
        if (shut === has("stops", name)) set();
        else toggle(name);
      },
      cancel: set,
      press: () => toggle(name),
    });
    element.addEventListener("keydown", (event) => {
      const wanted = { ArrowDown: true, ArrowUp: false, Enter: !has("stops", name), " ": !has("stops", name) }[event.key];
      actOn(event, wanted !== undefined && (() => { if (wanted !== has("stops", name)) toggle(name); }));
    });
    return { element, set };
  };

  /** One of the three gradients: a button until the pass has run. */
  const end = (name) => {
    const [x, y, width, height] = layout.boxes[name];
    const sign = s("text", { class: "be-sign", x: x + width / 2 - 4, y: y - height / 2 + layout.font, "font-size": layout.font, "text-anchor": "end" });
    const focus = focusFrame([x, y, width, height], 4, 13, "be-focus");
    const element = s("g", { class: "be-end", role: "button", tabindex: 0, "data-end": name, ...ownKeys, onclick: () => press(name) }, focus, boxes[name].element, sign);
    pressByKey(element, () => press(name));
    const set = () => {
      const [known, marked] = [model.get("ran") && !flying, has("marks", name)];
      const value = pass().ends[ENDS.indexOf(name)];
      const right = marked !== Boolean(value);
      boxes[name].set(known ? text(value) : marked ? "dark" : "?", { changed: known && value === 0 });
      mark(element, "be-dark", known ? !value : marked);
      sign.textContent = known ? (right ? "✓" : "✗") : "";
      mark(sign, "be-wrong", known && !right);
      element.setAttribute("aria-pressed", String(marked));
      element.setAttribute("aria-disabled", String(model.get("ran")));
      const guess = marked ? "you say it goes dark" : "you say it does not go dark";
      element.setAttribute("aria-label", known ? `${name} is ${text(value)}; ${guess}, ${right ? "right" : "wrong"}` : `${name} goes dark`);
    };
    return { element, set };
  };

  const build = () => {
    halt();
    const svg = scene(layout.size, "A module with a gate at each end");
    const { font } = layout;
    boxes = Object.fromEntries(Object.entries(layout.boxes).map(([name, [x, y, width, height, word, way]]) =>
      [name, box([x, y, width, height], word, way, font, name === "forward" || name === "backward")]));
    ends = Object.fromEntries(ENDS.map((name) => [name, end(name)]));
    gates = Object.fromEntries(GATES.map((name) => [name, gate(name)]));
    tokens = ENDS.map(() => token(font));
    buttons = GATES.map(gateButton);
    const others = Object.keys(boxes).filter((name) => !ENDS.includes(name));
    shades = layout.shades.map(({ points, bare, of, at }) => {
      const element = rail(points, "backward");
      if (bare) element.querySelector("polygon").remove();
      element.classList.add("be-shade");
      return { element, carries: (found) => (at === undefined ? found[of] : found[of][at]) };
    });
    svg.append(frame(layout.frame, layout.doors, "y = x1 · x2 · W", layout.title, font), ...layout.rails.map(({ points, way }) => rail(points, way)),
      ...shades.map(({ element }) => element),
      ...others.map((name) => boxes[name].element), ...buttons.map(({ element }) => element),
      // in the order of the Tab key: first the gates, from the back, then the gradients
      gates.stop_output.element, gates.stop_input.element, ...ENDS.map((name) => ends[name].element), ...tokens.map(({ element }) => element));
    holder.replaceChildren(svg);
  };

  /** Send the gradient back: to the gate, into the module, and from there to the three ends. */
  const go = () => {
    if (model.get("ran")) return;
    put(model, { ran: true });
    const found = pass();
    const { tracks } = layout;
    const [first] = tokens;
    flying = true;
    show();
    const look = (value) => ({ value: text(value), way: "backward", hidden: value === null });
    const last = () => { halt(); show(); };
    const out = () => {
      let open = ENDS.length;
      const done = () => { open -= 1; if (!open) last(); };
      tokens.slice(0, 2).forEach(({ fly, hide }, at) => {
        const [name, made] = [INPUTS[at], found.made[at]];
        if (made === null) { hide(); done(); return; }
        fly(tracks[name], LEG, look(made), () => fly(tracks[`${name}.grad`], LEG, look(found.goes_on[at]), done));
      });
      tokens[2].fly(tracks["W.grad"], 2 * LEG, { ...look(found.ends[2]), left: true }, done);
    };
    first.fly(tracks.y, LEG, look(found.arrives), () => first.fly(tracks.in, LEG, look(found.goes_in), out));
  };
  const halt = () => {
    flying = false;
    for (const each of tokens) each.hide();
  };

  const show = () => {
    const [ran, known] = [model.get("ran"), model.get("ran") && !flying];
    for (const [name, value] of Object.entries({ x1: 2, x2: 3, W: 5, y: pass().y, y_grad: pass().arrives })) boxes[name].set(text(value));
    for (const each of [...Object.values(gates), ...buttons, ...Object.values(ends)]) each.set();
    // After the run, an arrow on which 0 or nothing travels is as dark as the gradient at its end.
    for (const { element, carries } of shades) mark(element, "be-off", known && !carries(pass()));
    INPUTS.forEach((name, at) => { checks[at].checked = !has("plain", name); });
    run.setAttribute("aria-disabled", String(ran));
    say.textContent = known ? pass().said : ran ? "The gradient goes back …" :
      "Click a gate to close it. Which gradients are 0 or None then? Click them: they turn dark. Then run backward.";
    const wrong = known ? missed() : [];
    why.replaceChildren(...(known ? [h("p", {}, h("b", {}, `${ENDS.length - wrong.length} of ${ENDS.length} right.`),
      wrong.length ? "" : " Click a gate, or untick “requires grad” for an input. Then guess again.")] : []),
    ...wrong.map((name) => h("p", { class: "be-missed" }, h("b", {}, `${name}: `), pass().reasons[ENDS.indexOf(name)])));
    root.dataset.flying = String(flying);
  };

  const figure = h("div", { class: "sc-figure" }, say, holder, controls, why);
  const root = stage(model, el, "Both ends of a module", figure);
  root.classList.add("hs-alone"); // everything is on the page
  fitWidth(model, figure, NARROW, (narrow) => {
    layout = model.get("_layouts")[narrow ? "narrow" : "wide"];
    build();
    show();
  });
  cleanups.get(model)?.push(halt);
  listen(model, root, "stops plain marks ran", () => { if (!model.get("ran")) halt(); show(); });
}

export default widget(draw);
