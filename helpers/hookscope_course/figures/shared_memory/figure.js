// Names on the left, memories on the right: a line of `forward` runs, and its value travels to each name's memory.

const LEG = 500; // milliseconds from a name to its memory

function draw(model, el) {
  const passes = model.get("_passes");
  const { size, rows, name: [left, width], memory: right, box: [wide, tall] } = model.get("_layout");
  const font = 14;
  const states = () => passes[model.get("keeps")];
  const at = () => model.get("step");
  const go = (step) => { if (step !== at()) put(model, { step }); };
  const height = (names) => names.reduce((sum, name) => sum + rows[name], 0) / names.length;

  const say = h("p", { class: "sc-say", role: "status" });
  const lines = h("div", { class: "sh-lines", "aria-hidden": "true" }, ...states().slice(1).map(({ line }) => h("code", {}, line)));
  const svg = scene(size, "Names and their memories");
  const head = [words(["name"], [left + width / 2 - 8, 16], { size: font, anchor: "end", kind: "sc-soft" }), words(["memory"], [right, 16], { size: font, kind: "sc-soft" })];
  const value = token(font);
  const keeps = choice(model, "keeps", Object.keys(passes).map((each) => [each, each]));
  let shown = null;

  /** Draw one state: the names that exist, the memories, and a line from each name to its memory. */
  const build = ({ names, memories }) => {
    const boxes = Object.values(memories).map(({ values, changed, names: all }) => {
      const y = height(all);
      return s("g", { class: `sh-memory${changed ? " sh-changed" : ""}`, "aria-hidden": "true" },
        s("rect", { x: right - wide / 2, y: y - tall / 2, width: wide, height: tall, rx: 8 }),
        s("text", { x: right, y: y + 5, "font-size": font, "text-anchor": "middle" }, values));
    });
    const paths = Object.entries(names).map(([name, letter]) =>
      rail([[left + width / 2, rows[name]], [right - wide / 2, height(memories[letter].names)]], "forward"));
    const labels = Object.keys(names).map((name) => words([name], [left + width / 2 - 8, rows[name] + 5], { size: font, anchor: "end" }));
    svg.replaceChildren(...head, ...paths, ...boxes, ...labels, value.element);
  };

  const show = () => {
    const state = states()[at()];
    const key = `${model.get("keeps")} ${at()}`;
    controls.say(say, state.said);
    [...lines.children].forEach((line, step) => mark(line, "sh-now", step === at() - 1));
    controls.show();
    if (key === shown) return;
    const next = shown === `${model.get("keeps")} ${at() - 1}`;
    shown = key;
    value.hide();
    build(state);
    const name = state.line.split(" ")[0];
    const memory = state.memories[state.names[name]];
    if (!next || !memory) { controls.arrived(); return; }
    const path = [[left + width / 2, rows[name]], [right - wide / 2, height(memory.names)]];
    value.fly(path, LEG, { value: memory.values, way: "forward" }, () => {
      value.hide();
      controls.arrived();
    });
  };

  const controls = player(model, { go, at, last: () => states().length - 1, dwell: () => 1600, text: () => `${at()} of ${states().length - 1}` });
  const figure = h("div", { class: "sc-figure sh-figure" }, h("div", { class: "hs-row" }, field("Each hook keeps", keeps)), lines, say, svg, controls.element);
  const root = stage(model, el, "Names and memory", figure);
  root.classList.add("hs-alone"); // everything is on the page
  root.addEventListener("keydown", controls.keys);
  listen(model, root, "step keeps", show);
  show();
}

export default widget(draw);
