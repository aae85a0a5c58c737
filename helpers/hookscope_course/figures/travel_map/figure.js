// The travel map: choose what becomes of the hook at each station, then travel there. torch ran all stations in Python.

const NARROW = 600; // pixels; a narrower page gets one card below the other
const FLIGHT = 800; // milliseconds

function draw(model, el) {
  const { stations, fates, hooked, plain, legend: lines, wide, narrow } = model.get("_data");
  const byName = Object.fromEntries(stations.map((station) => [station.name, station]));
  const short = Object.fromEntries(fates.map(({ name, short: words_ }) => [name, words_]));
  const asked = stations.filter(({ sees }) => !sees); // the chapter asks about the others
  const guessOf = (name) => model.get("guesses")[name];
  const isVisited = (name) => model.get("visited").includes(name);
  const mine = (guess, fate) => short[guess].replace(short[fate].startsWith("fires, ") ? "fires, " : "only ", "").replace(/^only | stays$| behind$/g, ""); // both have to fit
  const calls = (count) => `called ${count}×`;

  const say = h("p", { class: "sc-say", role: "status" });
  const holder = h("div");
  const ask = h("p", { class: "sc-ask" });
  const why = h("p", { class: "tm-why", role: "status" });
  const score = h("span", { class: "tm-score" });
  let layout;
  let cards = {};
  let ways = {};
  let rails;
  let dot;
  let flying = "";

  /** What became of a hook, as a sign: a peg with its handle, a peg whose handle is lost, an empty place, a ×10. */
  const icon = (fate, [x, y]) => {
    const on = fate === "follows" || fate === "stays";
    const sign = s("text", { x, y: y + 4, class: on ? "tm-on" : "" }, "×10");
    const group = s("g", { class: "tm-icon", "aria-hidden": "true" });
    if (fate === "left") group.append(s("circle", { class: "tm-empty", cx: x, cy: y, r: 12 }));
    else if (fate === "baked") group.append(s("rect", { class: "tm-baked", x: x - 15, y: y - 10, width: 30, height: 20, rx: 3 }), sign);
    else group.append(s("path", { d: `M${x - 26} ${y}H${x - 12}`, "stroke-dasharray": fate === "follows" ? null : "2 3" }),
      s("circle", { class: fate === "follows" ? "tm-peg" : "tm-lost", cx: x - 31, cy: y, r: 5 }), s("circle", { class: "tm-peg", cx: x, cy: y, r: 13 }), sign);
    return group;
  };

  const buttons = fates.map(({ name, long }) => {
    const element = h("button", { type: "button", onclick: () => choose(name) },
      s("svg", { viewBox: "-38 -15 54 30", "aria-hidden": "true" }, icon(name, [0, 0])), h("span", {}, long));
    return { name, element };
  });
  const run = h("button", { type: "button", onclick: () => travel() }, "Travel there");
  const over = h("button", { type: "button", onclick: () => { halt(); put(model, { visited: [], guesses: {}, at: stations[0].name }); show(); } }, "Start over");

  const choose = (fate) => {
    const name = model.get("at");
    if (isVisited(name) || flying || byName[name].sees) return;
    const guesses = { ...model.get("guesses"), [name]: fate };
    const at = asked.findIndex((station) => station.name === name);
    const next = [...asked.slice(at + 1), ...asked.slice(0, at)].find((station) => !(station.name in guesses) && !isVisited(station.name));
    put(model, { guesses, at: next ? next.name : name });
    show();
  };
  const pick = (name) => { halt(); put(model, { at: name }); show(); };
  const travel = () => {
    const name = model.get("at");
    if (isVisited(name) || flying || !guessOf(name)) return;
    flying = name;
    show();
    dot.fly(layout.ways[name], FLIGHT, { value: "×10", way: "forward" }, () => {
      halt();
      put(model, { visited: [...model.get("visited"), name] });
      show();
    });
  };
  const halt = () => {
    flying = "";
    dot?.hide();
  };

  const build = () => {
    halt();
    const { font, home, legend } = layout;
    const svg = scene(layout.size, "The journey of a hook");
    const way = (points, same) => s("path", { class: `tm-way${same ? " tm-same" : ""}`, d: pathOf(points), "aria-hidden": "true" });
    ways = Object.fromEntries(stations.map(({ name }) => [name, way(layout.ways[name], false)])); // colored when visited
    svg.append(rails = s("g", {}, ...Object.values(ways)));
    const base = ([x, y, width, height]) => [
      s("rect", { class: "tm-halo", x: x - 4, y: y - 4, width: width + 8, height: height + 8, rx: 13 }),
      s("rect", { class: "tm-frame", x, y, width, height, rx: 10 })];
    const line = (text, [x, y], size, kind) => words([text], [x, y], { size, anchor: "start", kind });
    const [x, y] = home;
    svg.append(s("g", { class: "tm-card tm-home tm-same", "aria-hidden": "true" }, ...base(home), line("notebook", [x + 10, y + 20], 1.1 * font, "tm-name"),
      line("hook ×10", [x + 10, y + 38], font, ""), line(`returns ${hooked},`, [x + 10, y + 55], font, "sc-soft"),
      line(`without it ${plain}`, layout === narrow ? [x + 110, y + 55] : [x + 10, y + 71], font, "sc-soft")));
    cards = Object.fromEntries(stations.map(({ name, code }) => {
      const [left, top, width, height] = layout.cards[name];
      const fate = line("", [left + 10, top + 0.65 * height], font, "");
      const numbers = line("", [left + 10, top + 0.87 * height], 0.92 * font, "sc-soft");
      const sign = s("g");
      const element = s("g", { class: "tm-card", role: "button", tabindex: -1, "data-station": name, ...ownKeys, onclick: () => pick(name) },
        ...base([left, top, width, height]), line(name, [left + 10, top + 22], 1.1 * font, "tm-name"), line(code, [left + 10, top + 0.43 * height], 0.88 * font, "tm-code"), fate, numbers, sign);
      return [name, { element, fate: fate.firstChild, line: fate, numbers: numbers.firstChild, sign, at: [left + width / 2, top + height / 2], peg: [left + width - 22, top + 20] }];
    }));
    dot = token(font);
    svg.append(...stations.map(({ name }) => cards[name].element), dot.element);
    if (legend) {
      lines.forEach(([text, same], at) => {
        const [lx, ly] = legend[at];
        svg.append(way([[lx, ly], [lx + 40, ly]], same), line(text, [lx + 52, ly + 5], font, "sc-soft"));
      });
    }
    svg.addEventListener("keydown", keys);
    holder.replaceChildren(svg);
  };
  const keys = (event) => {
    const name = event.target.closest?.(".tm-card")?.dataset.station;
    const isArrow = event.key.startsWith("Arrow");
    actOn(event, name && (isArrow || event.key === "Enter" || event.key === " ") && (() => {
      if (!isArrow) { buttons[0].element.focus(); return; }
      const next = toward(event.key, cards[name].at, Object.fromEntries(stations.map((each) => [each.name, cards[each.name].at])));
      if (!next) return;
      pick(next);
      cards[next].element.focus({ preventScroll: true });
    }));
  };

  const show = () => {
    const at = model.get("at");
    const { does, fate, why: reason, returns, after, calls: count, sees } = byName[at];
    const known = isVisited(at);
    for (const { name, same, fate: true_, returns: value, after: later, calls: number, does: words_, sees: what } of stations) {
      const card = cards[name];
      const guess = guessOf(name);
      const shown = isVisited(name);
      const good = guess === true_;
      card.fate.textContent = shown ? short[true_] + (guess ? (good ? " ✓" : ` · you: ${mine(guess, true_)}`) : "") : guess ? `your guess: ${short[guess]}` : "?";
      card.line.setAttribute("class", shown ? `tm-fate ${good ? "tm-good" : ""}` : "sc-soft");
      card.numbers.textContent = shown && what ? what : shown ? layout === narrow ? `${value} · ${calls(number)} · then ${later}` : `returns ${value} · ${calls(number)} · ${later} after remove()` : "";
      card.sign.replaceChildren(...(shown ? [icon(true_, card.peg)] : []));
      mark(card.element, "tm-at", name === at);
      mark(card.element, "tm-same", shown && same);
      mark(ways[name], "tm-same", shown && same);
      mark(ways[name], "tm-far", !shown);
      card.element.setAttribute("tabindex", name === at ? "0" : "-1");
      card.element.setAttribute("aria-pressed", String(name === at));
      const said = shown && what ? `${short[true_]}; ${what}` : shown ? `${short[true_]}: returns ${value}, ${calls(number)}, ${later} after handle.remove()` : "not visited yet";
      card.element.setAttribute("aria-label", `${name}. ${words_} ${said}. ${guess ? `Your guess: ${short[guess]}.` : what ? "The chapter asks." : "No guess yet."}`);
    }
    for (const { name, same } of stations) if (same && isVisited(name)) rails.append(ways[name]); // the blue line is on top
    for (const { name, element } of buttons) {
      element.setAttribute("aria-pressed", String(guessOf(at) === name));
      element.setAttribute("aria-disabled", String(known || Boolean(sees)));
      mark(element, "tm-true", known && name === fate);
    }
    ask.textContent = `${at}: ${does} ${sees ? "The chapter asks about this station." : "What becomes of the hook?"}`;
    why.textContent = known && sees ? reason : known ? `It returns ${returns}, the hook is ${calls(count)}, and after handle.remove() it returns ${after}. ${reason}` : "";
    run.setAttribute("aria-disabled", String(known || Boolean(flying) || !guessOf(at))); // guess first
    mark(run, "hs-lit", !known && Boolean(guessOf(at)));
    const guessed = Object.keys(model.get("guesses")).length;
    const visited = model.get("visited");
    const told = visited.filter((name) => guessOf(name));
    const right = told.filter((name) => guessOf(name) === byName[name].fate).length;
    score.textContent = visited.length ? `${visited.length} of ${stations.length} visited${told.length ? `, ${right} of ${told.length} guesses right` : ""}` : `${guessed} of ${asked.length} guessed`;
    say.textContent = visited.length === stations.length ? "The journey is complete." :
      asked.some(({ name }) => !isVisited(name) && !guessOf(name)) ? "Choose what becomes of the hook at each station, one click each." :
        flying ? `The hook travels to ${flying} …` : "All are guessed. The chapter travels there with you, station by station. Click a visited one to read why.";
  };

  const panel = h("div", { class: "tm-panel", role: "group", "aria-label": "The chosen station" }, ask,
    h("div", { class: "tm-fates", role: "group", "aria-label": "What becomes of the hook" }, ...buttons.map(({ element }) => element)), why,
    h("div", { class: "sc-player" }, run, over, score));
  const figure = h("div", { class: "sc-figure tm-figure" }, say, holder, panel);
  const root = stage(model, el, "The travel map", figure);
  root.classList.add("hs-alone"); // all outcomes are on the page
  fitWidth(model, figure, NARROW, (isNarrow) => {
    layout = isNarrow ? narrow : wide;
    build();
    show();
  });
  cleanups.get(model)?.push(halt);
  listen(model, root, "guesses visited at", () => { if (!flying) show(); });
}

export default widget(draw);
