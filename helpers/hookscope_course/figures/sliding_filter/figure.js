const SHORT = 24 / SPEED; // milliseconds between two positions
/** A number as Python writes it. */
const fixed = (value, decimals) => (value.toFixed(decimals).replace(/^-(0\.0+)$/, "$1")).replace("-", "−");
const two = (value) => fixed(Math.round(value * 100) / 100, 2);
const thousandths = (value) => Math.round(value * 1000) / 1000;
const three = (value) => fixed(thousandths(value), 3);
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

const LIGHT = 0.46; // from this gray on, black words have more contrast than white ones
/** The numbers of a square as a table whose cells carry their color; those of a patch have the grays of the digit. */
function square(caption, side, kind) {
  const cells = Array.from({ length: side * side }, () => h("td"));
  const rows = Array.from({ length: side }, (_, row) => h("tr", {}, ...cells.slice(row * side, (row + 1) * side)));
  const table = h("table", { class: `sf-square sf-${kind}` }, h("caption", {}, caption), h("tbody", {}, ...rows));
  const show = (values, top) => cells.forEach((cell, place) => {
    const value = values?.[place];
    cell.textContent = value === undefined ? "?" : two(value);
    if (kind === "patch") {
      const level = Math.min(Math.max(value, 0), 1);
      cell.className = level < LIGHT ? "sf-dark" : "sf-light";
      cell.style.background = `rgb(${Array(3).fill(Math.round(255 * level))})`;
      return;
    }
    cell.className = value === undefined ? "" : value > 0 ? "sf-above" : value < 0 ? "sf-below" : "";
    cell.style.setProperty("--share", value === undefined ? 0 : Math.abs(value) / (top || 1));
  });
  return { table, show };
}

