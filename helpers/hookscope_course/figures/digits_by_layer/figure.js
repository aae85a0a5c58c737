const NAMES = ["zeros", "ones", "twos", "threes", "fours", "fives", "sixes", "sevens", "eights", "nines"];
const R = 100; // the radius of the circle of centers
const [WIDE, HIGH, LEFT, RIGHT, TOP, LOW] = [450, 236, 30, 386, 12, 178]; // the chart, and where its lines run
const unpack = (text) => new Int16Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);

function draw(model, el) {
  const { names, networks, labels, right, images, places, reads } = model.get("_data");
  const total = labels.length;
  const at = Object.fromEntries(networks.map((name) => [name, places[name].map(unpack)]));
  const mark = (digit) => tell(model, { digit, ...(labels[model.get("picked")] === String(digit) ? {} : { picked: -1 }) });
  const pick = (picked) => tell(model, picked < 0 ? { picked } : { picked, digit: Number(labels[picked]) });

  // The circle: ten centers, and the digits between them.
  const dots = [...labels].map((label) => s("text", { class: "dl-digit" }, label));
  const ring = s("circle", { class: "dl-ring", r: 9 });
  const anchors = NAMES.map((name, digit) => {
    const angle = (2 * Math.PI * digit) / 10;
    const [x, y] = [114 * Math.sin(angle), -114 * Math.cos(angle)];
    return s("text", { class: "dl-anchor", x, y, onclick: (event) => { event.stopPropagation(); mark(digit); } }, String(digit));
  });
  const points = s("g", {}, ...dots);
  const scatter = s("svg", {
    viewBox: "-126 -126 252 252", class: "dl-scatter", role: "img",
    onclick: (event) => {
      const [across, down] = pointerAt(scatter, event);
      const now = at[model.get("network")][model.get("depth")];
      const far = (n) => Math.hypot(now[2 * n] / 10 - across, now[2 * n + 1] / 10 - down);
      const nearest = [...labels].reduce((best, _, n) => (far(n) < far(best) ? n : best), 0);
      if (far(nearest) < 8) pick(nearest);
    },
  }, s("circle", { class: "dl-circle", r: R }), ...anchors, points, ring);
  const digits = h("div", { class: "hs-row dl-digits", role: "group", "aria-label": "Mark a digit" }, "Mark",
    ...NAMES.map((name, digit) => h("button", { type: "button", "aria-label": name, onclick: () => mark(digit) }, String(digit))));

  // The chart over depth.
  const x = (depth) => LEFT + 20 + (depth * (RIGHT - LEFT - 40)) / (names.length - 1);
  const y = (many) => LOW - ((LOW - TOP) * many) / total;
  const column = s("rect", { class: "dl-column", y: TOP - 6, width: 26, height: HIGH - TOP + 4, x: 0, rx: 4 });
  const kinds = ["dl-first", "dl-second"];
  const lines = networks.map((name, n) => s("g", { class: kinds[n] ?? "dl-second" },
    s("polyline", { points: right[name].map((many, depth) => `${x(depth)},${y(many)}`).join(" ") }),
    ...right[name].map((many, depth) => n
      ? s("rect", { x: x(depth) - 3.5, y: y(many) - 3.5, width: 7, height: 7 })
      : s("circle", { cx: x(depth), cy: y(many), r: 4 }))));
  const pixels = right[networks[0]][0];
  const level = (many, text, kind) => [
    s("line", { class: kind, x1: LEFT, x2: RIGHT, y1: y(many), y2: y(many) }),
    s("text", { class: "dl-word", x: RIGHT + 5, y: y(many) + 4 }, text)];
  const ticks = [0, total / 2, total].map((many) => s("text", { class: "dl-tick", x: LEFT - 4, y: y(many) + 4, "text-anchor": "end" }, String(many)));
  const heads = [...new Set(names.map((name) => name.split(".").slice(0, -1).join(".")))].filter(Boolean);
  const below = names.map((name, depth) => s("text", { class: "dl-tick", x: x(depth), y: LOW + 14, "text-anchor": "middle" }, name.split(".").at(-1)));
  const groups = heads.map((head) => {
    const mine = names.flatMap((name, depth) => (name.startsWith(`${head}.`) ? [depth] : []));
    const [from, to] = [x(mine[0]) - 14, x(mine.at(-1)) + 14];
    return s("g", {}, s("line", { class: "dl-group", x1: from, x2: to, y1: LOW + 19, y2: LOW + 19 }),
      s("text", { class: "dl-tick", x: (from + to) / 2, y: LOW + 31, "text-anchor": "middle" }, head));
  });
  const letters = names.map((_, depth) => s("text", { class: "dl-letter", x: x(depth), y: HIGH - 6, "text-anchor": "middle" }));
  const chart = s("svg", {
    viewBox: `0 0 ${WIDE} ${HIGH}`, class: "dl-chart", role: "img",
    "aria-label": `How many of ${total} digits are right: ` +
      networks.map((name) => `${name}: ${names.map((layer, depth) => `${layer} ${right[name][depth]}`).join(", ")}`).join("; "),
    onclick: (event) => {
      const [across, down] = pointerAt(chart, event);
      const depth = Math.round(((across - LEFT - 20) * (names.length - 1)) / (RIGHT - LEFT - 40));
      if (depth < 0 || depth >= names.length) return;
      const near = networks.map((name) => [Math.abs(down - y(right[name][depth])), name]).sort((a, b) => a[0] - b[0])[0];
      tell(model, { depth, ...(near[0] < 9 ? { network: near[1] } : {}) });
    },
  }, column, ...ticks, s("line", { class: "dl-axis", x1: LEFT, x2: RIGHT, y1: y(0), y2: y(0) }),
  ...level(pixels, `pixels ${pixels}`, "dl-pixels"), ...lines, ...below, ...groups, ...letters);
  const { control, value } = slider(model, "depth", { min: 0, max: names.length - 1, text: (depth) => names[depth] });
  const buttons = networks.map((name, n) => h("button", { type: "button", onclick: () => tell(model, { network: name }) },
    h("span", { class: `dl-key ${kinds[n] ?? "dl-second"}`, "aria-hidden": "true" }), name));

  // One digit, and what it is nearest to after each layer.
  const image = h("div", { class: "dl-image", role: "img" });
  image.style.backgroundImage = `url("${images}")`;
  image.style.backgroundSize = `100% ${100 * total}%`;
  const words = h("p", { class: "dl-words" });
  const next = h("button", { type: "button", onclick: () => {
    const digit = String(model.get("digit"));
    const mine = [...labels].flatMap((label, n) => (label === digit ? [n] : []));
    pick(mine.find((n) => n > model.get("picked")) ?? mine[0]);
  } });
  const said = h("p", { class: "dl-sentence", role: "status" });

  let marked; // the marked digits lie on top
  function show() {
    const [depth, network, digit, picked] = ["depth", "network", "digit", "picked"].map((name) => model.get(name));
    const [now, read] = [at[network][depth], reads[network][depth]];
    if (digit !== marked) points.append(...dots.filter((_, n) => labels[n] === String(digit)));
    marked = digit;
    dots.forEach((dot, n) => {
      const own = labels[n] === String(digit);
      dot.style.transform = `translate(${now[2 * n] / 10}px, ${now[2 * n + 1] / 10}px)`;
      dot.setAttribute("class", `dl-digit${own ? (read[n] === labels[n] ? " dl-right" : " dl-wrong") : ""}`);
    });
    ring.style.transform = picked < 0 ? "" : `translate(${now[2 * picked] / 10}px, ${now[2 * picked + 1] / 10}px)`;
    ring.style.display = picked < 0 ? "none" : "";
    anchors.forEach((anchor, n) => anchor.classList.toggle("dl-marked", n === digit));
    markPressed(digits.children, (button, n) => n === digit);
    markPressed(buttons, (button, n) => networks[n] === network);
    column.setAttribute("x", x(depth) - 13);
    lines.forEach((line, n) => line.classList.toggle("dl-chosen", networks[n] === network));
    letters.forEach((letter, n) => {
      letter.textContent = picked < 0 ? "" : reads[network][n][picked];
      letter.classList.toggle("dl-hit", picked >= 0 && reads[network][n][picked] === labels[picked]);
    });
    const many = [...labels].filter((label) => label === String(digit)).length;
    const own = [...labels].filter((label, n) => label === String(digit) && read[n] === label).length;
    const where = depth ? `After ${names[depth]}` : "In the pixels, before any layer";
    said.textContent = `${where}${depth && networks.length > 1 ? ` of the ${network} network` : ""}, ${right[network][depth]} of ${total} ` +
      `digits are nearest to the center of their class. Of the ${many} ${NAMES[digit]}, ${own} ${own === 1 ? "is" : "are"}.`;
    scatter.setAttribute("aria-label", `${total} digits between ten centers on a circle. ${said.textContent}`);
    image.hidden = picked < 0;
    image.style.backgroundPosition = `0 ${(100 * Math.max(picked, 0)) / (total - 1)}%`;
    image.setAttribute("aria-label", picked < 0 ? "" : `The ${labels[picked]} that is picked`);
    words.textContent = picked < 0
      ? "Click a digit in the circle, or press the button, to follow one."
      : `This ${labels[picked]} is nearest to the center of the ${read[picked]}s here. Below the chart: its nearest center after each layer.`;
    next.textContent = `${picked < 0 ? (digit === 8 ? "Follow an" : "Follow a") : "Next"} ${digit}`;
  }
  show();
  listen(model, scatter, "depth network digit picked", show);
  const root = stage(model, el, "Where a digit becomes its class", said,
    h("div", { class: "dl-columns" },
      h("div", {}, scatter, digits),
      h("div", { class: "dl-side" },
        h("div", { class: "hs-row" }, h("span", {}, `Right, of ${total}:`), ...buttons),
        chart, h("div", { class: "dl-slide" }, field("Layer", control), value),
        h("div", { class: "dl-one" }, image, h("div", {}, words, next)))));
  root.classList.add("hs-alone"); // it works without a kernel
}

export default widget(draw);
