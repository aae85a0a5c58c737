// Two runs and one arrow: click a box, and its value goes from the clean run into the corrupted one. All numbers came
// with the widget.

const NARROW = 620; // pixels; a narrower page gets one run below the other
const FLIGHT = 700; // milliseconds
const MEASURES = { probability: "probability", logits: "logit difference" };

/** Where things are: side by side, or one run below the other. */
function place(rows, columns, narrow) {
  const [wide, tall, side, head, font] = narrow ? [20, 26, 84, 92, 12] : [25, 26, 88, 94, 12.5];
  const [run, below] = [wide * columns, head + tall * rows];
  const origins = narrow ? [[side, 0], [side, below + 12]] : [[side, 0], [side + run + 34, 0]];
  const [, [x, y]] = origins;
  return { wide, tall, side, head, font, run, origins, size: [x + run + 4, y + below + 6] };
}

function draw(model, el) {
  const { layers, words: texts, differ, answers, runs } = model.get("_fixed");
  const cells = model.get("_cells");
  const columns = cells[0].length;
  const all = cells.flatMap((row, at) => row.map((cell, column) => [at, column]));
  const cellOf = ([row, column]) => cells[row][column];
  const same = (one, other) => one[0] === other[0] && one[1] === other[1];
  const isTried = (cell) => model.get("tried").some((each) => same(each, cell));
  const reds = all.filter((cell) => cellOf(cell).red);
  const found = () => model.get("tried").filter((cell) => cellOf(cell).red).length;

  const say = h("p", { class: "sc-say", role: "status" });
  const holder = h("div");
  const bar = (word, kind) => {
    const fill = h("div", { class: `tr-fill tr-${kind}` });
    const number = h("output", { class: "hs-value", "aria-live": "off" });
    const marks = runs.map((run, at) => h("i", { class: "tr-mark", title: `${at ? "corrupted" : "clean"} run` }));
    const element = h("div", { class: "tr-bar" }, h("span", { class: "tr-word" }, word),
      h("div", { class: "tr-track" }, fill, ...(kind === "gap" ? marks : [])), number);
    return { element, fill, number, marks };
  };
  const bars = answers.map((word, at) => bar(word, at ? "other" : "answer"));
  const reach = Math.max(...all.map((cell) => Math.abs(cellOf(cell).logits)), ...runs.map(({ logits }) => Math.abs(logits)));
  const share = (logits) => 50 + (48 * logits) / reach; // percent of the track; its middle is 0
  const gap = bar(`${answers[0]} − ${answers[1]}`, "gap");
  gap.marks.forEach((mark_, at) => { mark_.style.left = `${share(runs[at].logits)}%`; mark_.dataset.run = at ? "corrupted" : "clean"; });
  const panel = h("div", { class: "tr-bars", role: "group", "aria-label": "The answer of the corrupted run" },
    h("p", { class: "tr-head" }), ...bars.map(({ element }) => element), gap.element);

  const score = h("span", { class: "tr-score", role: "status" });
  const reveal = h("button", { type: "button", onclick: () => { put(model, { shown: !model.get("shown") }); halt(); show(); } });
  const over = h("button", { type: "button", onclick: () => startOver() }, "Start over");
  const measures = field("Color shows", choice(model, "measure", Object.entries(MEASURES)));
  const numbers = h("tbody");
  const table = h("details", { class: "tr-numbers" }, h("summary", {}, "Numbers"), h("div", { class: "tr-scroll", tabindex: "0", role: "group", "aria-label": "Numbers" },
    h("table", {}, h("thead", {}, h("tr", {}, ...["", ...answers, "logit difference"].map((each) => h("th", { scope: "col" }, each)))), numbers)));

  let layout;
  let svg;
  let boxes = []; // for each run, for each row, for each position
  let arrow;
  let dot;
  let here = [0, 0]; // where the keyboard is
  let flying = false;

  const middle = (run, [row, column]) => {
    const [x, y] = layout.origins[run];
    return [x + (column + 0.5) * layout.wide, y + layout.head + (row + 0.5) * layout.tall];
  };
  /** The points of the arrow, an arc from one run into the other. */
  const arc = (cell) => {
    const [[x0, y0], [x1, y1]] = [middle(0, cell), middle(1, cell)];
    const flat = y0 === y1;
    const [u, v] = flat ? [(x0 + x1) / 2, y0 - 62] : [x0 + (cell[1] < columns / 2 ? 46 : -46), (y0 + y1) / 2];
    const points = Array.from({ length: 25 }, (_, step) => {
      const t = step / 24;
      return [x0, y0].map((_, axis) => (1 - t) ** 2 * [x0, y0][axis] + 2 * t * (1 - t) * [u, v][axis] + t ** 2 * [x1, y1][axis]);
    });
    return points.slice(0, -2);
  };
  const name = (cell) => {
    const { name: where, said } = cellOf(cell);
    return isTried(cell) || model.get("shown") ? said : `${where}, not patched yet`;
  };

  const build = () => {
    halt();
    const { font, wide, tall, head, origins, run } = layout;
    svg = scene(layout.size, "Two runs of the model");
    const labels = [];
    boxes = origins.map(([x, y], at) => {
      const says = `${at ? "corrupted" : "clean"} run: ${answers[at]}, ${runs[at].p[at]}`;
      labels.push(words([says], [x + run / 2, y + 15], { size: 1.1 * font, kind: "tr-title" }));
      texts[at].forEach((word, column) => {
        const text = words([`${column} ${word}`], [0, 0], { size: font, anchor: "start", kind: differ.includes(column) ? "tr-differs" : "sc-soft" });
        text.setAttribute("transform", `translate(${x + (column + 0.5) * wide + 0.35 * font} ${y + head - 6}) rotate(-90)`);
        labels.push(text);
      });
      layers.forEach((layer, row) => { // beside the second run only where it stands below
        if (!at || x === layout.side) labels.push(words([layer], [x - 6, y + head + (row + 0.5) * tall + 0.35 * font], { size: font, anchor: "end" }));
      });
      return cells.map((row, line) => row.map((_, column) => {
        const cell = [line, column];
        const [left, top] = [x + column * wide + 1.5, y + head + line * tall + 1.5];
        const [w, h_] = [wide - 3, tall - 3];
        const element = s("g", { class: "tr-cell", "data-cell": `${layers[line]} ${column}`, onclick: () => patch(cell),
          ...(at ? { role: "button", tabindex: -1, ...ownKeys } : { "aria-hidden": "true" }) },
        s("rect", { class: "tr-halo", x: left - 3, y: top - 3, width: w + 6, height: h_ + 6, rx: 6 }),
        s("rect", { class: "tr-box", x: left, y: top, width: w, height: h_, rx: 4 }),
        s("circle", { class: "tr-sign", cx: left + w / 2, cy: top + h_ / 2, r: 0 }));
        return element;
      }));
    });
    arrow = s("g", { class: "tr-arrow", "aria-hidden": "true" }, s("path", { class: "tr-edge" }), s("path"), s("polygon"));
    dot = token(font);
    svg.append(...labels, ...boxes.flat(2), arrow, dot.element);
    svg.addEventListener("keydown", keys);
    holder.replaceChildren(svg);
  };

  const keys = (event) => {
    if (!event.target.closest(".tr-cell")) return;
    const [row, column] = here;
    const steps = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], Home: [row, 0], End: [row, columns - 1] };
    const press = event.key === "Enter" || event.key === " ";
    actOn(event, press ? () => patch(here) : steps[event.key] && (() => {
      const [line, place_] = steps[event.key];
      here = [Math.min(Math.max(line, 0), layers.length - 1), Math.min(Math.max(place_, 0), columns - 1)];
      show();
      boxes[1][here[0]][here[1]].focus({ preventScroll: true });
    }));
  };
  const patch = (cell) => {
    halt();
    here = cell;
    const counts = !model.get("shown") && !isTried(cell);
    put(model, { at: cell, tried: counts ? [...model.get("tried"), cell] : model.get("tried") });
    flying = true;
    show();
    dot.fly(arc(cell), FLIGHT, { value: "", way: "forward" }, () => { halt(); show(); });
  };
  const startOver = () => {
    halt();
    put(model, { at: [], tried: [], shown: false, measure: "probability" });
    here = [0, 0];
    show();
  };
  const halt = () => {
    flying = false;
    dot?.hide();
  };

  const color = (value) => `color-mix(in srgb, var(${value < 0 ? "--tr-blue" : "--tr-red"}) ${Math.round(100 * Math.min(Math.abs(value), 1))}%, var(--hs-page))`;
  const show = () => {
    const [at, tried, shown] = [model.get("at"), model.get("tried"), model.get("shown")];
    const which = Object.keys(MEASURES).indexOf(model.get("measure"));
    const told = at.length && !flying;
    boxes.forEach((run, side) => run.forEach((row, line) => row.forEach((element, column) => {
      const cell = [line, column];
      const now = at.length && same(cell, at);
      const known = side && (shown || isTried(cell)) && !(now && flying);
      const { red, shares } = cellOf(cell);
      const [, box_, sign] = element.children;
      box_.style.fill = known ? color(shares[which]) : "";
      sign.setAttribute("r", known && isTried(cell) ? (red ? 5 : 2) : 0);
      mark(element, "tr-red", known && red);
      mark(element, "tr-from", now && !side);
      mark(element, "tr-to", now && side && !flying);
      if (!side) return;
      element.setAttribute("aria-label", name(cell));
      element.setAttribute("tabindex", same(cell, here) ? "0" : "-1");
    })));
    mark(arrow, "tr-gone", !told);
    if (told) {
      const points = arc(at);
      const path = points.map((point) => point.map((each) => each.toFixed(1)).join(" ")).join("L");
      const [[x0, y0], [x1, y1]] = points.slice(-2);
      const long = Math.hypot(x1 - x0, y1 - y0) || 1;
      const [u, v] = [(x1 - x0) / long, (y1 - y0) / long];
      arrow.children[0].setAttribute("d", `M${path}`);
      arrow.children[1].setAttribute("d", `M${path}`);
      const tip = [x1 + 8 * u, y1 + 8 * v];
      arrow.children[2].setAttribute("points", [tip, [x1 - 5 * u - 6 * v, y1 - 5 * v + 6 * u], [x1 - 5 * u + 6 * v, y1 - 5 * v - 6 * u]].map((point) => point.map((each) => each.toFixed(1)).join()).join(" "));
    }
    const now = told ? cellOf(at) : runs[1];
    bars.forEach(({ fill, number }, place_) => { fill.style.width = `${100 * now.bars[place_]}%`; number.textContent = now.p[place_]; });
    const logits = now.logits;
    gap.element.hidden = model.get("measure") !== "logits";
    gap.fill.style.left = `${Math.min(50, share(logits))}%`;
    gap.fill.style.width = `${Math.abs(share(logits) - 50)}%`;
    mark(gap.fill, "tr-below", logits < 0);
    gap.number.textContent = signed(logits.toFixed(2));
    const dashes = gap.element.hidden ? "" : " Dashed: the two runs as they are.";
    panel.firstChild.textContent = (told ? `The corrupted run, with ${cellOf(at).name} from the clean run.` : "The corrupted run, as it is.") + dashes;
    const open = reds.length - found();
    say.textContent = flying ? "The value goes over, and the rest of the corrupted run is computed with it …" : told ? cellOf(at).said :
      "Click a box. A hook carries its value from the clean run into the corrupted one.";
    const count = `${tried.length} patch${tried.length === 1 ? "" : "es"}, ${found()} of ${reds.length} red boxes found`;
    score.textContent = model.get("shown") && !tried.length ? `All boxes are shown; ${reds.length} are red` : open || flying ? count : `All ${reds.length} red boxes found with ${tried.length} patches`;
    mark(score, "tr-done", !open && !flying);
    reveal.textContent = shown ? "Hide the others" : "Show all";
    measures.hidden = !shown;
    const listed = shown ? all.filter((cell) => !cellOf(cell).same) : tried;
    const row = (what, { p, logits: difference }) => h("tr", {}, h("th", { scope: "row" }, what), ...p.map((each) => h("td", {}, each)), h("td", {}, signed(difference.toFixed(2))));
    numbers.replaceChildren(row("clean run", runs[0]), row("corrupted run", runs[1]), ...listed.map((cell) => row(cellOf(cell).name, cellOf(cell))));
    root.dataset.flying = String(flying);
  };

  const figure = h("div", { class: "sc-figure tr-figure" }, say, holder, panel,
    h("div", { class: "sc-player tr-controls" }, score, reveal, over, measures), table);
  const root = stage(model, el, "Two runs and one arrow", figure);
  root.classList.add("hs-alone"); // everything is on the page
  fitWidth(model, figure, NARROW, (narrow) => {
    layout = { ...place(layers.length, columns, narrow), narrow };
    build();
    show();
  });
  cleanups.get(model)?.push(halt);
  listen(model, root, "tried at shown measure", () => { if (!flying) show(); });
}

export default widget(draw);
