// What the figures of the digits share.

/** One sentence above the figure that says what has just happened. */
function sentence(model) {
  const text = h("p", { class: "dg-sentence", role: "status" });
  const show = () => { text.textContent = model.get("_shown").sentence; };
  show();
  listen(model, text, "_shown", show);
  return text;
}

/** Scores as bars and as numbers; rows are [name, probability, what it was before]. */
function bars(caption) {
  const body = h("tbody");
  const table = h("table", { class: "dg-bars" }, h("caption", {}, ...caption), body);
  const line = () => h("tr", {}, h("th", { scope: "row" }),
    h("td", { class: "dg-track" }, h("div", { "aria-hidden": "true" }, h("span", { class: "dg-bar" }), h("span", { class: "dg-was" }))),
    h("td", { class: "dg-share" }));
  const show = (rows, read) => {
    while (body.children.length < rows.length) body.append(line());
    rows.forEach(([name, share, was], place) => {
      const row = body.children[place];
      row.classList.toggle("dg-best", name === String(read));
      row.children[0].textContent = name;
      row.querySelector(".dg-bar").style.width = `${100 * share}%`;
      row.querySelector(".dg-was").style.width = `${100 * (was ?? 0)}%`;
      row.querySelector(".dg-was").hidden = was === undefined;
      row.children[2].textContent = `${(100 * share).toFixed(1)} %`;
    });
  };
  return { table, show };
}

/** What the two kinds of bars are. */
const withAndWithout = (after = "with the hook", before = "without") => [["", after], ["dg-without", before]].map(([kind, text]) =>
  h("span", { class: "dg-legend" }, h("span", { class: `dg-key ${kind}` }), text));

/** Tiles of the channels: one is chosen by mouse or with the arrow keys. `steps` says how far each key goes. */
function channelTiles(model, tiles, { steps, pick = (channel) => put(model, { channel }), ...attributes }) {
  const onkeydown = (event) => actOn(event, steps[event.key] && (() => {
    const channel = model.get("channel") + steps[event.key];
    if (channel < 0 || channel >= tiles.length) return;
    pick(channel);
    tiles[channel].focus();
  }));
  const grid = h("div", { role: "radiogroup", onkeydown, ...attributes }, ...tiles);
  const show = () => tiles.forEach((tile, channel) => {
    tile.setAttribute("aria-checked", String(channel === model.get("channel")));
    tile.tabIndex = channel === model.get("channel") ? 0 : -1;
  });
  show();
  listen(model, grid, "channel", show);
  return grid;
}

/**
 * An image to press on. Args: follow(down, across): while the pointer is pressed, where it is in shares of the image.
 * onkeydown: what keys do. begin, end: called when the pointer goes down and up.
 */
function imagePad({ label, kind, follow, onkeydown, begin, end }, ...children) {
  const seek = (event) => {
    const { left, top, width, height } = event.currentTarget.getBoundingClientRect();
    follow((event.clientY - top) / height, (event.clientX - left) / width);
  };
  return h("div", {
    class: `${kind} ph-pad hs-light`, tabindex: "0", role: "group", "aria-label": label, ...ownKeys, onkeydown,
    onpointerdown: (event) => {
      if (event.button !== 0) return;
      begin?.();
      event.currentTarget.setPointerCapture(event.pointerId);
      seek(event);
    },
    onpointermove: (event) => { if (event.currentTarget.hasPointerCapture(event.pointerId)) seek(event); },
    onpointerup: () => end?.(),
  }, ...children);
}

/** Lay a square over an image whose sides are given in pixels. */
function layOver(element, [height, width], { row, column, size }) {
  const percent = (pixels, side) => `${(100 * pixels) / side}%`;
  Object.assign(element.style,
    { left: percent(column, width), top: percent(row, height), width: percent(size, width), height: percent(size, height) });
  return element;
}

/** The hook as it runs, to read and to copy. */
function hookCode(model) {
  const code = codeLines(model, "code", "The hook as code");
  const done = h("span", { role: "status" });
  listen(model, code, "code", () => { done.textContent = ""; });
  const copy = async () => {
    done.textContent = (await copyOrSelect(model.get("code"), code)) ? "Copied." : "Selected: press Ctrl+C.";
  };
  return h("div", { class: "dg-code" },
    h("div", { class: "hs-row" }, h("strong", {}, "The hook that does it"), h("button", { type: "button", onclick: copy }, "Copy"), done),
    code);
}