function draw(model, el) {
  const { src, height, width, values: ink } = model.get("_digit");
  const asking = () => model.get("asks") && !model.get("answer").length;
  const side = Math.round(Math.sqrt(model.get("_run").filter.length));
  const reach = (side - 1) / 2;
  let [run, products, colors] = [];
  let seen = new Uint8Array(height * width);
  let [timer, begun] = [undefined, false]; // whether play has begun at the top
  const load = () => {
    if (run === model.get("_run")) return;
    run = model.get("_run");
    products = new (run.bits === 8 ? Int8Array : Int16Array)(bytes(run.products).buffer);
    colors = bytes(run.colors);
    seen = new Uint8Array(height * width);
    begun = false;
  };

  // Where the filter lies.
  const inside = (value, many) => Math.min(Math.max(value, 0), many - 1);
  const go = (row, column) => tell(model, { row: inside(row, height), column: inside(column, width) });
  const guessed = () => tell(model, { answer: [model.get("row"), model.get("column")] });
  const stop = () => { clearInterval(timer); timer = undefined; show(); };
  const next = () => {
    const place = model.get("row") * width + model.get("column") + 1;
    if (place < height * width) return go(Math.floor(place / width), place % width);
    tell(model, { filled: true });
    stop();
  };
  const play = () => {
    if (timer) return stop();
    if (model.get("filled") || !begun) { seen.fill(0); tell(model, { filled: false, row: 0, column: 0 }); }
    begun = true;
    if (!calm()) { timer = setInterval(next, SHORT); return show(); }
    // No motion: a whole row at each press.
    const row = model.get("row");
    seen.fill(1, row * width, (row + 1) * width);
    if (row + 1 < height) go(row + 1, 0);
    else tell(model, { filled: true });
    show();
  };
  cleanups.get(model)?.push(() => clearInterval(timer));

  // The digit under the filter, and the map.
  const outline = h("div", { class: "sf-outline", "aria-hidden": "true" });
  const spot = () => h("div", { class: "sf-mark", "aria-hidden": "true" }, "?");
  const marks = [spot(), spot()];
  const cell = h("div", { class: "sf-cell", "aria-hidden": "true" });
  const lay = (element, row, column, size) => layOver(element, [height, width], { row, column, size });
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const halt = () => { if (timer) stop(); };
  const onkeydown = (event) => {
    const step = steps[event.key];
    actOn(event, (step || (asking() && event.key === "Enter")) && (() => {
      halt();
      if (step) go(model.get("row") + step[0], model.get("column") + step[1]);
      else guessed();
    }));
  };
  const follow = (down, across) => go(Math.floor(down * height), Math.floor(across * width));
  const end = () => { if (asking()) guessed(); };
  const pad = (label, ...children) => imagePad({ label, kind: "sf-pad", follow, onkeydown, begin: halt, end }, ...children);
  const canvas = h("canvas", { width, height, class: "sf-canvas", role: "img" });
  const digit = pad("The digit. Arrow keys move the filter. When you are asked for a guess, Enter places it.",
    h("img", { src, alt: "The digit that goes in", draggable: "false" }), outline, marks[0]);
  const map = pad("The map. Arrow keys move the filter.", canvas, cell, marks[1]);
  const paint = () => {
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const all = model.get("filled");
    let many = 0;
    for (let place = 0; place < height * width; place += 1) {
      if (!all && !seen[place]) continue;
      many += 1;
      image.data.set(colors.subarray(3 * place, 3 * place + 3), 4 * place);
      image.data[4 * place + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    canvas.setAttribute("aria-label", `The map of channel ${run.channel}: ${many} of ${height * width} values are there.`);
  };

  // The filters to choose from.
  const tiles = model.get("_filters").map(({ src: small, label }, channel) => h("button", {
    type: "button", role: "radio", class: "sf-tile", "aria-label": label, onclick: () => pick(channel), ...ownKeys,
  }, h("img", { src: small, alt: "", draggable: "false" }), String(channel)));
  // Python asks anew for each filter; so does a page without it.
  const pick = (channel) => { halt(); if (channel !== model.get("channel")) put(model, { channel, answer: [], filled: false }); };
  const filters = channelTiles(model, tiles, {
    class: "sf-tiles", "aria-label": "Filter", pick, steps: { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 },
  });

  const said = h("p", { class: "dg-sentence", role: "status" });
  const total = (place) => thousandths(run.values[place]) - run.bias; // of what is shown, so that the sum on the page is right
  const sentence_now = (place) => {
    const [row, column] = [Math.floor(place / width), place % width];
    const guess = model.get("answer");
    if (asking()) return "Where will the map have its highest value? Click there on the digit, before anything is computed.";
    if (model.get("filled") && guess.length) {
      return `The highest value is ${two(run.values[run.best[0] * width + run.best[1]])}, at row ${run.best[0]}, column ${run.best[1]}. ` +
        `Where you clicked, it is ${two(run.values[guess[0] * width + guess[1]])}.`;
    }
    // Each number has its own room, so that the sentence stands still while the filter slides.
    const room = (text, kind) => h("span", { class: `sf-${kind}` }, String(text));
    return ["Row ", room(row, "short"), ", column ", room(column, "short"), ` of the map: the ${side * side} products, `,
      room(three(total(place)), "long"), ", and the bias, ", room(three(run.bias), "long"), ", add up to ",
      room(three(run.values[place]), "long"), "."];
  };
  const verdict_now = () => {
    const guess = model.get("answer");
    if (!guess.length) return "";
    const [here, most] = [guess, run.best].map(([row, column]) => three(run.values[row * width + column]));
    return String(guess) === String(run.best) ? `Your pixel: ${here}, the highest!` : `Your pixel: ${here}. The highest: ${most}.`;
  };
  const under = square("patch of the digit", side, "patch");
  const weights = square("filter", side, "filter");
  const product = square("products", side, "product");
  const sum = h("p", { class: "sf-sum" });
  const verdict = h("p", { class: "sf-verdict", role: "status" });
  const playing = h("button", { type: "button", onclick: play });
  const fill = h("button", { type: "button", onclick: () => { halt(); tell(model, { filled: true }); } }, "Fill the map");
  const best = h("button", { type: "button", onclick: () => { halt(); tell(model, { filled: true, row: run.best[0], column: run.best[1] }); } }, "To the highest");
  const skip = h("button", { type: "button", onclick: () => tell(model, { asks: false }) }, "Skip the question");

  function show() {
    load();
    const [row, column, guess] = [model.get("row"), model.get("column"), model.get("answer")];
    const place = row * width + column;
    const hidden = asking();
    if (!hidden) seen[place] = 1;
    paint();
    lay(outline, row - reach, column - reach, side);
    lay(cell, row, column, 1);
    cell.hidden = hidden;
    marks.forEach((mark) => { mark.hidden = !guess.length; if (guess.length) lay(mark, guess[0], guess[1], 1); });
    const patch = [];
    for (let down = -reach; down <= reach; down += 1) {
      for (let across = -reach; across <= reach; across += 1) {
        const [y, x] = [row + down, column + across];
        patch.push(y < 0 || x < 0 || y >= height || x >= width ? 0 : ink[y * width + x]);
      }
    }
    const here = hidden ? undefined : Array.from(products.subarray(place * side * side, (place + 1) * side * side), (value) => value / 100);
    under.show(patch, 1);
    weights.show(run.filter, run.strongest);
    product.show(here, run.most);
    sum.replaceChildren(...(hidden ? ["sum + bias = ?"] : [`${three(total(place))} + bias ${three(run.bias)}`, h("strong", {}, `= ${three(run.values[place])}`)]));
    verdict.textContent = verdict_now();
    said.setAttribute("aria-live", timer ? "off" : "polite");
    said.replaceChildren(...[sentence_now(place)].flat());
    playing.textContent = timer ? "Pause" : calm() ? "Next row" : "Play";
    for (const button of [playing, fill, best]) button.disabled = hidden;
    skip.hidden = !hidden;
  }
  show();
  listen(model, digit, "row column answer asks filled channel _run", show);
  stage(model, el, "The sliding filter", said, filters,
    h("div", { class: "sf-columns" },
      h("figure", {}, h("figcaption", {}, "the digit"), digit),
      h("div", { class: "sf-work" }, under.table, h("span", { class: "sf-sign", "aria-hidden": "true" }, "×"), weights.table,
        h("span", { class: "sf-sign", "aria-hidden": "true" }, "="), product.table, h("div", { class: "sf-total" }, sum, verdict)),
      h("figure", {}, h("figcaption", {}, "the map"), map)),
    h("div", { class: "hs-row" }, playing, fill, best, skip, h("span", { class: "sf-how" }, "Drag the filter, or use the arrow keys. Red is above 0, blue below.")));
}

export default widget(draw);
