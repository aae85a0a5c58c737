// The token picker: the tokens of the text, a map of layers and tokens, the words of each layer, and attention.

const SVG = "http://www.w3.org/2000/svg";
const named = (model, place) => `${place} ${model.get("_tokens")[place] ?? ""}`.trim();

/** The tokens as a list, with lines from the current one to those that it attends to. */
function textOf(model) {
  const lines = document.createElementNS(SVG, "svg");
  lines.setAttribute("aria-hidden", "true");
  lines.setAttribute("class", "tk-lines");
  const list = h("div", { class: "tk-tokens", role: "listbox", "aria-label": "Tokens", "aria-orientation": "horizontal", ...ownKeys });
  const room = h("div", { class: "tk-text" }, list, lines);
  const box = h("div", { class: "tk-scroll" }, room);
  const choose = (place) => {
    const next = Math.min(Math.max(place, 0), list.children.length - 1);
    if (next !== model.get("token")) put(model, { token: next });
    list.children[next]?.focus();
  };
  list.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const now = model.get("token");
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, ArrowUp: now - 1, ArrowDown: now + 1, Home: 0, End: Infinity }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    choose(next);
  });
  const fill = () => {
    list.replaceChildren(...model.get("_tokens").map((text, place) => h("div", {
      class: "tk-token", role: "option", "aria-label": named(model, place), onclick: () => choose(place),
    }, h("span", { class: "tk-place", "aria-hidden": "true" }, String(place)), h("span", {}, shown(text)))));
    mark();
    connect();
  };
  const mark = () => {
    const chosen = model.get("token");
    [...list.children].forEach((item, place) => {
      item.tabIndex = place === chosen ? 0 : -1;
      item.setAttribute("aria-selected", String(place === chosen));
    });
    intoSight(box, list.children[chosen]);
  };
  const connect = () => {
    const weights = model.get("look") === "lines" ? model.get("_weights") : [];
    const chosen = model.get("token");
    // Read all positions before writing styles, or the browser would compute the layout again for each token.
    const places = weights.length ? [...list.children].map((item) => [item.offsetLeft + item.offsetWidth / 2, item.offsetTop]) : [];
    const [width, height] = [list.offsetWidth, list.offsetHeight];
    lines.setAttribute("width", String(width));
    lines.setAttribute("height", String(height));
    const drawn = [];
    [...list.children].forEach((item, place) => {
      const weight = weights[place] ?? 0;
      item.style.setProperty("--tk-weight", `${Math.round(100 * Math.min(1, weight))}%`);
      item.title = weights.length ? `weight ${Number(weight.toPrecision(3))}` : "";
      if (place === chosen || !places[chosen] || weight < 0.005) return;
      const [[x, y], [toX, toY]] = [places[chosen], places[place]];
      const path = document.createElementNS(SVG, "path");
      const up = Math.min(52, 20 + 0.2 * Math.abs(x - toX));
      path.setAttribute("d", `M${x} ${y} C${x} ${y - up}, ${toX} ${toY - up}, ${toX} ${toY}`);
      path.setAttribute("stroke-width", String(1 + 7 * Math.min(1, weight)));
      path.setAttribute("opacity", String(0.25 + 0.75 * Math.min(1, weight)));
      drawn.push(path);
    });
    lines.replaceChildren(...drawn);
  };
  fill();
  listen(model, list, "_tokens", fill);
  listen(model, list, "token", mark);
  listen(model, list, "_weights look", connect); // not before the weights are there, because it needs a layout
  const fit = new ResizeObserver(() => { mark(); connect(); }); // also after the first layout
  fit.observe(list);
  cleanups.get(model).push(() => fit.disconnect());
  return box;
}
/** Scroll a box, but none of its parents, until a child is visible. */
function intoSight(box, part) {
  if (!part) return;
  const [whole, one] = [box.getBoundingClientRect(), part.getBoundingClientRect()];
  if (one.top < whole.top) box.scrollTop -= whole.top - one.top + 24;
  else if (one.bottom > whole.bottom) box.scrollTop += one.bottom - whole.bottom + 8;
}
/** The text of a token. Whitespace, such as a line break, is escaped. */
const shown = (text) => (/\S/.test(text) ? text : JSON.stringify(text).slice(1, -1).replaceAll(" ", "␣"));

