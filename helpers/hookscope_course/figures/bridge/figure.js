// The bridge: one hook, registered on two ranks, moves along both rails at once. all_reduce is between the rails.

const NARROW = 560; // pixels; a narrower page gets the narrow drawing
const LEG = 700; // milliseconds from one place to the next
const MEET = 550; // milliseconds onto the bridge, and back from it

function draw(model, el) {
  const places = model.get("_places");
  const ends = model.get("_ends");
  const crossing = places.length - 1; // the last place is behind the bridge
  const at = () => model.get("place");
  const go = (place) => { if (place !== at()) put(model, { place }); };

  const say = h("p", { class: "sc-say", role: "status" });
  const holder = h("div");
  let layout;
  let svg;
  let ranks = []; // for each: the hook, the slots, the box with its value, the value that crosses
  let deck;
  let shown = null; // where the hooks stand
  let stops = [];

  /** The hook of one rank. The other one follows, as both run the same code. */
  const hookOf = (rank) => {
    const hook = peg(layout.radius, layout.font);
    const slots = layout.slots[rank];
    hook.element.dataset.rank = String(rank);
    draggable(hook.element, {
      svg, home: () => slots[at()].at, reach: 5 * layout.radius,
      places: () => Object.fromEntries(slots.map((each, place) => [place, each.at])),
      near: (place) => { // while it is dragged, both show the values there
        for (const [number, each] of ranks.flatMap(({ rings }) => [...rings.entries()])) mark(each, "sc-near", place !== null && number === Number(place));
        if (place !== null) settle(Number(place), rank);
      },
      drop: (place) => { halt(); shown = null; if (place !== null) go(Number(place)); show(); },
      press: () => go((at() + 1) % places.length),
    });
    hook.element.addEventListener("keydown", (event) => { // elsewhere in the figure, Space plays as well
      if (event.key !== " ") return;
      event.preventDefault();
      event.stopImmediatePropagation();
      controls.turn();
    }, true);
    hook.element.addEventListener("keydown", (event) => actOn(event, event.key.startsWith("Arrow") && (() => {
      const to = at() + (event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1); // in the order of the pass
      if (to in places) go(to);
    })));
    return hook;
  };

  const build = () => {
    halt();
    const { font, radius } = layout;
    svg = scene(layout.size, "Two ranks with all_reduce between them");
    const [x, y, width, height] = layout.deck;
    deck = s("g", { class: "br-deck", "aria-hidden": "true" }, s("rect", { x, y, width, height, rx: 6 }),
      s("text", { transform: `translate(${x + width / 2 + 0.35 * font} ${y + height / 2}) rotate(-90)`, "font-size": font, "text-anchor": "middle" }, "all_reduce"));
    ranks = layout.slots.map((slots, rank) => {
      const plate = box([0, 0, ...layout.plate], `on rank ${rank}`, "forward", font);
      plate.element.classList.add("br-plate");
      const [rings, hook] = [slots.map((each) => slot(each, radius, font)), hookOf(rank)];
      rings.forEach((ring, place) => ring.addEventListener("click", () => { go(place); hook.element.focus({ preventScroll: true }); }));
      return { plate, rings, hook, value: token(font) };
    });
    const boxes = layout.boxes.map(([rank, name, x_, y_, w, h_, way]) => {
      const each = box([x_, y_, w, h_], name, way, font);
      each.set(ends[name]?.[rank] ?? "× 5");
      return each.element;
    });
    svg.append(...layout.frames.map(({ rect, title, at: where }) => frame(rect, [], title, where, font)),
      ...layout.rails.map(({ points, way }) => rail(points, way)), deck, ...boxes, ...ranks.flatMap(({ rings }) => rings),
      ...ranks.map(({ plate }) => plate.element), ...ranks.map(({ hook }) => hook.element), ...ranks.map(({ value }) => value.element));
    holder.replaceChildren(svg);
  };

  const halt = () => {
    for (const stop of stops.splice(0)) stop?.();
    for (const { value } of ranks) value.hide();
  };

  /** Write the values at a place, and put both hooks there; one that is being dragged stays where it is. */
  const settle = (place, dragged = -1) => {
    const { name, values, said } = places[place];
    ranks.forEach(({ hook, plate }, rank) => {
      if (rank !== dragged) move(hook.element, layout.slots[rank][place].at);
      move(plate.element, layout.plates[rank][place]);
      plate.set(values[rank]);
      hook.set({ label: `${name} on rank ${rank}, value ${values[rank]}; arrow keys move it on both ranks`, fires: true });
    });
    mark(deck, "br-crossed", place === crossing);
    controls.say(say, said);
  };

  /** Go on by one place: along the rails; over the bridge, both values meet, and come back as one. */
  const fly = (place, arrive) => {
    let open = ranks.length;
    const done = () => { open -= 1; if (!open) arrive(); };
    ranks.forEach(({ hook, plate, value }, rank) => {
      const [from, to] = [layout.plates[rank][place - 1], layout.plates[rank][place]];
      const along = () => stops.push(glide(hook.element, layout.tracks[rank][place - 1], LEG, done), glide(plate.element, [from, to], LEG, () => {}));
      if (place !== crossing) { plate.set("…"); along(); return; } // the value of the last place holds no longer
      const [seen, next] = [places[place - 1], places[place]].map(({ values }) => ({ value: values[rank], way: "backward", left: true }));
      const meet = layout.meet[rank];
      value.fly(meet, MEET, seen, () => value.fly([...meet].reverse(), MEET, next, () => {
        value.hide();
        plate.set(next.value);
        along();
      }));
    });
  };

  const show = () => {
    const place = at();
    if (place === shown) { settle(place); controls.show(); return; }
    halt();
    const arrive = () => {
      svg.dataset.moves = "false";
      shown = place;
      settle(place);
      controls.show();
      controls.arrived();
    };
    const next = shown !== null && place === shown + 1;
    shown = null;
    if (!next || calm()) { arrive(); return; }
    svg.dataset.moves = "true";
    controls.show();
    fly(place, arrive);
  };

  const controls = player(model, {
    go, at, last: () => places.length - 1, dwell: () => 1600, text: () => `${at() + 1} of ${places.length}`,
  });
  const keys = h("p", { class: "sc-keys" }, "Drag the hook on either rank, or click a place. The hook on the other rank moves with it.",
    h("span", { class: "sc-keyboard" }, " Keys: → and ← move it, Home and End jump, Space plays."));
  const figure = h("div", { class: "sc-figure" }, say, holder, controls.element, keys);
  const root = stage(model, el, "The bridge", figure);
  root.classList.add("hs-alone"); // everything is on the page
  root.addEventListener("keydown", controls.keys);
  fitWidth(model, figure, NARROW, (narrow) => {
    layout = model.get("_layouts")[narrow ? "narrow" : "wide"];
    shown = null;
    build();
    show();
  });
  cleanups.get(model)?.push(halt);
  listen(model, root, "place", show);
}

export default widget(draw);
