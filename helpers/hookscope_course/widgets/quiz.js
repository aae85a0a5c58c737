// The order quiz: cards to click, the answer so far, and after "Reveal" the recorded order next to it.

function draw(model, el) {
  const cards = model.get("_cards");
  const phase = (name) => (name.startsWith("forward") ? "forward" : name.startsWith("step") ? "step" : "backward");
  const said = h("p", { class: "oq-said" });
  const why = h("p", { class: "oq-why" });
  const status = h("div", { role: "status" }, said, why); // screen readers read it out when it changes
  const question = h("p", { class: "oq-question" },
    `In which order do these ${cards.length} hooks fire? Click the first one, then the next…`);
  const list = h("ol", { class: "oq-list" });
  const result = h("div", { class: "oq-result" });

  const say = (text, reason = "") => {
    said.textContent = text;
    why.textContent = reason;
    why.hidden = !reason;
  };
  const answered = () => model.get("answer");
  const set = (answer, text) => { put(model, { answer }); say(text); };
  const left = (count) => (count === cards.length ? "All are placed. Press Reveal." : `${cards.length - count} left.`);
  const place = (at) => {
    if (buttons[at].getAttribute("aria-disabled") === "true") return;
    const answer = [...answered(), cards[at]];
    set(answer, `${cards[at]} is number ${answer.length}. ${left(answer.length)}`);
  };
  const takeBack = () => {
    const answer = [...answered()];
    if (model.get("revealed") || !answer.length) return;
    const name = answer.pop();
    set(answer, `${name} taken back. ${left(answer.length)}`);
  };
  const startOver = () => {
    result.replaceChildren();  // at once, because the kernel can be busy, and the result shows the answer
    said.classList.remove("oq-verdict");
    say("Started over.");
    put(model, { revealed: false, answer: [] });
  };
  const reveal = () => { if (!model.get("revealed")) put(model, { revealed: true }); };

  const buttons = cards.map((name, at) =>
    h("button", { type: "button", class: `oq-card oq-${phase(name)}`, onclick: () => place(at) }, name));
  const group = h("div", { class: "oq-cards", role: "group", "aria-label": "Hooks to place" }, ...buttons);
  const back = h("button", { type: "button", onclick: takeBack }, h("span", { "aria-hidden": "true" }, "↶ "), "Take back");
  const over = h("button", { type: "button", onclick: startOver }, h("span", { "aria-hidden": "true" }, "⟲ "), "Start over");
  const open = h("button", { type: "button", class: "oq-reveal", onclick: reveal }, "Reveal");

  const show = () => {
    const answer = answered();
    const revealed = model.get("revealed");
    // Cards with the same name are equal. Mark as many as used as were placed.
    const used = new Map();
    for (const name of answer) used.set(name, (used.get(name) ?? 0) + 1);
    buttons.forEach((button, at) => {
      const taken = (used.get(cards[at]) ?? 0) > 0;
      if (taken) used.set(cards[at], used.get(cards[at]) - 1);
      button.classList.toggle("oq-used", taken);
      button.setAttribute("aria-disabled", String(taken || revealed));
    });
    back.setAttribute("aria-disabled", String(revealed || !answer.length));
    over.setAttribute("aria-disabled", String(!revealed && !answer.length));
    open.setAttribute("aria-disabled", String(revealed));
    open.classList.toggle("hs-lit", answer.length === cards.length && !revealed);
    list.replaceChildren(...cards.map((_, at) =>
      h("li", { class: at < answer.length ? `oq-placed oq-${phase(answer[at])}` : "oq-open" }, answer[at] ?? "…")));
    list.hidden = group.hidden = question.hidden = revealed;
    list.setAttribute("aria-label", `Your order, ${answer.length} of ${cards.length}`);
  };

  const MARKS = { same: "✓ same", "first difference": "✗ first difference", differs: "✗ differs", missing: "– missing" };
  const showResult = () => {
    const { rows, verdict, why: reason } = model.get("_result");
    if (said.classList.toggle("oq-verdict", Boolean(rows))) say(verdict, reason);
    else say("");
    if (!rows) { result.replaceChildren(); return; }
    const line = ([you, torch, mark], at) => h("tr", { class: `oq-${mark.replace(" ", "-")}` },
      h("th", { scope: "row" }, String(at + 1)), h("td", {}, you), h("td", {}, torch), h("td", {}, MARKS[mark]));
    const head = ["#", "you", "torch", "mark"].map((name) => h("th", { scope: "col" }, name));
    result.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows.map(line))));
  };

  stage(model, el, "Order quiz", question,
    h("div", { class: "hs-columns" },
      group, h("div", { class: "oq-answer" }, h("div", { class: "hs-row" }, back, over, open), list, status, result)));
  listen(model, list, "answer revealed", show);
  listen(model, result, "_result", showResult);
  show();
  showResult();
}

export default widget(draw);
