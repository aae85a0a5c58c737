const ROW = 36; // pixels, see picker.css
const SHOWS = [["activation", "activation"], ["gradient", "gradient"], ["activation × gradient", "activation × gradient"]];
const ORDERS = [["index", "index"], ["mean", "mean, largest first"], ["max", "max, largest first"], ["zeros", "share of zeros"]];

/** The list of modules. It draws only the visible rows, because a model can have thousands. */
function layerList(model) {
  const box = h("div", { class: "hs-layers", role: "listbox", tabindex: "0", "aria-label": "Layers", ...ownKeys });
  const room = h("div", { class: "hs-room", role: "presentation" });
  box.append(room);
  const search = h("input", { type: "search", placeholder: "name or type", oninput: () => filter() });
  const kind = h("select", { onchange: () => filter(), ...ownKeys });
  const maps = h("input", { type: "checkbox", onchange: () => filter() });
  const count = h("span", { class: "hs-count", role: "status" });
  let rows = [];
  let at = -1; // the row of the keyboard focus

  const fillKinds = () => {
    const kinds = [...new Set(model.get("tree").map((row) => row.type))].sort();
    kind.replaceChildren(h("option", { value: "" }, "all types"), ...kinds.map((name) => h("option", { value: name }, name)));
  };
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows = model.get("tree").filter((row) =>
      words.every((word) => `${row.name} ${row.type}`.toLowerCase().includes(word)) &&
      (!kind.value || row.type === kind.value) && (!maps.checked || row.maps));
    at = rows.findIndex((row) => row.name === model.get("layer"));
    const all = model.get("tree").length;
    const modules = `${all} module${all === 1 ? "" : "s"}`;
    count.textContent = rows.length === all ? modules : `${rows.length} of ${modules}`;
    room.style.height = `${rows.length * ROW}px`;
    box.scrollTop = 0;
    if (at >= 0) go(at);
    else draw();
  };
  const describe = (row) => row.why
    ? `${row.name || "(the model)"}, ${row.type}: ${row.why}`
    : `${row.name || "(the model)"}, ${row.type}, output ${row.shape || "without tensors"}, ` +
      `${row.parameters.toLocaleString("en")} parameters${row.calls > 1 ? `, called ${row.calls} times` : ""}`;
  const draw = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 4);
    const last = Math.min(rows.length, first + Math.ceil((box.clientHeight || 400) / ROW) + 8);
    const shown = new Set(Array.from({ length: last - first }, (_, index) => first + index));
    if (at >= 0) shown.add(at); // aria-activedescendant must name an existing element
    room.replaceChildren(...[...shown].map((index) => {
      const row = rows[index];
      const short = row.name ? row.name.split(".").at(-1) : "(the model)";
      const searching = search.value || kind.value || maps.checked;
      const chosen = row.name === model.get("layer");
      return h("div", {
        class: `hs-layer${index === at ? " hs-at" : ""}${row.why ? " hs-uncalled" : ""}`,
        id: `${box.id}-${index}`, role: "option", title: describe(row), "aria-label": describe(row),
        "aria-selected": String(chosen), "aria-disabled": row.why ? "true" : null,
        "aria-setsize": String(rows.length), "aria-posinset": String(index + 1),
        style: `top:${index * ROW}px;padding-left:${8 + (searching ? 0 : 10 * Math.min(row.depth, 8))}px`,
        onclick: () => { go(index); pick(); },
      },
      h("span", { class: "hs-name" }, h("span", { class: "hs-path" }, searching ? row.name.slice(0, -short.length) : ""),
        h("span", { class: "hs-own" }, short)),
      h("span", { class: "hs-what" }, h("span", { class: "hs-type" }, row.type),
        h("span", {}, row.why ? "not called" : row.shape),
        row.parameters ? h("span", { class: "hs-params" }, `${row.parameters.toLocaleString("en")} parameters`) : null));
    }));
    if (at >= 0) box.setAttribute("aria-activedescendant", `${box.id}-${at}`);
    else box.removeAttribute("aria-activedescendant");
  };
  const go = (index) => {
    at = Math.max(0, Math.min(rows.length - 1, index));
    const top = at * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
    draw();
  };
  // Reset the channel: a click on the old layer can still be waiting to be sent.
  const pick = () => {
    if (!rows[at] || rows[at].why || rows[at].name === model.get("layer")) return;
    put(model, { layer: rows[at].name, channel: -1, page: 0 });
  };
  box.id = `hookscope-layers-${++lastId}`;
  box.addEventListener("scroll", draw);
  box.addEventListener("keydown", (event) => {
    const far = Math.floor(box.clientHeight / ROW) - 1;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: far, PageUp: -far, Home: -rows.length, End: rows.length }[event.key];
    if (step !== undefined) go(Math.max(0, at) + (at < 0 && step > 0 ? step - 1 : step));
    else if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation(); // JupyterLab uses these keys, too
    pick();
  });
  listen(model, box, "layer", () => {
    const index = rows.findIndex((row) => row.name === model.get("layer"));
    if (index >= 0) go(index);
    else { at = -1; draw(); }
  });
  listen(model, box, "tree", () => { fillKinds(); filter(); });
  fillKinds();
  filter();
  // On a narrow page the list moves above the maps and loses its scroll position.
  const resized = new ResizeObserver(() => go(at));
  resized.observe(box);
  cleanups.get(model)?.push(() => resized.disconnect());
  const list = h("div", { class: "hs-list" }, h("div", { class: "hs-filters" }, field("Search", search), count), box);
  return { list, filters: [field("Show only layers of type", kind), field("Show only layers with feature maps", maps)] };
}

