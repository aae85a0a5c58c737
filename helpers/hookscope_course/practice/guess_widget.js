// A question: buttons, one or several, a slider, cards or a field. After the cell has run: the same, and a button that shows
// the answer.

function draw(model, el) {
  const kind = model.get("kind");
  const options = model.get("options");
  const late = model.get("is_comparison");
  // Drawn anew, for example when the page is opened again, it shows what was chosen on it.
  const given = (!late && (model.get("answer") ?? model.get("begun"))) || model.get("given");
  const SIGNS = { note: "ℹ", "not attempted": "…", wrong: "✗", right: "✓" };
  const HOW = {
    choices: "Click your guess, or type it",
    slider: "Set the slider and click the button, or type a number",
    cards: "Click in the order you expect, or type it",
    several: "Click all that you expect, or type them",
    field: "Type your guess here, or",
  };
  const sign = h("span", { "aria-hidden": "true" });
  const heading = h("strong", {});
  const message = h("span", {});
  const status = h("p", { class: "gs-said", role: "status", tabindex: "-1" }, sign, " ", heading, " ", message);
  const how = h("p", { class: "gs-how" });
  const tell = (answer) => put(model, { answer });
  // In a field, Shift+Enter is a key of the field. From the status, it runs the cell and goes on to the next one.
  const leave = () => status.focus({ preventScroll: true });
  // After a choice by mouse the next cell is selected, so that Shift+Enter goes on. Who uses keys stays where she is.
  let isByMouse = false;
  el.addEventListener("click", (event) => { isByMouse = event.detail > 0; }, true);
  const goOn = () => {
    const next = el.closest(".jp-Cell")?.nextElementSibling;
    if (isByMouse && next?.matches(".jp-Cell")) next.focus({ preventScroll: true });
    return isByMouse && next?.contains(document.activeElement);
  };

  /** Text with `code`, **strong** and *emphasis*, as elements. */
  const MARKS = /`([^`]+)`|\*\*(\S|\S.*?\S)\*\*|(?<![\w*])\*([^\s*]|[^\s*][^*]*?[^\s*])\*(?![\w*])/g;
  const worded = (text) => {
    const parts = [];
    let from = 0;
    for (const found of text.matchAll(MARKS)) {
      const at = [1, 2, 3].find((each) => found[each] !== undefined);
      parts.push(text.slice(from, found.index), h(["code", "strong", "em"][at - 1], {}, found[at]));
      from = found.index + found[0].length;
    }
    return [...parts, text.slice(from)];
  };

  const asks = {
    choices() {
      const press = (at) => buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === at)));
      const buttons = options.map((name, at) => h("button", { type: "button", "aria-pressed": "false", onclick: () => {
        if (model.get("tried") === name) return;
        press(at);
        tell({ at });
        if (!late) goOn();
      } }, name));
      if (given) press(given.at);
      const show = () => buttons.forEach((button) => button.setAttribute("aria-disabled", String(model.get("tried") === button.textContent)));
      return [[h("div", { class: "hs-row", role: "group", "aria-label": "Your guess" }, ...buttons)], show];
    },
    several() { // each click is the guess, until the cell has run; then a button ends the second try
      const buttons = options.map((name) => h("button", { type: "button", "aria-pressed": "false", onclick: ({ currentTarget }) => {
        currentTarget.setAttribute("aria-pressed", String(currentTarget.getAttribute("aria-pressed") !== "true"));
        if (late) return;
        tell({ those: those() });
        goOn();
      } }, name));
      const those = () => options.map((_, at) => at).filter((at) => buttons[at].getAttribute("aria-pressed") === "true");
      const done = h("button", { type: "button", onclick: () => { if (those().length) tell({ those: those() }); } }, "This is my guess");
      if (given) given.those.forEach((at) => buttons[at].setAttribute("aria-pressed", "true"));
      return [[h("div", { class: "hs-row", role: "group", "aria-label": "Choose one or more" }, ...buttons, ...(late ? [done] : []))]];
    },
    slider() {
      const [min, max, step] = model.get("range");
      const digits = String(step).includes(".") ? String(step).split(".")[1].length : 0;
      const control = h("input", { type: "range", min: String(min), max: String(max), step: String(step), ...ownKeys });
      control.value = String(given ? given.number : (min + max) / 2);
      const value = h("output", { class: "hs-value" });
      const show = () => { value.textContent = Number(control.value).toFixed(digits); };
      control.addEventListener("input", show);
      control.addEventListener("change", () => put(model, { begun: { number: Number(control.value) } }));
      show();
      const done = h("button", { type: "button", onclick: () => {
        tell({ number: Number(control.value) });
        if (!late) goOn();
      } }, "This is my guess");
      return [[h("div", { class: "hs-row" }, field("Your guess", control), value, done)]];
    },
    cards() {
      let order = given ? [...given.order] : [];
      const list = h("ol", { class: "gs-order", "aria-label": "Your order" });
      const buttons = options.map((name) => h("button", { type: "button", onclick: () => { if (!order.includes(name)) change(() => order.push(name)); } }, name));
      const back = h("button", { type: "button", onclick: () => change(() => order.pop()) }, h("span", { "aria-hidden": "true" }, "↶ "), "Take back");
      const show = () => {
        list.replaceChildren(...options.map((_, at) => h("li", { class: at < order.length ? "gs-placed" : "gs-open" }, order[at] ?? "…")));
        buttons.forEach((button, at) => button.setAttribute("aria-disabled", String(order.includes(options[at]))));
        back.setAttribute("aria-disabled", String(!order.length));
      };
      const change = (how) => {
        how();
        show();
        put(model, { begun: { order: [...order] }, answer: { order: [...order] } });
        if (!late && order.length === options.length) goOn();
      };
      const judged = () => { // a second try begins with no card in its place
        if (model.get("mood") === "wrong") order = [];
        show();
      };
      show();
      return [[h("div", { class: "hs-row", role: "group", "aria-label": "Click in the order you expect" }, ...buttons, back), list], judged];
    },
    field() {
      const control = h("input", { type: "text", size: "24", placeholder: model.get("example"), autocomplete: "off", ...ownKeys });
      control.value = given?.text ?? "";
      const done = () => {
        if (!control.value.trim()) return;
        tell({ text: control.value });
        if (late || !goOn()) leave();
      };
      control.addEventListener("keydown", (event) => { if (event.key === "Enter") done(); });
      return [[h("div", { class: "hs-row" }, field("Your guess", control), h("button", { type: "button", onclick: done }, "This is my guess"))]];
    },
  };
  const [parts, judged] = asks[kind]();
  const controls = h("div", { class: "gs-asks" }, ...parts);
  const reveal = h("button", { type: "button", class: "gs-reveal", onclick: () => tell("show") }, "Show the answer");
  if (late) controls.append(reveal);

  const show = () => {
    // What is below must not move up under the mouse. Once the mouse is elsewhere, no gap stays.
    if (late && root.offsetHeight) root.style.minHeight = `${root.offsetHeight}px`;
    sign.textContent = SIGNS[model.get("mood")] ?? "ℹ";
    heading.replaceChildren(...worded(model.get("heading")));
    message.replaceChildren(...worded(model.get("message")));
    status.dataset.mood = model.get("mood");
    how.textContent = model.get("mood") === "not attempted" ? `${HOW[kind]} in place of ____. Then go on with Shift+Enter.` : "Go on with Shift+Enter.";
    judged?.();
    const over = model.get("is_over");
    if (over && controls.contains(document.activeElement) && !goOn()) leave();
    controls.inert = over;
    reveal.hidden = over;
  };
  const title = !late ? "Your guess" : model.get("mood") === "wrong" ? "Try again" : "Guess now";
  // After the cell has run, what is said comes first: that there is no guess, or what the first one revealed.
  const root = stage(model, el, title, ...(late ? [status, controls] : [controls, status, how]));
  root.classList.add("hs-runs-again"); // by keyboard, the cell of a guess is run again with the guess
  root.addEventListener("pointerleave", () => { root.style.minHeight = ""; });
  listen(model, status, "heading message mood tried is_over", show);
  show();
}

export default widget(draw);
