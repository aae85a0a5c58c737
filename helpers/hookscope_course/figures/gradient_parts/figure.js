// The parts of a gradient: put the hook on an edge, guess, send the gradient back, and see the parts add up.

const NARROW = 560; // pixels; a narrower page gets the narrow drawing
const LEG = 420; // milliseconds for each part of the way

function draw(model, el) {
  const { graph, label, places, effects, asks } = model.get("_fixed");
  const single = places.length === 1; // then a choice puts the hook on, and nothing has to be dragged
  const run = () => model.get("_runs")[`${model.get("place")},${model.get("place") ? model.get("effect") : "look"}`];
  const asked = () => Object.keys(run().ends);
  const read = (name) => {
    const text = (model.get("guesses")[name] ?? "").trim().replace("−", "-");
    return text === "" || !Number.isFinite(Number(text)) ? null : Number(text);
  };
  const open = () => asked().filter((name) => read(name) === null);

  const say = h("p", { class: "sc-say", role: "status" });
  const holder = h("div");
  const why = h("div", { class: "pt-why", role: "status" });
  const options = [...(single ? [["", "is not there"]] : []), ...effects];
  const does = h("select", { ...ownKeys, onchange: () => pick(does.value) }, ...options.map(([value, text]) => h("option", { value }, text)));
  const inputs = Object.fromEntries(Object.keys(asks).map((name) => [name, h("input", {
    type: "text", inputmode: "decimal", size: 4, class: "pt-guess", "data-asks": name, ...ownKeys,
    oninput: () => { if (!model.get("ran")) put(model, { guesses: { ...model.get("guesses"), [name]: inputs[name].value } }); show(); },
    onkeydown: (event) => { if (event.key === "Enter") go(); },
  })]));
  const fields = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, field(asks[name], input, { class: "hs-field pt-ask" })]));
  const start = h("button", { type: "button", onclick: () => go() }, graph === "steps" ? "Run backward" : "Differentiate twice");
  const over = h("button", { type: "button", onclick: () => ask({ place: "", effect: "look" }) }, "Start over");
  const controls = h("div", { class: "sc-player" }, field("The hook", does), ...Object.values(fields), start, over);

  let layout;
  let svg;
  let boxes = {};
  let labels = {};
  let slots = {};
  let pegs = [];
  let thread;
  let tokens = [];
  let flying = false;
  let known = new Set(); // the parts of the drawing that show their number
  let fired = new Set();

  /** Another hook: hide the gradients, and ask again. */
  const ask = (change) => {
    halt();
    put(model, { place: model.get("place"), effect: model.get("effect"), ...change, guesses: {}, ran: false });
    show();
  };
  const pick = (value) => {
    if (single) ask(value ? { place: places[0], effect: value } : { place: "", effect: "look" });
    else ask({ effect: value });
  };
  const next = () => {
    const values = options.map(([value]) => value);
    const now = single && !model.get("place") ? "" : model.get("effect");
    pick(values[(values.indexOf(now) + 1) % values.length]);
  };
  const points = () => ({ ...Object.fromEntries(places.map((name) => [name, layout.slots[name].at])), ...(layout.tray ? { "": layout.tray } : {}) });
  const home = () => points()[model.get("place")] ?? layout.slots[places[0]].at;

  const build = () => {
    halt();
    const { font, radius } = layout;
    svg = scene(layout.size, label);
    boxes = Object.fromEntries(Object.entries(layout.boxes).map(([name, [x, y, width, height, word, way, key]]) =>
      [name, box([x, y, width, height], word, way, font, !key)]));
    for (const [name, [, y, , , , , key]] of Object.entries(layout.boxes)) { // a word alone stands in the middle
      if (!key) boxes[name].element.querySelector("text").setAttribute("y", y + 0.35 * font);
    }
    labels = Object.fromEntries(Object.entries(layout.labels).map(([key, [x, y, anchor]]) =>
      [key, s("text", { class: "pt-part", "data-part": key, x, y, "font-size": 1.2 * font, "text-anchor": anchor })]));
    slots = Object.fromEntries(Object.entries(layout.slots).map(([name, place]) => {
      const element = s("g", { class: "pt-slot", "data-place": name, onclick: () => (single ? next() : ask({ place: name })) },
        slot(place, radius, font), ...place.also.map((at) => slot({ at, lines: [], text: at, anchor: "middle" }, radius, font)));
      return [name, element];
    }));
    const { also } = layout.slots[places[0]];
    thread = single ? s("path", { class: "pt-thread", d: `M${layout.slots[places[0]].at.join(" ")}L${also[0].join(" ")}` }) : null;
    pegs = [null, ...(single ? also : [])].map(() => peg(radius, font));
    const [main] = pegs;
    main.element.dataset.peg = "main";
    if (single) {
      pegs.forEach(({ element }, at) => {
        element.addEventListener("click", next);
        if (at) { element.setAttribute("tabindex", "-1"); element.setAttribute("aria-hidden", "true"); }
      });
      pressByKey(main.element, next);
    } else {
      draggable(main.element, {
        svg, home, places: points, reach: 60,
        near: (name) => Object.entries(slots).forEach(([each, element]) => mark(element.firstChild, "sc-near", each === name)),
        drop: (name) => { if (name === null || name === model.get("place")) show(); else ask({ place: name }); },
        press: next,
      });
      main.element.addEventListener("keydown", (event) => actOn(event, event.key.startsWith("Arrow") && (() => {
        const { [model.get("place")]: here, ...others } = points();
        const found = toward(event.key, here, others);
        if (found !== null) ask({ place: found });
      })));
    }
    tokens = [0, 1, 2].map(() => token(font));
    const plus = layout.plus && s("g", { class: "pt-plus", "aria-hidden": "true" }, s("circle", { cx: layout.plus[0], cy: layout.plus[1], r: 12 }),
      s("text", { x: layout.plus[0], y: layout.plus[1] + 6, "font-size": 18, "text-anchor": "middle" }, "+"));
    const tray = layout.tray && words(["the hook"], [layout.tray[0], layout.tray[1] - layout.radius - 7], { size: font, kind: "sc-soft" });
    build.tray = tray;
    svg.append(...layout.rails.map(({ points: way, way: kind, dotted }) => rail(way, kind, dotted)), ...(plus ? [plus] : []),
      ...layout.words.map(([text, x, y, way]) => s("text", { class: `pt-word pt-${way}`, x, y, "font-size": font, "text-anchor": "middle", "aria-hidden": "true" }, text)),
      ...Object.values(boxes).map(({ element }) => element), ...Object.values(labels), ...(thread ? [thread] : []), ...Object.values(slots),
      ...(tray ? [tray] : []), ...pegs.map(({ element }) => element), ...tokens.map(({ element }) => element));
    holder.replaceChildren(svg);
  };

  /** Send the gradient back, wave after wave; what arrives is known from then on. */
  const go = () => {
    if (model.get("ran") || open().length) return;
    put(model, { ran: true });
    flying = true;
    show();
    const { values } = run();
    const waves = [...layout.waves];
    const wave = () => {
      if (!flying) return;
      const flights = waves.shift();
      if (!flights) { halt(); show(); return; }
      let left = flights.length;
      flights.forEach(({ points: way, value, knows, fires }, at) => {
        tokens[at].fly(way, LEG, { value: values[value], way: "backward" }, () => {
          tokens[at].stand(way.at(-1), { value: values[value], way: "backward", hidden: knows.length > 0 });
          knows.forEach((name) => known.add(name));
          if (fires && fires === model.get("place")) fired.add(fires);
          left -= 1;
          if (left) return;
          for (const each of tokens) each.hide();
          show();
          wave();
        });
      });
    };
    wave();
  };
  const halt = () => {
    flying = false;
    [known, fired] = [new Set(), new Set()];
    for (const each of tokens) each.hide();
  };

  const show = () => {
    const [ran, told] = [model.get("ran"), model.get("ran") && !flying];
    const { values, changed, got, said, reasons } = run();
    const [place, effect] = [model.get("place"), model.get("effect")];
    const seen = (name) => told || known.has(name) || layout.known.includes(name);
    for (const [name, each] of Object.entries(boxes)) {
      const key = layout.boxes[name][6];
      if (key) each.set(seen(name) ? values[key] : "?", { changed: seen(name) && changed.includes(key) });
    }
    for (const [key, element] of Object.entries(labels)) {
      element.textContent = seen(key) ? values[key] : "?";
      mark(element, "pt-changed", seen(key) && changed.includes(key));
      mark(element, "pt-hidden", !seen(key));
    }
    const doubles = effect !== "look";
    const name = options.find(([value]) => value === effect)[1];
    const where = place ? `hook on ${place}, ${name}` : single ? "no hook on y" : "hook, lies in the tray";
    const how = single ? "Press it to change what it does." : "Arrow keys move it, Enter changes what it does.";
    const spots = single ? [layout.slots[places[0]].at, ...layout.slots[places[0]].also] : [home()];
    pegs.forEach(({ element, set }, at) => {
      move(element, spots[at]);
      set({ text: doubles ? "×2" : "", label: `${where}. ${how}`, fires: told ? place !== "" && got.length > (single && !at ? 1 : 0) : fired.has(place) });
      mark(element, "pt-gone", single && !place);
      mark(element, "pt-pale", single && !at && effect === "removed");
    });
    if (thread) mark(thread, "pt-gone", !place);
    if (build.tray) build.tray.firstChild.textContent = place ? "" : "the hook";
    does.value = single && !place ? "" : effect;
    for (const [each, input] of Object.entries(inputs)) {
      fields[each].hidden = !asked().includes(each);
      if (input.value !== (model.get("guesses")[each] ?? "")) input.value = model.get("guesses")[each] ?? "";
      input.readOnly = ran;
      const right = read(each) === run().ends[each];
      mark(fields[each], "pt-right", told && right);
      mark(fields[each], "pt-wrong", told && !right);
    }
    start.setAttribute("aria-disabled", String(ran || open().length > 0));
    mark(start, "hs-lit", !ran && !open().length);
    const todo = graph === "steps" ? (place ? "Guess what the hook gets and what w.grad becomes, then run." :
      "First without the hook: guess w.grad, then run. Then put the hook on a ring.") :
      (place ? "Guess the first and the second derivative, then run." : "First without a hook: guess both derivatives, then run.");
    say.textContent = told ? said : ran ? "The gradient goes back …" : todo;
    const wrong = told ? asked().filter((each) => read(each) !== run().ends[each]) : [];
    why.replaceChildren(...(told ? [h("p", {}, h("b", {}, `${asked().length - wrong.length} of ${asked().length} right.`),
      wrong.length ? "" : ` ${single ? "Choose another hook" : "Move the hook, or let it do something else"}, and guess again.`)] : []),
    ...wrong.map((each) => h("p", { class: "pt-missed" }, h("b", {}, `${asks[each]} ${each === "got" ? "" : "is "}${run().ends[each]}: `), reasons[each])));
    root.dataset.flying = String(flying);
  };

  const figure = h("div", { class: "sc-figure" }, say, holder, controls, why);
  const root = stage(model, el, label, figure);
  root.classList.add("hs-alone"); // everything is on the page
  fitWidth(model, figure, NARROW, (narrow) => {
    layout = model.get("_layouts")[narrow ? "narrow" : "wide"];
    build();
    show();
  });
  cleanups.get(model)?.push(halt);
  listen(model, root, "place effect guesses ran", () => { if (!model.get("ran")) halt(); show(); });
}

export default widget(draw);
