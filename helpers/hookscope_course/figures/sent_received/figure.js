/** Whether the reader is still to say which image is read rightly. */
const open = (model) => Boolean(model.get("_shown").ask) && !model.get("picked");

/** The question, and what happened once it is answered. */
function said(model) {
  const text = h("p", { class: "dg-sentence", role: "status" });
  const show = () => {
    const { ask, sentence } = model.get("_shown");
    const right = model.get("picked") === "sent" ? "Right. " : "No, the other one. ";
    text.textContent = open(model) ? ask : `${ask ? right : ""}${sentence}`;
  };
  show();
  listen(model, text, "_shown picked", show);
  return text;
}

/** An image with its name above, and its two best scores below when the question is answered. */
function side(model, name) {
  const title = h("strong", { class: "se-title" });
  const image = h("img", { class: "dg-image" });
  const pick = h("button", { type: "button", class: "se-pick", onclick: () => open(model) && put(model, { picked: name }) }, image);
  const given = h("span");
  const scores = bars([given]);
  const show = () => {
    const shown = model.get("_shown")[name];
    title.textContent = shown.title;
    given.textContent = shown.given;
    Object.assign(image, { src: shown.src, alt: shown.alt });
    scores.show(shown.best, shown.read);
    scores.table.style.visibility = open(model) ? "hidden" : "";
    pick.setAttribute("aria-disabled", String(!open(model)));
  };
  show();
  listen(model, image, "_shown picked", show);
  return h("div", { class: `se-side se-${name}` }, title, pick, scores.table);
}

const [WIDE, HIGH, Y] = [640, 150, 62];
const MODULES = { door: [180, 514], layer: [300, 390] }; // entrance and exit, from the left

/** The way of the image through the model. The hook sits at the exit of a module; `args` brings it what went in. */
function way(model) {
  const names = model.get("_places");
  const picture = scene([WIDE, HIGH], "");
  picture.setAttribute("aria-hidden", "true");
  const inside = names.layer.split(".").pop();
  const door = (x) => s("rect", { class: "sc-door", x: x - 9, y: Y - 20, width: 18, height: 40, rx: 6 });
  const reads = s("text", { x: 550, y: Y + 6, "font-size": 17 });
  const given = s("path", { class: "se-look" });
  const look = s("path", { class: "se-look" });
  const tip = (x, y, way) => s("polygon", { class: "se-arrow", points: `${x},${y} ${x - 6},${y - 11 * way} ${x + 6},${y - 11 * way}` });
  const taken = tip(0, Y + 14, -1);
  const hook = s("g", { class: "se-peg" }, s("circle", { r: 14 }), ...eye());
  picture.append(
    frame([180, 6, 334, 120], [], names.door, [347, 24], 15),
    frame([300, Y - 26, 90, 52], [], inside, [345, Y - 9], 15),
    rail([[120, HIGH], [120, Y], [171, Y]], "forward"),
    rail([[189, Y], [291, Y]], "forward"),
    rail([[390, Y], [543, Y]], "forward"),
    ...Object.values(MODULES).flat().map(door), given, taken, look, tip(520, HIGH, 1), hook,
    words(["args[0]"], [345, 119], { size: 13 }), reads);
  const show = () => {
    const [entrance, exit] = MODULES[model.get("place")];
    move(hook, [exit, Y]);
    given.setAttribute("d", `M${entrance} ${Y + 20}V105H${exit - 6}V${Y + 25}`);
    move(taken, [exit - 6, 0]);
    look.setAttribute("d", `M${exit + 6} ${Y + 12}V136H520V${HIGH - 6}`);
    reads.textContent = model.get("_shown").received.reads;
  };
  show();
  listen(model, picture, "place _shown", show);
  return picture;
}

/** Where the hook is: at the door of the model, or at the layer. */
const places = (model) => switches(model, "place", ["layer", "door"].map((place) => [place, model.get("_places")[place]]),
  { label: "Where the hook is", text: "The hook is on", look: (place) => ({ "data-place": place }) });

function draw(model, el) {
  stage(model, el, "Sent and received", said(model), places(model), h("div", { class: "se-figure" }, way(model),
    h("div", { class: "se-both" }, side(model, "sent"), side(model, "received"))));
}

export default widget(draw);
