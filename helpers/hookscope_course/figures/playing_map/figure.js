// The map that plays: a value runs through a layer and its gradient comes back; hooks are pegs that can be moved.

const NAMES = { x: "x", compute: "forward", y: "y", y_grad: "grad of y", step: "backward", weight_grad: "weight.grad", x_grad: "x.grad" };
const FORWARD = new Set(["call", "forward_pre", "compute", "forward", "return"]);
const SHORT = 560; // pixels; a narrower page gets the narrow map

function draw(model, el) {
  const order = model.get("_order");
  const { sentences, names, given: arguments_, waits, calls, multipliers, tries: most, ordinals, facts: from, texts, replies } = model.get("_words");
  const shorten = (value) => texts[value] ?? String(value);
  const isHook = (name) => name in names;
  const asks = model.get("_guess");
  const fixed = model.get("_fixed");
  const both = order.includes("start");
  const wayOf = (name) => (FORWARD.has(name) || (name === "end" && !both) ? "forward" : "backward");

  // What the kernel knows, from the same recording.
  const hooks = () => model.get("hooks");
  const stations = () => order.filter((name) => !isHook(name) || name in hooks());
  const fires = () => order.filter((name) => name in hooks());
  const run = (number) => model.get("_runs")[number];
  const number = () => multipliers.reduce((sum, kind, bit) => sum + (hooks()[kind] === "multiply" ? 2 ** bit : 0), 0);
  const at = (name, which = number()) => run(which).slice(2 * order.indexOf(name), 2 * order.indexOf(name) + 2);
  const facts = (which = number()) => Object.fromEntries(Object.entries(from).map(([name, [station, half]]) => [name, at(station, which)[half]]));
  const fill = (text, values) => fillNames(text, Object.fromEntries(Object.entries(values).map(([name, value]) => [name, shorten(value)])));
  const say = (name) => {
    const [given, gave] = at(name);
    return fill(sentences[name][hooks()[name] === "multiply" ? 1 : 0], { ...facts(), given, gave });
  };

  // Guesses, until all hooks that are asked for are known. From then on, the map is free.
  const asked = () => order.filter((name) => name in model.get("_begin"));
  const known = () => {
    const guesses = model.get("guesses");
    let count = 0;
    for (const kind of asked()) {
      const tries = guesses[count] ?? [];
      if (!tries.includes(kind) && tries.length < most) break;
      count += 1;
    }
    return count;
  };
  const told = () => !asks || known() === asked().length;
  const limit = () => (told() ? stations().length - 1 : stations().indexOf(asked()[known()]) - 1);
  const now = () => Math.min(model.get("index"), stations().length - 1);
  let verdict = "";
  let reply = ""; // its kind: right, again, told
  const choose = (kind) => {
    const turn = known();
    const right = fires()[turn];
    const guesses = model.get("guesses").map((tries) => [...tries]);
    guesses[turn] = [...(guesses[turn] ?? []), kind];
    const reason = fires().indexOf(kind) < turn ? fillNames(replies.fired, { name: names[kind] }) : waits[kind];
    reply = kind === right ? "right" : guesses[turn].length < most ? "again" : "told";
    verdict = fillNames(replies[reply], { name: names[right], reason });
    const through = reply !== "again";
    put(model, { guesses });
    if (through) goal = told() ? stations().length - 1 : stations().indexOf(right);
    show();
    if (through) controls.play();
  };
  let goal = null; // where playing ends, after a guess
  const score = () => {
    const guesses = model.get("guesses");
    const count = (number) => asked().filter((kind, turn) => (guesses[turn] ?? []).indexOf(kind) === number).length;
    const later = ordinals.map((ordinal, number) => (number && count(number) ? `, ${count(number)} at the ${ordinal}` : ""));
    return `${count(0)} of ${asked().length} at the ${ordinals[0]} try${later.join("")}.`;
  };

  // Moving hooks.
  const moved = (next, focus, again = false) => {
    const ended = !again && now() === stations().length - 1;
    const sorted = Object.fromEntries(order.filter((name) => name in next).map((name) => [name, next[name]]));
    const many = order.filter((name) => !isHook(name) || name in sorted).length;
    controls.pause();
    verdict = "";
    goal = null;
    shown = null;
    put(model, { hooks: sorted, index: ended ? many - 1 : 0 });
    build();
    show();
    pegs[focus]?.element.focus({ preventScroll: true });
  };
  const shift = (kind, to) => {
    const { [kind]: effect, ...others } = hooks();
    moved({ ...others, [to]: to === "retain_grad" ? "look" : effect }, to);
  };
  const remove = (kind) => {
    const { [kind]: _, ...others } = hooks();
    moved(others, "tray");
  };
  const add = (to) => moved({ ...hooks(), [to]: "look" }, to);
  const press = (kind) => {
    if (asks && !told()) { choose(kind); return; }
    if (multipliers.includes(kind)) moved({ ...hooks(), [kind]: hooks()[kind] === "look" ? "multiply" : "look" }, kind);
  };

  // The scene. It is drawn anew when hooks are moved or the page gets another width; playing changes only parts of it.
  const sentence = h("p", { class: "sc-say", "aria-live": "polite" });
  const ask = h("p", { class: "sc-ask", role: "status", hidden: !asks });
  const holder = h("div", { class: fixed ? "sc-fixed" : "" });
  const list = h("ol", { class: "pm-list", "aria-label": "What fires, in order" });
  let layout;
  let svg;
  let boxes = {};
  let pegs = {};
  let slots = {};
  let main;
  let side;
  let items = [];
  let rails = [];
  let drawn; // the hooks that the scene has
  let shown = null; // the station at which the scene is, or null when it has to be set anew
  const free = () => Object.fromEntries(Object.entries(layout.slots).filter(([kind]) => !(kind in hooks())).map(([kind, { at: point }]) => [kind, point]));
  const near = (kind) => { for (const [name, element] of Object.entries(slots)) mark(element, "sc-near", name === kind); };
  const still = () => fixed || !told(); // hooks cannot be moved
  const inTray = ([x, y]) => {
    if (!layout.tray) return false;
    const [left, top, width, height] = layout.tray;
    return x >= left && x <= left + width && y >= top && y <= top + height;
  };

  /** Say what a hook is called with while it is pointed at or has the focus. */
  const introduce = (element, kind) => {
    const tell = () => { if (asks) touch.textContent = calls[kind]; };
    element.addEventListener("pointerenter", tell);
    element.addEventListener("focus", tell);
  };

  const build = () => {
    const { size, font, radius } = layout;
    drawn = JSON.stringify(hooks());
    main?.stop();
    side?.stop();
    svg = scene(size, "The map: a layer, and the hooks on it");
    svg.dataset.flights = holder.firstChild?.dataset.flights ?? "0";
    svg.append(frame(layout.frame, layout.doors, "layer: y = weight · x, weight = 2", layout.title, 1.05 * font));
    rails = layout.rails.map(({ way, points }) => {
      const [color, dotted] = [way === "forward" ? "forward" : "backward", way === "turn"];
      const whole = rail(points, color, dotted);
      const part = s("polyline", { class: "pm-part" });
      const line = s("polyline", { class: "pm-line", points: dotted ? "" : cornersOf(points), "aria-hidden": "true" });
      const holds = s("g", { class: `sc-rail sc-${color}${dotted ? " sc-dotted" : ""}`, "aria-hidden": "true" }, part);
      svg.append(line, whole, holds);
      return { way, whole, part };
    });
    boxes = {};
    for (const [name, place] of Object.entries(layout.boxes)) {
      const does = name === "compute" || name === "step";
      boxes[name] = box(place, NAMES[name], ["x", "compute", "y"].includes(name) ? "forward" : "backward", font, does);
      svg.append(boxes[name].element);
    }
    slots = {};
    for (const [kind, place] of Object.entries(layout.slots)) {
      slots[kind] = slot(place, radius, font);
      if (kind in hooks()) { // the words beside a hook are a part of it
        mark(slots[kind], "pm-named", true);
        slots[kind].addEventListener("click", () => { pegs[kind].element.focus({ preventScroll: true }); press(kind); });
        introduce(slots[kind], kind);
      }
      svg.append(slots[kind]);
    }
    pegs = {};
    for (const kind of fires()) {
      const { at: home } = layout.slots[kind];
      const hook = pegs[kind] = peg(radius, font);
      hook.element.dataset.kind = kind;
      move(hook.element, home);
      introduce(hook.element, kind);
      const drop = (to, point) => {
        if (still()) move(hook.element, home);
        else if (to) shift(kind, to);
        else if (inTray(point)) remove(kind);
        else move(hook.element, home);
      };
      draggable(hook.element, { svg, home: () => home, places: () => (still() ? {} : free()), near, drop, press: () => press(kind), reach: 4 * radius });
      hook.element.addEventListener("keydown", (event) => {
        if (still()) return;
        const isArrow = event.key.startsWith("Arrow");
        actOn(event, (isArrow || event.key === "Delete" || event.key === "Backspace") && (() => {
          const to = isArrow && toward(event.key, home, free());
          if (to) shift(kind, to);
          else if (!isArrow) remove(kind);
        }));
      });
      svg.append(hook.element);
    }
    if (layout.tray) {
      const [x, y, width, height] = layout.tray;
      const home = [x + 28, y + height / 2];
      const spare = peg(radius, font);
      spare.element.dataset.kind = "tray";
      const more = Object.keys(free()).length > 0;
      spare.set({ label: "New hook: drag it to a place, or press Enter to put it on the first free place" });
      move(spare.element, home);
      const first = () => Object.keys(free())[0];
      draggable(spare.element, {
        svg, home: () => home, places: free, near, press: () => add(first()), reach: 4 * radius,
        drop: (to) => (to ? add(to) : move(spare.element, home)),
      });
      const lines = more ? ["new hook: drag it out", "to remove one, drag it in"] : ["all places are taken", "to remove one, drag it in"];
      svg.append(s("rect", { class: "sc-tray pm-tray", x, y, width, height, rx: 10, "aria-hidden": "true" }),
        words(lines, [x + (more ? 48 : 14), y + height / 2 - 2], { size: 0.88 * font, anchor: "start", kind: "sc-soft pm-tray-words" }));
      if (more) { svg.append(spare.element); pegs.tray = spare; }
    }
    side = token(font);
    main = token(font);
    svg.append(side.element, main.element);
    items = fires().map((kind, place) => {
      const code = h("code");
      const item = h("li", { class: `sc-${wayOf(kind)}` }, h("b", {}, String(place + 1)), h("span", {}, names[kind]), code);
      return { kind, item, code };
    });
    holder.replaceChildren(svg);
  };

  // Where a station is, and the way to it.
  const onBranch = (name) => layout.branch.some(([each], place) => place > 0 && each === name);
  const pointOf = (name) => [...layout.track, ...layout.branch].find(([each]) => each === name).slice(1);
  const way = (from, to) => {
    const [line, a] = onBranch(to) ? [layout.branch, onBranch(from) ? from : "step"] : [layout.track, onBranch(from) ? "step" : from];
    const places = [a, to].map((name) => line.findIndex(([each]) => each === name));
    if (places.includes(-1)) return [];
    return line.slice(places[0], places[1] + 1).map(([, ...point]) => point);
  };

  /** Draw each arrow as far as the pass has gone: before that, it would tell which hook is next. */
  const lay = (passed) => {
    for (const { way: each, whole, part } of rails) {
      const line = each === "branch" ? layout.branch : layout.track;
      const ends = { forward: ["call", "return"], turn: ["return", "start"], backward: ["start", "end"], branch: ["step", "accumulate"] }[each];
      const [first, last] = ends.map((name) => line.findIndex(([station]) => station === name));
      const there = line.slice(first, last + 1);
      const far = there.reduce((far, [name], place) => (name && passed(name) ? place : far), -1);
      const whole_ = told() || far === there.length - 1;
      whole.style.display = whole_ ? "" : "none";
      part.setAttribute("points", whole_ ? "" : there.slice(0, far + 1).map(([, ...point]) => point.join()).join(" "));
    }
  };

  /** Write what is known at a station: all but the dot. */
  const settle = (index) => {
    const all = stations();
    const name = all[index];
    const place = order.indexOf(name);
    const passed = (station) => place >= order.indexOf(station);
    lay(passed);
    const hide = asks && !told() && index >= limit() + 1;
    const values = facts();
    const plain = facts(0);
    const put_ = (key, station, value, ordinary) => boxes[key]?.set(
      passed(station) && !hide ? shorten(value) : "?",
      { changed: passed(station) && value !== ordinary, now: name === station });
    put_("x", "call", values.x, plain.x);
    put_("y", "return", values.y, plain.y);
    boxes.compute.set(`2 · ${passed("compute") ? shorten(at("compute")[0]) : "x"}`, { now: name === "compute" });
    if (both) {
      put_("y_grad", "start", values.start, plain.start);
      boxes.step.set(passed("step") ? shorten(at("step")[0]) : "?", { now: name === "step" });
      const added = place >= order.indexOf("post_accumulate_grad") ? values.weight_grad : at("accumulate")[0];
      put_("weight_grad", "accumulate", added, plain.weight_grad);
      put_("x_grad", "end", values.x_grad, plain.x_grad);
    }
    const open = told() ? fires().length : known();
    fires().forEach((kind, turn) => {
      const does = hooks()[kind] === "multiply" ? "multiplies by ten" : kind === "retain_grad" ? "keeps y.grad" : "looks";
      const waiting = asks && !told();
      const acts = waiting ? `Enter chooses it. ${calls[kind]}` : fixed ? "Enter changes what it does" : "arrow keys move it, Enter changes what it does, Delete removes it";
      const order_ = turn < open ? String(turn + 1) : "";
      pegs[kind].set({
        text: hooks()[kind] === "multiply" ? "×10" : "", order: order_, fires: kind === name,
        label: `${names[kind]}, ${does}${order_ ? `, fires as number ${order_}` : ""}; ${acts}`,
      });
      const past = turn < open && passed(kind);
      const { item, code } = items[turn];
      code.textContent = past ? fill(arguments_[kind], { given: at(kind)[0] }) + (hooks()[kind] === "multiply" ? ` → ${shorten(at(kind)[1])}` : "") : "";
      mark(item, "pm-past", past);
      mark(item, "pm-now", kind === name);
    });
    const visible = items.slice(0, open).map(({ item }) => item);
    if (list.childElementCount !== visible.length || visible.some((item, turn) => list.children[turn] !== item)) list.replaceChildren(...visible);
    controls.say(sentence, say(name));
    mark(figure, "pm-waits", asks && !told());
    over.hidden = !asks || !told();
    if (!asks) touch.textContent = fixed ? "Click a hook to make it multiply by ten." : free_;
    if (asks) {
      const wait = `Which hook fires next? Click it. (${open + 1} of ${asked().length})`;
      ask.textContent = told() ? `${verdict ? `${reply === "right" ? "Right. " : ""}${score()} ` : ""}${free_}` :
        verdict && reply === "again" ? verdict : `${verdict} ${wait}`.trim();
    }
    controls.show();
  };

  const look = (name) => {
    const slotted = layout.slots[name];
    return {
      value: shorten(at(name)[1]), way: wayOf(name), left: name === "tensor_weight",
      below: slotted?.anchor === "middle" && slotted.text[1] < slotted.at[1],
      hidden: !isHook(name), // in a box, its value says it
    };
  };
  /** Put the dots where they belong. */
  const stand = (index) => {
    const name = stations()[index];
    side.hide();
    if (onBranch(name)) {
      main.stand(pointOf("step"), { ...look("step"), hidden: true });
      side.stand(pointOf(name), look(name));
    } else main.stand(pointOf(name), look(name));
  };

  /** Show the station of the model: by a flight, if it is the next one; else at once. */
  const show = () => {
    const index = now();
    main.stop();
    side.stop();
    const arrive = () => {
      svg.dataset.moves = "false";
      shown = index;
      stand(index);
      settle(index);
      if (goal !== null && index >= goal) { goal = null; controls.pause(); settle(index); }
      else controls.arrived();
    };
    if (shown === index) { settle(index); return; }
    if (shown !== null && index === shown + 1 && !calm()) {
      const [from, to] = [stations()[shown], stations()[index]];
      const points = way(from, to);
      if (points.length > 1) {
        svg.dataset.moves = "true";
        svg.dataset.flights = String(Number(svg.dataset.flights) + 1);
        const flyer = onBranch(to) ? side : main;
        const before = { ...look(to), value: shorten(onBranch(to) && from === "step" ? facts().to_weight : at(from)[1]), hidden: false, left: onBranch(to) };
        if (from === "step" && to === "full_backward") before.value = shorten(facts().to_input);
        shown = null;
        controls.show();
        flyer.fly(points, (260 + points.length * 60 + 120) / model.get("speed"), before, arrive);
        return;
      }
    }
    arrive();
  };

  const controls = player(model, {
    go: (index) => { if (index !== model.get("index")) put(model, { index }); },
    at: now, last: () => stations().length - 1, limit: () => goal ?? limit(),
    dwell: () => (isHook(stations()[now()]) ? 1500 : 800) / model.get("speed"),
    text: () => `${now() + 1} of ${stations().length}`,
  });
  const over = h("button", { type: "button", hidden: !asks, onclick: () => moved(model.get("_begin"), null, true) }, "Start over");
  controls.element.append(over);
  const touch = h("span", { class: asks ? "pm-calls" : "" }, asks ? "Point at a hook to see what it is called with." : "");
  const free_ = "Drag a hook to another place. Click a hook, and it multiplies by ten.";
  const keyboard = fixed ? "Keys: arrows step, Home and End jump. Space acts on a hook, elsewhere it plays." :
    "Keys: arrows move a hook, elsewhere they step. Space acts on a hook, elsewhere it plays.";
  const keys = h("p", { class: "sc-keys" }, ...(asks ? [] : [touch]), h("span", { class: "sc-keyboard" }, ` ${keyboard}`));
  const figure = h("div", { class: `sc-figure${fixed ? " pm-small" : ""}${asks ? " pm-asks" : ""}` }, sentence, ask, holder, ...(asks ? [touch] : []), controls.element, list, keys);
  const root = stage(model, el, "The map that plays", figure);
  root.classList.add("hs-alone"); // everything is on the page
  root.addEventListener("keydown", controls.keys);

  fitWidth(model, figure, SHORT, (narrow) => {
    layout = model.get("_layouts")[narrow ? "narrow" : "wide"];
    shown = null;
    build();
    show();
  });
  cleanups.get(model)?.push(() => { main.stop(); side.stop(); });
  listen(model, root, "hooks", () => {
    if (JSON.stringify(hooks()) === drawn) return;
    verdict = "";
    goal = shown = null;
    build();
    show();
  });
  listen(model, root, "index guesses _begin", show);
}

export default widget(draw);