/** The image of the maps, with a button over each map. */
function mapGrid(model) {
  const grid = h("div", { class: "hs-grid hs-light", role: "group", "aria-label": "Channels", ...ownKeys });
  const image = picture(model);
  const show = () => {
    const [width, height] = model.get("size");
    const channels = model.get("channels");
    const chosen = model.get("channel");
    const focused = grid.contains(document.activeElement) ? document.activeElement.dataset.index : undefined;
    const reachable = Math.max(0, channels.indexOf(chosen));
    const rows = model.get("rows");
    grid.style.width = `${width}px`; // the positions of the buttons are percentages of it
    grid.replaceChildren(image, ...model.get("boxes").map(([left, top, wide, tall], index) => h("button", {
      class: "hs-channel", type: "button", tabindex: index === reachable ? "0" : "-1", "data-index": String(index),
      "aria-pressed": String(channels[index] === chosen),
      "aria-label": `channel ${channels[index]}${rows[index] ? `, mean ${short(rows[index].mean)}` : ""}`,
      title: `channel ${channels[index]}`,
      style: `left:${100 * left / width}%;top:${100 * top / height}%;width:${100 * wide / width}%;height:${100 * tall / height}%`,
      onclick: () => put(model, { channel: channels[index] === model.get("channel") ? -1 : channels[index] }),
    })));
    if (focused !== undefined) grid.querySelector(`[data-index="${focused}"]`)?.focus();
  };
  grid.addEventListener("keydown", (event) => {
    const at = Number(event.target.dataset?.index);
    if (Number.isNaN(at)) return;
    const boxes = model.get("boxes");
    const columns = boxes.filter((box) => box[1] === boxes[0][1]).length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = grid.querySelector(`[data-index="${at + step}"]`);
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  show();
  listen(model, grid, "boxes channels size channel rows", show);
  return grid;
}
const short = (value) => (typeof value === "number" ? Number(value.toPrecision(3)).toString() : String(value ?? ""));

/** One channel enlarged, next to the input and on top of it. */
function largeView(model) {
  const over = picture(model, "over", "large_alt", { class: "hs-picture hs-over" });
  const strength = h("input", { type: "range", min: "0", max: "100", value: "90", ...ownKeys });
  const value = h("output", { class: "hs-value" });
  const title = h("h4", { class: "hs-title" });
  const both = h("figure", {}, h("div", { class: "hs-stack" }, picture(model, "input_png", "input_alt", { class: "hs-picture hs-under" }), over),
    h("figcaption", {}, "the channel on top of the input"));
  const blend = () => {
    over.style.opacity = Number(strength.value) / 100;
    value.textContent = `${strength.value} %`;
  };
  strength.addEventListener("input", blend);
  blend();
  const blending = h("div", { class: "hs-row" }, field("Opacity of the channel", strength), value);
  const input = h("figure", {}, picture(model, "input_png", "input_alt", { class: "hs-picture hs-big" }), h("figcaption", {}, "the input"));
  const numbers = h("p", { class: "hs-numbers" });
  const hint = h("p", { class: "hs-hint" }, "Click a map to enlarge it.");
  const panel = h("section", { class: "hs-large", "aria-label": "Selected channel" }, title,
    h("div", { class: "hs-columns" }, both,
      h("figure", {}, picture(model, "large", "large_alt", { class: "hs-picture hs-big" }), h("figcaption", {}, "the channel")), input),
    blending, numbers);
  const show = () => {
    const channel = model.get("channel");
    panel.hidden = channel < 0 || !model.get("large").byteLength;
    hint.hidden = !panel.hidden || model.get("boxes").length < 1;
    title.textContent = `Channel ${channel}`;
    numbers.textContent = model.get("large_alt");
    const hasInput = model.get("input_png").byteLength > 0;
    input.hidden = both.hidden = blending.hidden = !hasInput;
  };
  show();
  listen(model, panel, "channel large over large_alt input_png", show);
  return h("div", { class: "hs-one" }, hint, panel);
}

function factsList(model) {
  const list = h("dl", { class: "hs-facts" });
  const all = h("table");
  const details = h("details", {}, h("summary", {}, "Statistics of each channel in the image"), h("div", { class: "hs-scroll", tabindex: "0", role: "group", "aria-label": "Numbers" }, all));
  const show = () => {
    list.replaceChildren(...model.get("facts").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    if (details.open) fill();
  };
  const fill = () => {
    const rows = model.get("rows");
    const heads = [...new Set(rows.flatMap(Object.keys))];
    all.replaceChildren(
      h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...heads.map((head, index) =>
        h(index ? "td" : "th", index ? {} : { scope: "row" }, short(row[head])))))));
  };
  details.addEventListener("toggle", () => details.open && fill());
  show();
  listen(model, list, "facts", show);
  listen(model, list, "rows", () => details.open && fill());
  return h("div", {}, list, details);
}

