/** What goes in, the maps that a click switches off, and what the model reads. */
function draw(model, el) {
  const list = model.get("_maps");
  const isOff = (channel) => model.get("channel") === channel && model.get("factor") === 0;
  const tiles = list.map(({ src, label }, channel) => h("button", {
    type: "button", class: "so-tile", "aria-label": `Switch off ${label}`, title: `channel ${channel}`,
    onclick: () => put(model, { channel, factor: isOff(channel) ? 1 : 0 }),
  }, h("img", { src, alt: "", draggable: "false" }), h("span", { class: "so-number", "aria-hidden": "true" }, String(channel))));
  const read = h("div", { class: "so-read" });
  const share = h("div", { class: "so-share" });
  const code = hookCode(model);
  const show = () => {
    code.hidden = model.get("factor") !== 0;
    const shown = model.get("_shown");
    tiles.forEach((tile, channel) => tile.setAttribute("aria-pressed", String(isOff(channel))));
    read.textContent = shown.read;
    read.classList.toggle("so-flipped", shown.read !== shown.was);
    share.textContent = `${(100 * shown.rows[Number(shown.read)][1]).toFixed(1)} %`;
  };
  show();
  listen(model, read, "_shown channel factor", show);
  const arrow = () => h("span", { class: "so-arrow", "aria-hidden": "true" }, "→");
  const part = (caption, ...content) => h("figure", {}, h("figcaption", {}, caption), ...content);
  stage(model, el, "Switch off a channel",
    h("div", { class: "so-flow" },
      part("This goes in", h("img", { class: "so-digit", src: model.get("_digit"), alt: "A handwritten 1" })), arrow(),
      part(`${list.length} channels of one layer. Click one: a hook sets it to 0.`, h("div", { class: "so-maps", role: "group", "aria-label": "Channels" }, ...tiles)), arrow(),
      part("The network reads", read, share), sentence(model)),
    code);
}

export default widget(draw);