/** The map. A click or an arrow key chooses the layer and the token of a cell. */
function mapOf(model) {
  const image = picture(model, "png", "alt", { draggable: "false" });
  const mark = h("div", { class: "tk-cell", "aria-hidden": "true" });
  const clamp = (value, count) => Math.min(Math.max(value, 0), count - 1);
  const counts = () => [model.get("_layers").length, model.get("_tokens").length];
  const row = () => model.get("_layers").indexOf(model.get("layer"));
  const move = (layer, token) => {
    const values = { layer: model.get("_layers")[clamp(layer, counts()[0])], token: clamp(token, counts()[1]) };
    if (values.layer !== model.get("layer") || values.token !== model.get("token")) put(model, values);
  };
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const pad = h("div", {
    class: "tk-map hs-light", tabindex: "0", role: "group", "aria-label": "Map of layers and tokens. Use the arrow keys to choose a cell.",
    ...ownKeys,
    onclick: (event) => {
      const [all, [left, top, width, height]] = [pad.getBoundingClientRect(), model.get("_box")];
      const x = ((event.clientX - all.left) / all.width) * model.get("_size")[0] - left;
      const y = ((event.clientY - all.top) / all.height) * model.get("_size")[1] - top;
      if (x < 0 || y < 0 || x >= width || y >= height) return;
      move(Math.floor((y / height) * counts()[0]), Math.floor((x / width) * counts()[1]));
    },
    onkeydown: (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const step = steps[event.key] ?? { Home: [0, -Infinity], End: [0, Infinity] }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      move(row() + step[0], model.get("token") + step[1]);
    },
  }, image, mark);
  const show = () => {
    const [wide, tall] = model.get("_size");
    const [left, top, width, height] = model.get("_box");
    const [layers, tokens] = counts();
    pad.style.maxWidth = `${wide}px`;
    place(mark, left + (width * model.get("token")) / tokens, top + (height * row()) / layers, width / tokens, height / layers, wide, tall);
  };
  show();
  listen(model, mark, "token layer _box _size _layers _tokens", show);
  return pad;
}
function place(mark, left, top, width, height, wide, tall) {
  const part = (value, whole) => `${(100 * value) / whole}%`;
  Object.assign(mark.style, { left: part(left, wide), top: part(top, tall), width: part(width, wide), height: part(height, tall) });
}

/** The words that the logit lens reads in each layer, with their probabilities. */
function wordsOf(model) {
  const body = h("tbody");
  const title = h("caption");
  const table = h("table", {}, title, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "after"),
    h("th", { scope: "col" }, "words with the highest probabilities"))), body);
  const box = h("div", { class: "tk-words", tabindex: "0", role: "group", "aria-label": "Words of each layer" }, table);
  const name = () => { title.textContent = `At token ${named(model, model.get("token"))}`; };
  const mark = () => {
    const here = model.get("_predictions").map(([layer]) => layer === model.get("layer"));
    [...body.children].forEach((row, place) => {
      row.classList.toggle("tk-here", Boolean(here[place]));
      if (here[place] && !here[place + 1]) row.setAttribute("aria-current", "true"); // what the layer returns
      else row.removeAttribute("aria-current");
    });
    intoSight(box, body.children[here.lastIndexOf(true)]);
  };
  const show = () => {
    const rows = model.get("_predictions");
    box.hidden = !rows.length;
    name();
    body.replaceChildren(...rows.map(([, label, values]) => h("tr", {},
      h("th", { scope: "row" }, label), h("td", {}, ...pairs(values).map(([word, chance]) =>
        h("span", { class: "tk-pair" }, h("span", { class: "tk-word" }, shown(word)), ` ${chance} `))))));
    mark();
  };
  show();
  listen(model, box, "_predictions _tokens", show);
  listen(model, box, "token", name);
  listen(model, box, "layer", mark);
  const fit = new ResizeObserver(() => intoSight(box, body.querySelector(".tk-here"))); // after the first layout
  fit.observe(box);
  cleanups.get(model).push(() => fit.disconnect());
  return box;
}

const pairs = (values) => Array.from({ length: values.length / 2 }, (_, at) => values.slice(2 * at, 2 * at + 2));