/** All controls except layer and channel, in a <details> that starts closed. */
function more(model, filters) {
  const counted = (count, from, name) => Array.from({ length: count }, (_, index) => [index + from, name(index + from)]);
  const show = choice(model, "show", SHOWS);
  const target = choice(model, "target", [], Number);
  const call = choice(model, "call", [], Number);
  const part = choice(model, "part", []);
  const sample = choice(model, "sample", [], Number);
  const order = choice(model, "order", ORDERS);
  const scale = choice(model, "scale", [["channel", "one per map"], ["shared", "same for all maps"]]);
  const size = choice(model, "per_page", [[16, "16"], [64, "64"], [256, "256"]], Number);
  const last = h("input", { type: "checkbox", onchange: () => put(model, { channels_last: last.checked }) });
  const back = h("button", { type: "button", onclick: () => put(model, { page: model.get("page") - 1 }) }, "‹ Previous");
  const on = h("button", { type: "button", onclick: () => put(model, { page: model.get("page") + 1 }) }, "Next ›");
  const where = h("span", { role: "status" });
  const again = h("button", { type: "button", title: "Run the model again, with its current weights and hooks",
    onclick: () => put(model, { _again: model.get("_again") + 1 }) }, "Run again");
  const fields = {
    target: field("of class", target), call: field("Call", call), part: field("Part", part), sample: field("Sample", sample),
    last: field("channels last", last), size: field("per page", size),
  };
  const paging = h("span", { class: "hs-field" }, back, where, on, fields.size);
  const update = () => {
    target.fill([[-1, "the highest"], ...model.get("targets").map((name, index) => [index, name])]);
    call.fill(counted(model.get("calls"), 1, (number) => `${number} of ${model.get("calls")}`));
    part.fill(model.get("parts").map((name) => [name, name || "output"]));
    sample.fill(counted(Math.min(model.get("samples"), 512), 0, String));
    last.checked = model.get("channels_last");
    fields.target.hidden = model.get("show") === "activation" || !model.get("targets").length;
    fields.call.hidden = model.get("calls") < 2;
    fields.part.hidden = model.get("parts").length < 2;
    fields.sample.hidden = model.get("samples") < 2;
    fields.last.hidden = !/\(N, (C, H, W|H, W, C)\)/.test(model.get("caption"));
    paging.hidden = model.get("boxes").length < 2 && model.get("pages") < 2;
    back.disabled = model.get("page") <= 0;
    on.disabled = model.get("page") >= model.get("pages") - 1;
    where.textContent = `page ${model.get("page") + 1} of ${model.get("pages")}`;
  };
  update();
  listen(model, back, "targets calls parts samples show caption page pages boxes channels_last", update);
  const folded = h("details", { class: "hs-more" },
    h("summary", {}, "More ", h("span", { class: "hs-hint" }, "choices: gradients, order and scale of the maps, run again")),
    h("div", { class: "hs-row" }, field("Show", show), fields.target, fields.call, fields.part, fields.sample),
    h("div", { class: "hs-row" }, field("Order", order), field("Scale", scale), fields.last, paging),
    h("div", { class: "hs-row" }, ...filters, again));
  const open = () => { folded.open = model.get("more"); };
  folded.addEventListener("toggle", () => {
    if (folded.open === model.get("more")) return;
    model.set("more", folded.open); // saved with the notebook; needs no answer from the kernel
    if (!folded.closest(".hs-still")) model.save_changes();
  });
  open();
  listen(model, folded, "more", open);
  return folded;
}

