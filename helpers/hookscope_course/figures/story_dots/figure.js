const [WIDE, HIGH, EDGE] = [560, 46, 10]; // a row of dots
const say = (fall) => signed(fall.toFixed(2));

function draw(model, el) {
  const { names, falls, yours, means, texts, axis: [low, high] } = model.get("_data");
  const x = (fall) => EDGE + ((WIDE - 2 * EDGE) * (fall - low)) / (high - low);
  const y = (story) => 5 + ((story % 9) * (HIGH - 10)) / 8; // stories with the same fall stand one above the other
  const choose = (story) => tell(model, { story });
  const sentence = h("p", { class: "sd-sentence", "aria-live": "polite" });

  const rows = names.map((name, row) => {
    const order = texts.map((_, story) => story).sort((a, b) => falls[row][a] - falls[row][b]);
    const ring = s("circle", { class: "sd-chosen", r: 6 });
    const scene = s("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "sd-dots", "aria-hidden": "true" });
    scene.append(s("line", { class: "sd-zero", x1: x(0), x2: x(0), y1: 0, y2: HIGH }),
      ...falls[row].map((fall, story) => s("circle", { class: "sd-dot", cx: x(fall), cy: y(story), r: 3.5 })),
      s("line", { class: "sd-mean", x1: x(means[row]), x2: x(means[row]), y1: 0, y2: HIGH }),
      s("circle", { class: "sd-yours", cx: x(yours[row]), cy: HIGH / 2, r: 9 }), ring);
    const line = h("div", { class: "sd-row", role: "slider", tabindex: "0", "aria-label": `${name}, stories in order of the fall`,
      "aria-valuemin": "1", "aria-valuemax": String(texts.length), ...ownKeys }, scene);
    line.addEventListener("click", (event) => {
      const [across, down] = pointerAt(scene, event);
      const far = (story) => Math.hypot(x(falls[row][story]) - across, y(story) - down);
      const nearest = order.reduce((best, story) => (far(story) < far(best) ? story : best));
      if (far(nearest) < 10) choose(nearest);
    });
    line.addEventListener("keydown", (event) => {
      const now = order.indexOf(model.get("story")), last = order.length - 1;
      const to = { ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now < 0 ? last : now - 1, ArrowDown: now < 0 ? last : now - 1, Home: 0, End: last }[event.key];
      actOn(event, to !== undefined && (() => choose(order[Math.min(last, Math.max(0, to))])));
    });
    const show = () => {
      const story = model.get("story");
      ring.style.display = story < 0 ? "none" : "";
      if (story >= 0) { ring.setAttribute("cx", x(falls[row][story])); ring.setAttribute("cy", y(story)); }
      line.setAttribute("aria-valuenow", String(order.indexOf(story) + 1 || 1));
      line.setAttribute("aria-valuetext", story < 0 ? "no story chosen" : `${say(falls[row][story])}: ${texts[story]}`);
    };
    return { show, parts: [h("span", { class: "sd-name" }, name), line] };
  });

  const show = () => {
    const story = model.get("story");
    sentence.replaceChildren(...(story < 0 ? ["Click a dot, or use the arrow keys in a row, to read its story."] : [
      h("b", {}, `${texts[story]} …`), h("br"), names.map((name, row) => `${name}: ${say(falls[row][story])}`).join(" · ")]));
    for (const row of rows) row.show();
  };
  show();
  listen(model, sentence, "story", show);
  const key = (kind, text) => h("span", {}, h("span", { class: `sd-key ${kind}` }), text);
  const axis = h("div", { class: "sd-axis" }, h("span", {}, signed(low)), h("span", {}, "← better without"), h("span", {}, "fall of the logit difference"),
    h("span", {}, "the model needs it →"), h("span", {}, String(high)));
  const root = stage(model, el, "A dot for each story", h("div", { class: "sd-rows" }, ...rows.flatMap(({ parts }) => parts), h("span"), axis),
    h("div", { class: "hs-row sd-keys" }, key("sd-is-yours", "your story"), key("sd-is-mean", "the mean"), key("sd-is-chosen", "the story below")), sentence);
  root.classList.add("hs-alone");
}

export default widget(draw);
