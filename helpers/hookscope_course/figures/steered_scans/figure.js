// Scans in rows, each on the color of the digit that is read; a player makes the push stronger. All runs came with it.

const NARROW = 620; // pixels; a narrower page gets shorter rows
const [SIDE, GAP, BELOW, EDGE] = [58, 10, 24, 5];

function draw(model, el) {
  const { scans, strengths, pushes, reads, goal, layer, marked } = model.get("_data");
  const start = reads[pushes[0]][0];
  const step = () => model.get("step");
  const now = () => reads[model.get("push")][step()];
  const isMended = (digit, at) => marked.includes(at) && digit === goal;
  const kind = (digit, at) => (digit === start[at] ? "start" : isMended(digit, at) ? "mended" : digit === goal ? "goal" : "other");

  const say = h("p", { class: "sc-say", role: "status" });
  const holder = h("div");
  const choose = switches(model, "push", pushes.map((push) => [push, push]),
    { label: "Which push", text: "push", class: "sc-player", hidden: pushes.length < 2 });
  const key = (name, text) => h("span", { class: "st-key" }, h("i", { class: `st-${name}`, "aria-hidden": "true" }), text);
  const legend = h("p", { class: "st-legend" }, key("start", "same as without the push"), ...(marked.length ? [key("mended", "repaired")] : []), key("goal", `${marked.length ? "now also " : ""}read as ${goal}`), key("other", "read as another digit"));

  let tiles = [];
  const build = (columns) => {
    const rows = Math.ceil(scans.length / columns);
    const [wide, tall] = [SIDE + GAP, SIDE + BELOW + GAP];
    const svg = scene([wide * Math.min(columns, scans.length), tall * rows], `${scans.length} scans`);
    svg.setAttribute("role", "img");
    tiles = scans.map((href, at) => {
      const [x, y] = [wide * (at % columns) + GAP / 2, tall * Math.floor(at / columns) + GAP / 2];
      const paper = s("rect", { x, y, width: SIDE, height: SIDE + BELOW, rx: 7 });
      const text = words([""], [x + SIDE / 2, y + SIDE + BELOW - 6], { size: 17 });
      const scan = s("image", { href, x: x + EDGE, y: y + EDGE, width: SIDE - 2 * EDGE, height: SIDE - 2 * EDGE });
      const tile = s("g", { "data-scan": at }, paper, scan, text);
      svg.append(tile);
      return { tile, text: text.firstChild };
    });
    svg.classList.add("st-scans");
    holder.replaceChildren(svg);
  };

  const told = () => {
    const counts = new Map();
    now().forEach((digit) => counts.set(digit, (counts.get(digit) ?? 0) + 1));
    const sorted = [...counts].sort(([, one], [, two]) => two - one);
    const list = sorted.map(([digit, count]) => `${count} as ${digit}`).join(", ");
    const lost = now().filter((digit, at) => !marked.includes(at) && digit !== start[at]).length;
    const score = marked.length ? ` Repaired: ${now().filter(isMended).length} of ${marked.length}. Changed: ${lost} of the other ${scans.length - marked.length}.` : "";
    return (step() ? `${layer} + ${strengths[step()]} · (${model.get("push")}): the model reads ${list}.` : `Nothing is added to ${layer}: the model reads ${list}.`) + score;
  };
  const go = (index) => { put(model, { step: index }); show(); play.arrived(); };
  const play = player(model, {
    go, at: step, last: () => strengths.length - 1, dwell: () => 260, text: () => `strength ${strengths[step()]}`,
  });

  const show = () => {
    say.textContent = told();
    now().forEach((digit, at) => {
      const { tile, text } = tiles[at];
      text.textContent = `${isMended(digit, at) ? "✓ " : ""}${digit}`;
      tile.setAttribute("class", `st-tile st-${kind(digit, at)}${marked.includes(at) ? " st-marked" : ""}`);
    });
    holder.firstChild.setAttribute("aria-label", told());
    play.show();
  };

  const figure = h("div", { class: "sc-figure" }, say, holder, legend, play.element, choose);
  figure.addEventListener("keydown", play.keys);
  const root = stage(model, el, "Scans that are pushed", figure);
  root.classList.add("hs-alone"); // all runs are on the page
  fitWidth(model, figure, NARROW, (narrow) => { build(narrow ? 6 : 12); show(); });
  listen(model, root, "step push", show);
}

export default widget(draw);