/** What the gradient is computed of, and the notices. They stay visible when <details> is closed. */
function notes(model) {
  const goal = h("p", { class: "hs-goal", role: "status" });
  const notices = h("ul", { class: "hs-notices", "aria-live": "polite" });
  const show = () => {
    goal.textContent = model.get("goal");
    goal.hidden = !goal.textContent;
    notices.replaceChildren(...model.get("notices").map((text) => h("li", {}, text)));
    notices.hidden = !model.get("notices").length;
  };
  show();
  listen(model, goal, "goal notices", show);
  return [goal, notices];
}

function draw(model, el) {
  const caption = h("p", { class: "hs-caption", role: "status" });
  const show = () => { caption.textContent = model.get("caption"); };
  show();
  listen(model, caption, "caption", show);
  const { list, filters } = layerList(model);
  const right = h("div", { class: "hs-right" }, more(model, filters), ...notes(model), mapGrid(model), caption, factsList(model), codePanel(model));
  stage(model, el, "Layer picker", h("div", { class: "hs-picker" }, list, right, largeView(model)));
  // The kernel draws the image at this width, so the browser does not scale it.
  const fit = new ResizeObserver(() => {
    const width = Math.max(240, Math.min(960, 20 * Math.floor(right.clientWidth / 20)));
    if (right.clientWidth && Math.abs(width - model.get("width")) >= 20) put(model, { width });
  });
  fit.observe(right);
  cleanups.get(model).push(() => fit.disconnect());
}

export default widget(draw);
