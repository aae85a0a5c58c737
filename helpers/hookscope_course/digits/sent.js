/** An image with its name above and its two best scores below. */
function side(model, name) {
  const title = h("strong", { class: "se-title" });
  const image = h("img", { class: "dg-image" });
  const given = h("span");
  const scores = bars([given]);
  const show = () => {
    const shown = model.get("_shown")[name];
    title.textContent = shown.title;
    given.textContent = shown.given;
    Object.assign(image, { src: shown.src, alt: shown.alt });
    scores.show(shown.best, shown.read);
  };
  show();
  listen(model, image, "_shown", show);
  return h("div", { class: `se-side se-${name}` }, title, image, scores.table);
}

/** The way from one image to the other, with the hook where it is. */
function way(model) {
  const peg = h("span", { class: "se-peg" });
  const road = h("div", { class: "se-way", "aria-hidden": "true" }, h("span", { class: "se-model" }, model.get("_places").door), h("span", { class: "se-line" }), peg);
  const show = () => { road.dataset.place = model.get("place"); };
  show();
  listen(model, road, "place", show);
  return road;
}

/** Where the hook is: at the door of the model, or at the layer. */
function places(model) {
  const names = model.get("_places");
  const buttons = ["door", "layer"].map((place) =>
    h("button", { type: "button", "data-place": place, onclick: () => put(model, { place }) }, place === "door" ? `the door of ${names.door}` : names[place]));
  const show = () => buttons.forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.place === model.get("place"))));
  const row = h("div", { class: "hs-row", role: "group", "aria-label": "Where the hook is" }, h("span", {}, "The hook is on"), ...buttons);
  show();
  listen(model, row, "place", show);
  return row;
}

function draw(model, el) {
  stage(model, el, "Sent and received", sentence(model), places(model),
    h("div", { class: "se-both" }, side(model, "sent"), way(model), side(model, "received")));
}

export default widget(draw);
