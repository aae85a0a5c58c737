// The residual river: one token flows through the model, each part adds to it, and pipes show the word at each depth.

const NARROW = 620; // pixels; a narrower page gets the river from the top down
const LEG = 900; // milliseconds from one depth to the next

function draw(model, el) {
  let known = model.get("text");
  const found = () => { // while the kernel reads another text, the one before is shown
    if (model.get("_texts")[model.get("text")]) known = model.get("text");
    return model.get("_texts")[known];
  };
  const stages = model.get("_stages");
  const taps = model.get("_taps");
  const last = stages.length - 1;
  const percent = (chance) => `${Math.round(100 * chance)} %`;
  const listed = (top) => top.map(([word, chance]) => `${word} ${percent(chance)}`).join(", ");
  const row = () => Math.min(model.get("token"), found().words.length - 1);

  const say = h("p", { class: "sc-say", role: "status" });
  const holder = h("div");
  const detail = h("div", { class: "rr-detail", role: "status" });
  const line = h("div", { class: "rr-line", role: "group", "aria-label": "Words of the text; choose one" });
  const heads = model.get("_heads");
  const arcs = s("svg", { class: "rr-arcs", "aria-hidden": "true" });
  const look = h("p", { class: "rr-look", role: "status" });
  const lines = h("div", { class: heads.length ? "rr-lines rr-arched" : "rr-lines" }, line, heads.length ? arcs : null);
  const examples = h("datalist", {});
  const { entry, parts: reader } = textBox((value) => ask(value));
  const texts = h("div", { class: "sc-player" }, ...reader, examples);
  examples.id = `${entry.id}-examples`;
  entry.setAttribute("list", examples.id);

  let layout;
  let svg;
  let parts = {};
  let drop;

  /** Another text. The page knows those that were recorded; the kernel reads the others. */
  const ask = (value) => {
    const text = value.trim().split(/\s+/).join(" ");
    if (!text) return;
    play.pause();
    drop.stop();
    const recorded = model.get("_texts")[text];
    put(model, recorded ? { text, token: recorded.words.length - 1, depth: last } : { text });
    if (recorded) { fill(); show(); }
  };
  const choose = (token) => {
    put(model, { token });
    show();
    line.children[token]?.focus({ preventScroll: true });
  };

  /** What can be clicked: one of them is reached by Tab, and the arrow keys go on from there. */
  const button = (element, name, at) => {
    const press = () => { put(model, { tap: name }); show(); };
    element.setAttribute("role", "button");
    element.dataset.tap = name;
    element.addEventListener("click", press);
    pressByKey(element, press);
    element.addEventListener("keydown", (event) => actOn(event, event.key.startsWith("Arrow") && (() => {
      const next = toward(event.key, at, Object.fromEntries(Object.entries(parts.at).filter(([other]) => other !== name)));
      if (!next) return;
      put(model, { tap: next });
      show();
      parts.buttons[next].focus({ preventScroll: true });
    })));
    parts.buttons[name] = element;
    parts.at[name] = at;
    return element;
  };
  const ofStage = (name) => (name === "tokens" || name === "positions" ? 0 : stages.indexOf(name));
  const stageOfTap = (name) => {
    if (name.startsWith("lens after ")) return stages.indexOf(name.slice(11));
    if (name.endsWith(".norm2")) return stages.indexOf(name.replace(".norm2", ".attn"));
    return stages.includes(name) ? stages.indexOf(name) : name.startsWith("blocks.") ? stages.indexOf(`${name}.mlp`) : 0;
  };

  const build = () => {
    drop?.stop();
    svg = scene(layout.size, "The residual stream, with taps");
    const { font, radius } = layout;
    parts = { buttons: {}, at: {}, water: [], rails: [], pluses: [], boxes: {}, pegs: {}, lenses: [], pipes: [] };
    drop = token(font);
    const path = (points, name) => s("path", { class: name, d: pathOf(points) });
    const frames = layout.frames.map(([x, y, width, height, title, at]) => s("g", { "aria-hidden": "true" },
      s("rect", { class: "sc-frame", x, y, width, height, rx: 14 }), words([title], at, { size: font, anchor: "start", kind: "sc-soft" })));
    parts.water = layout.water.map((points) => s("g", { class: "rr-water", "aria-hidden": "true" }, path(points, "rr-bank"), path(points, "rr-flow")));
    parts.flow = rail(layout.water[last].slice(-2), "forward"); // behind the last sum
    parts.rails = layout.rails.map((points) => rail(points, "forward"));
    parts.pluses = layout.pluses.map(([x, y]) => s("g", { class: "rr-plus", "aria-hidden": "true" }, s("circle", { cx: x, cy: y, r: 11 }),
      s("path", { d: `M${x - 6} ${y}h12M${x} ${y - 6}v12` })));
    for (const [name, where] of Object.entries(layout.boxes)) parts.boxes[name] = box(where, name.split(".").pop(), "forward", font, false);
    const says = box(layout.says, "it says", "forward", font, false);
    says.element.classList.add("rr-says");
    parts.says = says;
    const lenses = model.get("lens") ? layout.lenses.map(([x, y, width, height], stage) => {
      const one = box([x, y, width, height], "0 %", "forward", font);
      const element = s("g", { class: "rr-lens", ...ownKeys }, focusFrame([x, y, width, height], 4, 12, "rr-focus"), one.element);
      parts.lenses.push({ ...one, group: element });
      parts.pipes.push(rail(layout.pipes[stage], "forward", true));
      return button(element, `lens after ${stages[stage]}`, [x, y]);
    }) : [];
    const pegs = Object.entries(layout.taps).map(([name, at]) => {
      const one = peg(radius, font);
      move(one.element, at);
      parts.pegs[name] = one;
      return button(one.element, name, at);
    });
    svg.classList.add("sc-fixed");
    svg.append(...frames, ...parts.pipes, ...parts.water, parts.flow, ...parts.rails, ...parts.pluses,
      ...Object.values(parts.boxes).map(({ element }) => element), says.element, drop.element, ...lenses, ...pegs);
    holder.replaceChildren(svg);
  };

  /** Move the drop to a depth: it flows where it goes one further, and else is there at once. */
  const go = (depth) => {
    const from = model.get("depth");
    drop.stop();
    svg.dataset.moves = "false";
    put(model, { depth });
    if (depth !== from + 1) { show(); play.arrived(); return; }
    svg.dataset.moves = "true";
    show();
    drop.fly(layout.tracks[depth - 1], LEG, { value: "", way: "forward" }, () => { svg.dataset.moves = "false"; show(); play.arrived(); });
  };
  const play = player(model, {
    go, at: () => model.get("depth"), last: () => last, dwell: () => 700, text: () => stages[model.get("depth")],
  });

  const told = () => {
    const [now, at, depth] = [found(), row(), model.get("depth")];
    const begin = `Row ${at}, ${now.words[at]}: `;
    const norm = now.stream[depth][at];
    const said = depth ? `${begin}${stages[depth]} adds ${now.added[stages[depth]][at]}. The stream now has the norm ${norm}.`
      : `${begin}the stream begins as the sum of two embeddings. Its norm is ${norm}.`;
    const [word, chance] = now.top[depth][at][0];
    return model.get("lens") ? `${said} The lens reads: ${word}, ${percent(chance)}.` : said;
  };
  const normAt = (name) => (name in found().added ? found().added[name][row()] : found().stream[stageOfTap(name)][row()]);

  const show = () => {
    const [now, at, depth, tap] = [found(), row(), model.get("depth"), model.get("tap")];
    const moves = svg.dataset.moves === "true";
    const reached = moves ? depth - 1 : depth;
    const most = Math.max(...now.stream.map((each) => each[at]));
    say.textContent = told();
    parts.water.forEach((element, stage) => {
      element.style.setProperty("--rr-wide", `${4 + (18 * now.stream[stage][at]) / most}`);
      mark(element, "rr-later", stage > reached);
    });
    // Two arrows lead to each sum: from the part, and, in a block, to it.
    parts.rails.forEach((element, number) => mark(element, "rr-later", number > 1 && Math.floor(number / 2) > depth));
    parts.pluses.forEach((element, stage) => mark(element, "rr-later", stage > depth));
    mark(parts.flow, "rr-later", reached < last);
    for (const [name, { element, set }] of Object.entries(parts.boxes)) {
      set(`+ ${now.added[name][at]}`, { now: ofStage(name) === depth });
      mark(element, "rr-later", ofStage(name) > depth);
    }
    const end = now.top[last][at][0][0];
    parts.lenses.forEach(({ element, group, set }, stage) => {
      const [word, chance] = now.top[stage][at][0];
      set(word);
      element.querySelector(".sc-soft").textContent = percent(chance);
      mark(group, "rr-found", word === end);
      mark(group, "rr-later", stage > reached);
      mark(parts.pipes[stage], "rr-later", stage > reached);
      group.setAttribute("aria-label", `The lens after ${stages[stage]} reads ${word}, ${percent(chance)}`);
    });
    parts.says.set(model.get("lens") ? end : "?");
    mark(parts.says.element, "rr-later", reached < last);
    for (const [name, { element, set }] of Object.entries(parts.pegs)) {
      set({ label: `Tap ${name}: the ${taps[name].gets}`, fires: name === tap });
      mark(element, "rr-sum", taps[name].gets === "sum");
    }
    const entrance = parts.buttons[tap] ? tap : Object.keys(layout.taps)[0];
    for (const [name, element] of Object.entries(parts.buttons)) {
      element.setAttribute("tabindex", name === entrance ? "0" : "-1");
      element.setAttribute("aria-pressed", String(name === tap));
      mark(element, "rr-chosen", name === tap);
    }
    if (!moves) drop.stand(layout.stops[depth], { value: "", way: "forward" });
    if (taps[tap]) {
      const { said, code, gets } = taps[tap];
      const values = { row: at, norm: normAt(tap), own: now.own[tap]?.[at] ?? "", top: listed(now.top[stageOfTap(tap)][at]) };
      detail.replaceChildren(h("p", {}, h("b", { class: `rr-${gets}` }, `${gets}: `), ...worded(fillNames(said, values))),
        codeBlock("Three lines of torch", fillNames(code, values)));
    } else detail.replaceChildren(h("p", { class: "rr-empty" }, model.get("lens") ? "Click a tap or a word: what does a hook get there?" : "Click a tap: what does a hook get there?"));
    play.show();
  };

  /** Arcs from the chosen word to those that the chosen head looks at. The weights are recorded, up to each row. */
  const arch = () => {
    if (!heads.length) return;
    const [head, at, all] = [model.get("head"), row(), found().words];
    const weights = head ? found().looks[head][at] : [];
    const spots = [...line.children].map((each) => [each.offsetLeft + each.offsetWidth / 2, each.offsetTop - 3]);
    arcs.setAttribute("viewBox", `0 0 ${lines.offsetWidth || 1} ${lines.offsetHeight || 1}`);
    arcs.replaceChildren(...weights.flatMap((weight, other) => {
      if (weight < 0.01 || !spots[at] || !spots[other]) return [];
      let [[x, y], [a, b]] = [spots[at], spots[other]];
      const up = Math.min(76, 24 + 0.26 * Math.abs(x - a));
      if (at === other) [x, a] = [x - 12, a + 12];
      return [s("path", { d: `M${x} ${y}C${x} ${y - up} ${a} ${b - up} ${a} ${b}`, style: `stroke-width: ${1 + 9 * weight}px; opacity: ${0.35 + 0.65 * weight}` })];
    }));
    [...line.children].forEach((each, other) => {
      each.querySelector(".rr-share").textContent = head ? (other < weights.length ? percent(weights[other]) : "–") : "";
    });
    const taken = weights.flatMap((weight, other) => (weight < 0.05 ? [] : [`${percent(weight)} from row ${other}, ${all[other]}`]));
    look.textContent = head ? `${head}: row ${at}, ${all[at]}, takes ${taken.join("; ")}.` : "Choose a head: from which rows does it take something?";
  };

  const fill = () => {
    if (document.activeElement !== entry) entry.value = model.get("text");
    examples.replaceChildren(...Object.keys(model.get("_texts")).map((value) => h("option", { value })));
    const chosen = row();
    line.replaceChildren(...found().words.map((word, at) => h("button", {
      type: "button", class: "rr-word", "aria-pressed": String(at === chosen), tabindex: at === chosen ? "0" : "-1",
      onclick: () => choose(at), onkeydown: (event) => {
        const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: found().words.length - 1 }[event.key];
        actOn(event, next !== undefined && (() => { if (next >= 0 && next < found().words.length) choose(next); }));
      }, ...ownKeys,
    }, h("span", { class: "rr-place", "aria-hidden": "true" }, String(at)), word, heads.length ? h("span", { class: "rr-share", "aria-hidden": "true" }) : null)));
    arch();
  };
  const mend = () => {
    [...line.children].forEach((element, at) => {
      element.setAttribute("aria-pressed", String(at === row()));
      element.tabIndex = at === row() ? 0 : -1;
    });
    arch();
  };

  const pick = heads.length ? choice(model, "head", [["", "none"], ...heads.map((name) => [name, name])]) : null;
  pick?.addEventListener("keydown", (event) => event.stopPropagation()); // arrows choose a head and do not move the drop
  if (pick) texts.append(field("Arcs", pick));
  const figure = h("div", { class: "sc-figure rr-figure" }, texts, lines, pick ? look : null, say, holder, play.element, detail);
  figure.addEventListener("keydown", play.keys);
  const root = stage(model, el, "The residual river", figure);
  root.classList.add("hs-alone"); // what was recorded is on the page
  fill();
  fitWidth(model, figure, NARROW, (narrow) => {
    layout = model.get("_layouts")[narrow ? "narrow" : "wide"];
    build();
    show();
  });
  cleanups.get(model)?.push(() => drop.stop());
  const sizes = new ResizeObserver(arch); // the words wrap where there is no room
  sizes.observe(lines);
  cleanups.get(model)?.push(() => sizes.disconnect());
  listen(model, root, "head", arch);
  listen(model, root, "text _texts", () => { fill(); show(); });
  listen(model, root, "token depth tap", () => { mend(); if (svg.dataset.moves !== "true") show(); });
  listen(model, root, "lens", () => { build(); show(); });
}

export default widget(draw);
