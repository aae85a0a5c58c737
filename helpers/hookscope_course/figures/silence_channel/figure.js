/** The maps, eight in a row; one of them is chosen by mouse or with the arrow keys. */
function maps(model) {
  const list = model.get("_maps");
  const tiles = list.map(({ src, label }, channel) => h("button", {
    type: "button", role: "radio", class: "si-tile", "aria-label": label, onclick: () => put(model, { channel }), ...ownKeys,
  }, h("img", { src, alt: "", class: "si-map", draggable: "false" }), h("span", { class: "si-number" }, String(channel)), h("span", { class: "si-tried" })));
  const grid = channelTiles(model, tiles, {
    class: "si-maps", "aria-label": "Channel", steps: { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -8, ArrowDown: 8 },
  });
  const show = () => {
    const [tried, { was }] = [model.get("tried"), model.get("_shown")];
    tiles.forEach((tile, channel) => {
      const read = tried[channel];
      tile.classList.toggle("si-flips", read !== undefined && read !== was);
      tile.querySelector(".si-tried").textContent = read === undefined ? "" : `→ ${read}`;
      tile.setAttribute("aria-label", list[channel].label + (read === undefined ? "" : `; silenced: reads ${read}`));
    });
  };
  show();
  listen(model, grid, "channel tried", show);
  return grid;
}

/** The factor on a slider, with the two places that matter most on buttons. */
function factor(model) {
  const { control, value } = slider(model, "factor", { min: 0, max: 2, step: 0.1, text: (times) => `× ${Number(times.toFixed(2))}` });
  const button = (times, text) => h("button", { type: "button", onclick: () => put(model, { factor: times }) }, text);
  return h("div", { class: "hs-row si-factor" }, field("factor", control), value, button(0, "Silence"), button(1, "As it is"));
}

function draw(model, el) {
  const map = h("img", { class: "dg-image si-changed" });
  const read = h("div", { class: "si-read" });
  const scores = bars(withAndWithout());
  const name = h("figcaption");
  const show = () => {
    const shown = model.get("_shown");
    Object.assign(map, { src: shown.map, alt: shown.alt });
    name.textContent = `channel ${model.get("channel")}`;
    read.textContent = shown.read;
    read.classList.toggle("si-flipped", shown.read !== shown.was);
    scores.show(shown.rows, shown.read);
  };
  const figure = (caption, content) => h("figure", {}, content, caption);
  const row = h("div", { class: "si-flow" },
    figure(h("figcaption", {}, "digit"), h("img", { class: "dg-image", src: model.get("_digit"), alt: "The digit that goes in" })),
    h("span", { class: "si-arrow", "aria-hidden": "true" }, "→"), figure(name, map),
    h("span", { class: "si-arrow", "aria-hidden": "true" }, "→"), figure(h("figcaption", {}, "reads"), read));
  show();
  listen(model, row, "_shown channel", show);
  stage(model, el, "Silence a channel", sentence(model),
    h("div", { class: "si-columns" },
      h("div", { class: "si-choose" }, maps(model), factor(model)),
      h("div", { class: "si-seen" }, row, scores.table),
      h("div", { class: "si-code" }, hookCode(model))));
}

export default widget(draw);
