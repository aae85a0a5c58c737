// A question: buttons, one or several, a slider, cards or a field; and the second try, with a button that shows the answer.

function draw(model, el) {
  const kind = model.get("kind");
  const options = model.get("options");
  const SIGNS = { note: "ℹ", "not attempted": "…", wrong: "✗", right: "✓" };
  const sign = h("span", { "aria-hidden": "true" });
  const heading = h("strong", {});
  const message = h("span", {});
  const status = h("p", { class: "gs-said", role: "status" }, sign, " ", heading, " ", message);
  const tell = (answer) => put(model, { answer });

  /** Text with `code`, as elements. */
  const worded = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));

  const asks = {
    choices() {
      const buttons = options.map((name, at) => h("button", { type: "button", "aria-pressed": "false", onclick: () => {
        buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === at)));
        tell({ at });
      } }, name));
      return [h("div", { class: "hs-row", role: "group", "aria-label": "Your guess" }, ...buttons)];
    },
    several() {
      const buttons = options.map((name) => h("button", { type: "button", "aria-pressed": "false", onclick: ({ currentTarget }) =>
        currentTarget.setAttribute("aria-pressed", String(currentTarget.getAttribute("aria-pressed") !== "true")) }, name));
      const those = () => options.map((_, at) => at).filter((at) => buttons[at].getAttribute("aria-pressed") === "true");
      const done = h("button", { type: "button", onclick: () => { if (those().length) tell({ those: those() }); } }, "This is my guess");
      return [h("div", { class: "hs-row", role: "group", "aria-label": "Choose one or more" }, ...buttons, done)];
    },
    slider() {
      const [min, max, step] = model.get("range");
      const digits = String(step).includes(".") ? String(step).split(".")[1].length : 0;
      const control = h("input", { type: "range", min: String(min), max: String(max), step: String(step), ...ownKeys });
      control.value = String((min + max) / 2);
      const value = h("output", { class: "hs-value" });
      const show = () => { value.textContent = Number(control.value).toFixed(digits); };
      control.addEventListener("input", show);
      show();
      const done = h("button", { type: "button", onclick: () => tell({ number: Number(control.value) }) }, "This is my guess");
      return [h("div", { class: "hs-row" }, field("Your guess", control), value, done)];
    },
    cards() {
      const order = [];
      const list = h("ol", { class: "gs-order", "aria-label": "Your order" });
      const buttons = options.map((name) => h("button", { type: "button", onclick: () => { if (!order.includes(name)) change(() => order.push(name)); } }, name));
      const back = h("button", { type: "button", onclick: () => change(() => order.pop()) }, h("span", { "aria-hidden": "true" }, "↶ "), "Take back");
      const show = () => {
        list.replaceChildren(...options.map((_, at) => h("li", { class: at < order.length ? "gs-placed" : "gs-open" }, order[at] ?? "…")));
        buttons.forEach((button, at) => button.setAttribute("aria-disabled", String(order.includes(options[at]))));
        back.setAttribute("aria-disabled", String(!order.length));
      };
      const change = (how) => { how(); show(); tell({ order: [...order] }); };
      show();
      return [h("div", { class: "hs-row", role: "group", "aria-label": "Click in the order you expect" }, ...buttons, back), list];
    },
    field() {
      const control = h("input", { type: "text", size: "24", placeholder: model.get("example"), autocomplete: "off", ...ownKeys });
      const done = () => { if (control.value.trim()) tell({ text: control.value }); };
      control.addEventListener("keydown", (event) => { if (event.key === "Enter") done(); });
      return [h("div", { class: "hs-row" }, field("Your guess", control), h("button", { type: "button", onclick: done }, "This is my guess"))];
    },
  };
  const controls = h("div", { class: "gs-asks" }, ...asks[kind]());
  const reveal = h("button", { type: "button", class: "gs-reveal", onclick: () => tell("show") }, "Show the answer");
  reveal.hidden = !model.get("is_second");

  const show = () => {
    sign.textContent = SIGNS[model.get("mood")] ?? "ℹ";
    heading.replaceChildren(...worded(model.get("heading")));
    message.replaceChildren(...worded(model.get("message")));
    status.dataset.mood = model.get("mood");
    controls.hidden = model.get("is_over");
    reveal.hidden = model.get("is_over") || !model.get("is_second");
  };
  // A second try begins with what the first one revealed; a first one with the question above it.
  stage(model, el, model.get("is_second") ? "Second try" : "Your guess",
    ...(model.get("is_second") ? [status, controls, reveal] : [controls, status]));
  listen(model, status, "heading message mood is_over", show);
  show();
}

export default widget(draw);