/** Attention from the current token in a head: the largest weights, and the whole map if chosen. */
function attentionOf(model) {
  const counted = (count) => Array.from({ length: count }, (_, index) => [index, String(index)]);
  const of = choice(model, "attention", []);
  const head = choice(model, "head", [], Number);
  const look = choice(model, "look", [["lines", "lines from the token"], ["map", "map of all tokens"]]);
  const fields = [field("Attention", of), field("Head", head), field("as", look)];
  const said = h("p", { class: "tk-looked", role: "status" });
  const checked = h("p");
  const check = h("details", { class: "hs-plain" }, h("summary", {}, "How exact are these weights?"), checked);
  const body = h("tbody");
  const table = h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "top keys"), h("th", { scope: "col" }, "weight"))), body);
  const mark = h("div", { class: "tk-cell", "aria-hidden": "true" });
  const map = h("div", { class: "tk-look hs-light" }, picture(model, "look_png", "look_alt"), mark);
  const offer = () => {
    const maps = model.get("_maps");
    of.fill(maps.map((label) => [label, label || "(root)"]));
    head.fill(counted(model.get("_heads")));
    fields[0].hidden = maps.length < 2;
    fields[1].hidden = fields[2].hidden = !maps.length;
  };
  const show = () => {
    said.textContent = model.get("_attention_text");
    checked.textContent = model.get("_attention_check");
    check.hidden = !checked.textContent;
    table.hidden = !model.get("_attention_rows").length;
    body.replaceChildren(...model.get("_attention_rows").map(([key, weight]) => h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, weight))));
    map.hidden = !model.get("look_png").byteLength;
  };
  const point = () => {
    const [wide, tall] = model.get("_look_size");
    const [left, top, width, height] = model.get("_look_box");
    const tokens = model.get("_tokens").length;
    map.style.maxWidth = `${wide}px`;
    place(mark, left, top + (height * model.get("token")) / tokens, width, height / tokens, wide, tall);
  };
  offer();
  show();
  point();
  listen(model, table, "_maps _heads", offer);
  listen(model, table, "_attention_text _attention_check _attention_rows look_png", show);
  listen(model, table, "_look_size _look_box token", point);
  return [h("div", { class: "hs-row" }, ...fields), h("div", { class: "tk-attention" }, said, h("div", { class: "hs-columns" }, table, map), check)];
}

/** A box for a text of the reader's own, if there is a tokenizer. */
function readerOf(model) {
  const { entry, parts } = textBox((text) => { if (text.trim()) put(model, { text: text.trim() }); });
  const box = h("div", { class: "hs-row tk-reader" }, ...parts);
  const show = () => { box.hidden = !model.get("_reads"); if (document.activeElement !== entry) entry.value = model.get("text"); };
  show();
  listen(model, box, "_reads text", show);
  return box;
}

/** One line on what there is to do and to see. */
const about = (model) => ["Click a cell of the map: a token in a layer.",
  model.get("_predictions").length ? "Words: what the model would say there." : "",
  model.get("_maps").length ? "Lines: where its attention looks." : ""].join(" ").trim();

function draw(model, el) {
  const sample = choice(model, "sample", [], Number);
  const shows = choice(model, "show", []);
  const several = field("Sample", sample);
  const told = h("p", { class: "tk-told", role: "status" }); // screen readers read it out when it changes
  const caption = h("p", { class: "tk-caption" });
  const notes = h("ul", { class: "tk-notes" });
  const what = h("p", { class: "tk-about" });
  const offer = () => {
    sample.fill(Array.from({ length: model.get("_samples") }, (_, index) => [index, String(index)]));
    shows.fill(model.get("_shows"));
    several.hidden = model.get("_samples") < 2;
  };
  const show = () => {
    what.textContent = about(model);
    told.textContent = model.get("_description");
    caption.textContent = model.get("_caption");
    notes.replaceChildren(...model.get("_notes").map((text) => h("li", {}, text)));
    notes.hidden = !model.get("_notes").length;
  };
  const [fields, attention] = attentionOf(model);
  const left = h("div", { class: "tk-left" }, h("div", { class: "hs-row" }, field("Show", shows), several), mapOf(model), caption);
  stage(model, el, "Token picker", what, readerOf(model), textOf(model), fields, told, notes,
    h("div", { class: "hs-columns" }, left, h("div", { class: "tk-right" }, wordsOf(model), attention)), codePanel(model));
  listen(model, told, "_samples _shows", offer);
  listen(model, told, "_description _caption _notes", show);
  offer();
  show();
  // The kernel draws the maps at this width, so the browser does not scale them.
  const fit = new ResizeObserver(() => {
    const width = Math.max(240, Math.min(960, 20 * Math.floor(left.clientWidth / 20)));
    if (left.clientWidth && Math.abs(width - model.get("width")) >= 20) put(model, { width });
  });
  fit.observe(left);
  cleanups.get(model).push(() => fit.disconnect());
}

export default widget(draw);
