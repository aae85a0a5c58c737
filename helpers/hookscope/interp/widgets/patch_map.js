// The patch map: a grid of cells, of which only the visible ones are drawn, and the outcome of the current cell.

const NOT_RUN = -1;
const NAMED = { [NOT_RUN]: "not run, because the sweep was interrupted", [-2]: "NaN", [-3]: "infinity", [-4]: "minus infinity" };
const CLASSES = { [NOT_RUN]: "pm-left", [-2]: "pm-nan", [-3]: "pm-above", [-4]: "pm-below" };

/** Black or white, whichever is readable on this color. */
function inkOn(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const part = parseInt(color.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function cellGrid(model) {
  const [layers, columns, levels, texts] = ["_layers", "_columns", "_levels", "_texts"].map((name) => model.get(name));
  const palette = model.get("_palette").map((color) => [color, inkOn(color)]);
  const kind = model.get("_kind");
  const whole = kind === "layer";
  const letters = Math.max(4, ...layers.map((name) => Math.min(name.length, 28)));
  const longest = Math.max(1, ...columns.map(([, label]) => label.length));
  let wide, tall, side, head; // pixels of a cell, and of the labels on the left and on top
  const grid = h("div", {
    class: "pm-grid", role: "grid", tabindex: "0", "aria-label": whole ? "Layers" : `Layers by ${kind}s`,
    "aria-rowcount": String(layers.length + 1), "aria-colcount": String(columns.length + 1), ...ownKeys,
  });
  grid.id = `hookscope-map-${++lastId}`;
  const room = h("div", { class: "pm-room", role: "rowgroup" });
  grid.append(room);
  const chosen = () => {
    const place = columns.findIndex(([number]) => number === model.get("column"));
    return [Math.max(0, layers.indexOf(model.get("layer"))), Math.max(0, place)];
  };
  const size = () => {
    const space = grid.clientWidth || 640;
    side = Math.min(Math.max(whole ? 60 : 110, 8 * letters + 12), Math.floor(space / 2.5));
    const fits = Math.floor((space - side - 2) / columns.length);
    wide = Math.max(columns.length > 64 ? 12 : 18, Math.min(fits, 72));
    if (fits < 50 && columns.length <= 12) wide = 56; // with few columns, make room for numbers, and scroll
    tall = wide >= 50 ? 26 : 20;
    const turned = !whole && 8 * longest + 8 > wide;
    head = whole ? 0 : turned ? Math.min(8 * longest + 12, 110) : 24;
    grid.classList.toggle("pm-turned", turned);
    grid.classList.toggle("pm-written", wide >= 50);
    room.style.width = `${side + wide * columns.length}px`;
    room.style.height = `${head + tall * layers.length}px`;
    grid.style.setProperty("--pm-wide", `${wide}px`);
    grid.style.setProperty("--pm-tall", `${tall}px`);
    grid.style.setProperty("--pm-side", `${side}px`);
    grid.style.setProperty("--pm-head", `${head}px`);
  };
  const inSight = (scrolled, seen, step, count, at) => {
    const first = Math.max(0, Math.floor(scrolled / step) - 2);
    const last = Math.min(count, Math.ceil((scrolled + seen) / step) + 2);
    const shown = Array.from({ length: Math.max(0, last - first) }, (_, index) => first + index);
    return at < first ? [at, ...shown] : at >= last ? [...shown, at] : shown; // aria-activedescendant must name an existing element
  };
  const cell = (row, place, active) => {
    const level = levels[row][place];
    const text = NAMED[level] ?? texts[row][place];
    const [color, ink] = palette[level] ?? ["", ""];
    const where = whole ? layers[row] : `${layers[row]}, ${kind} ${columns[place][2]}`;
    return h("div", {
      class: `pm-cell ${CLASSES[level] ?? ""}`, role: "gridcell", id: `${grid.id}-${row}-${place}`,
      "aria-colindex": String(place + 2), "aria-selected": String(active), "aria-label": `${where}: ${text}`,
      title: `${where}: ${text}`, "data-row": String(row), "data-place": String(place),
      style: `left:${side + place * wide}px;${color ? `background:${color};color:${ink}` : ""}`,
    }, wide < 50 ? "" : level === NOT_RUN ? "–" : texts[row][place]);
  };
  const draw = () => {
    const [atRow, atPlace] = chosen();
    const rows = inSight(grid.scrollTop, grid.clientHeight - head, tall, layers.length, atRow);
    const places = inSight(grid.scrollLeft, grid.clientWidth - side, wide, columns.length, atPlace);
    const every = Math.ceil(16 / wide); // leave out labels that would overlap
    const top = h("div", { class: "pm-heads", role: "row", "aria-rowindex": "1" },
      h("div", { class: "pm-corner", role: "columnheader", "aria-colindex": "1" }, whole ? "layer" : `layer, ${kind}`),
      ...places.map((place) => h("div", {
        class: "pm-head", role: "columnheader", "aria-colindex": String(place + 2), title: columns[place][1],
        "aria-label": whole ? "metric" : `${kind} ${columns[place][2]}`, style: `left:${side + place * wide}px`,
      }, h("span", {}, whole || place % every ? "" : columns[place][1]))));
    room.replaceChildren(top, ...rows.map((row) => h("div", {
      class: "pm-row", role: "row", "aria-rowindex": String(row + 2), style: `top:${head + row * tall}px`,
    },
    h("div", { class: "pm-side", role: "rowheader", "aria-colindex": "1", title: layers[row] }, h("bdi", {}, layers[row])),
    ...places.map((place) => cell(row, place, row === atRow && place === atPlace)))));
    grid.setAttribute("aria-activedescendant", `${grid.id}-${atRow}-${atPlace}`);
  };
  const reveal = () => {
    const [row, place] = chosen();
    const [top, left] = [row * tall, place * wide];
    if (top < grid.scrollTop) grid.scrollTop = top;
    if (top + tall + head > grid.scrollTop + grid.clientHeight) grid.scrollTop = top + tall + head - grid.clientHeight;
    if (left < grid.scrollLeft) grid.scrollLeft = left;
    if (left + wide + side > grid.scrollLeft + grid.clientWidth) grid.scrollLeft = left + wide + side - grid.clientWidth;
    draw();
  };
  const go = (row, place) => {
    const layer = layers[Math.max(0, Math.min(layers.length - 1, row))];
    const [column] = columns[Math.max(0, Math.min(columns.length - 1, place))];
    if (layer !== model.get("layer") || column !== model.get("column")) put(model, { layer, column });
  };
  grid.addEventListener("keydown", (event) => {
    if (event.altKey || event.metaKey) return;
    const [row, place] = chosen();
    const far = Math.max(1, Math.floor((grid.clientHeight - head) / tall) - 1);
    const ends = event.ctrlKey ? { Home: [-Infinity, -Infinity], End: [Infinity, Infinity] } : { Home: [0, -Infinity], End: [0, Infinity] };
    const step = {
      ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], PageDown: [far, 0], PageUp: [-far, 0], ...ends,
    }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // JupyterLab uses these keys, too
    go(row + step[0], place + step[1]);
  });
  grid.addEventListener("click", (event) => {
    const found = event.target.closest("[data-row]");
    if (found) go(Number(found.dataset.row), Number(found.dataset.place));
  });
  grid.addEventListener("scroll", draw);
  listen(model, grid, "layer column", reveal);
  const resized = new ResizeObserver(() => { size(); reveal(); });
  resized.observe(grid);
  cleanups.get(model)?.push(() => resized.disconnect());
  size();
  draw();
  return grid;
}

/** The outcome of the current cell: the metric, and the output with and without the edit. */
function outcome(model) {
  const caption = h("p", { class: "pm-caption", role: "status" }); // screen readers read it out when it changes
  const words = h("p", { class: "pm-words" });
  const notes = h("ul", { class: "pm-notes", "aria-live": "polite" });
  const metric = h("tbody");
  const title = h("caption");
  const [heads, rows] = [h("tr"), h("tbody")];
  const output = h("div", { class: "pm-output", tabindex: "0", role: "group", "aria-label": "Output before and after the edit" },
    h("table", {}, title, h("thead", {}, heads), rows));
  const sample = choice(model, "sample", [], Number);
  const position = choice(model, "position", [], Number);
  const fields = { sample: field("Sample", sample), position: field("Position in the output", position) };
  const counted = (count) => Array.from({ length: Math.min(count, 4096) }, (_, index) => [index, String(index)]);
  const show = () => {
    caption.textContent = model.get("_caption");
    words.textContent = model.get("_words");
    notes.replaceChildren(...model.get("_notes").map((text) => h("li", {}, text)));
    notes.hidden = !model.get("_notes").length;
    metric.replaceChildren(...model.get("_metric").map(([what, number]) => h("tr", {}, h("th", { scope: "row" }, what), h("td", {}, number))));
    const names = model.get("_rows").length > 0;
    output.hidden = !names;
    title.textContent = model.get("_title");
    fill(heads, rows, model.get("_rows"));
    sample.fill(counted(model.get("_samples")));
    position.fill([[-1, "last"], ...counted(model.get("_positions"))]);
    fields.sample.hidden = !names || model.get("_samples") < 2;
    fields.position.hidden = !names || model.get("_positions") < 2;
  };
  show();
  listen(model, caption, "_caption _words _notes _metric _title _rows _samples _positions", show);
  return h("section", { class: "pm-outcome", "aria-label": "Selected cell" }, caption, words, notes,
    h("div", { class: "hs-columns" },
      h("div", { class: "pm-part" }, h("table", { class: "pm-metric" }, h("caption", {}, "The metric"), metric)),
      h("div", { class: "pm-part" }, h("div", { class: "hs-row" }, fields.sample, fields.position), output)));
}

/** Fill a table with a header and rows of texts. */
function fill(head, body, [names, ...rows]) {
  head.replaceChildren(...(names ?? []).map((name) => h("th", { scope: "col" }, name)));
  body.replaceChildren(...rows.map((row) => h("tr", {}, ...row.map((value, at) => h(at ? "td" : "th", at ? {} : { scope: "row" }, value)))));
}

/** The numbers of the map as a table, closed at first. With many columns, the cells have no room for numbers. */
function numbers(model) {
  const [head, body] = [h("tr"), h("tbody")];
  fill(head, body, model.get("_table"));
  return h("details", { class: "pm-about" }, h("summary", {}, "Numbers in a table"),
    h("div", { class: "pm-output", tabindex: "0", role: "group", "aria-label": "Numbers" }, h("table", {}, h("thead", {}, head), body)));
}

function draw(model, el) {
  const left = model.get("_levels").some((row) => row.includes(NOT_RUN));
  const blank = model.get("_levels").some((row) => row.some((level) => level < NOT_RUN));
  const key = h("p", { class: "pm-key" }, model.get("_scale"),
    blank ? h("span", {}, " ", h("span", { class: "pm-swatch pm-nan" }), " is not a finite number.") : null,
    left ? h("span", {}, " ", h("span", { class: "pm-swatch pm-left" }), " was not run: the sweep was interrupted.") : null);
  const about = h("details", { class: "pm-about" }, h("summary", {}, "How the sweep was made"),
    h("ul", {}, ...model.get("_about").map((text) => h("li", {}, text))));
  stage(model, el, "Patch map", cellGrid(model), key, numbers(model), about, outcome(model));
}

export default widget(draw);
