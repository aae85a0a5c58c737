// Four sealed models: the symptom, four questions that cost a point, and a guess. All answers came with the widget.

function draw(model, el) {
  const { layers, mistakes, questions, worth, costs: [question, wrong], points: pointsLeft, replies } = model.get("_choices");
  const boxes = model.get("_boxes");
  const here = () => model.get("box") - 1;
  const same = (one, other) => one[0] === other[0] && one[1] === other[1];
  const isOpen = (at) => model.get("accused")[at].some((guess) => same(guess, boxes[at].right));
  const missed = (at) => model.get("accused")[at].filter((guess) => !same(guess, boxes[at].right)).length;
  const points = (at) => pointsLeft[model.get("asked")[at].length][Math.min(missed(at), worth)];
  const added = (trait, item) => model.get(trait).map((each, at) => (at === here() ? [...each, item] : each));

  const total = h("span", { class: "sm-total" });
  const tabs = boxes.map((box, at) =>
    h("button", { type: "button", class: "sm-tab", onclick: () => { put(model, { box: at + 1 }); show(); } }, `${at + 1} · ${box.title}`));
  const symptom = h("p", { class: "sm-symptom" });
  const asks = Object.entries(questions).map(([name, words]) =>
    h("button", { type: "button", class: "sm-ask", "data-question": name, onclick: () => ask(name) },
      h("code", {}, name), h("span", {}, words)));
  const answers = h("div", { class: "sm-answers", role: "log" });
  const layer = h("select", ownKeys, ...["", ...layers].map((each) => h("option", { value: each }, each || "which layer?")));
  const mistake = h("select", ownKeys, ...["", ...mistakes].map((each) => h("option", { value: each }, each || "which mistake?")));
  const accuse = h("button", { type: "button", class: "sm-accuse", onclick: () => go() }, "Break the seal");
  const row = h("div", { class: "hs-row sm-guess" }, field("Layer", layer), field("Mistake", mistake), accuse);
  const verdict = h("p", { class: "sm-verdict", role: "status", tabindex: "-1" });
  const reveal = h("div", { class: "sm-open" });

  const ask = (name) => {
    if (!model.get("asked")[here()].includes(name) && !isOpen(here())) put(model, { asked: added("asked", name) });
    show();
  };
  const go = () => {
    if (isOpen(here())) return;
    if (!layer.value || !mistake.value) { verdict.textContent = "Choose a layer and a mistake."; return; }
    put(model, { accused: added("accused", [layer.value, mistake.value]) });
    show();
    if (isOpen(here())) verdict.focus(); // the button is gone, and Shift+Enter must still mean this figure
  };
  const table = (rows) => {
    if (!rows.length) return h("p", {}, "This table has no rows.");
    const names = Object.keys(rows[0]);
    return h("div", { class: "sm-scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ...names.map((each) => h("th", { scope: "col" }, each)))),
      h("tbody", {}, ...rows.map((each) => h("tr", {}, ...names.map((name) => h("td", {}, String(each[name]))))))));
  };
  const said = (at) => {
    const guess = model.get("accused")[at].at(-1);
    const right = boxes[at].right;
    if (!guess) return "";
    const values = { layer: guess[0], mistake: guess[1], points: points(at), worth };
    const reply = fillNames(replies[Number(guess[0] === right[0])][Number(guess[1] === right[1])], values);
    return `${reply} ${boxes[at].reasons[guess[1]][guess[0]]}`.trim();
  };
  let drawn = "";
  const show = () => {
    const at = here();
    const opened = isOpen(at);
    const asked = model.get("asked")[at];
    tabs.forEach((tab, place) => {
      tab.setAttribute("aria-pressed", String(place === at));
      tab.classList.toggle("sm-done", isOpen(place));
      tab.textContent = `${place + 1} · ${boxes[place].title}${isOpen(place) ? ` ✓ ${points(place)}` : ""}`;
    });
    const score = boxes.reduce((sum, box, place) => sum + (isOpen(place) ? points(place) : 0), 0);
    const isOver = boxes.every((_, place) => isOpen(place));
    total.textContent = `${isOver ? "All seals are broken. " : ""}Your score: ${score} of ${worth * boxes.length}`;
    mark(total, "sm-over", isOver);
    symptom.textContent = boxes[at].symptom;
    for (const button of asks) {
      const used = asked.includes(button.dataset.question);
      button.setAttribute("aria-pressed", String(used));
      button.setAttribute("aria-disabled", String(used || opened));
    }
    const key = JSON.stringify([at, asked]);
    if (key !== drawn) {
      drawn = key;
      answers.replaceChildren(...asked.map((name) =>
        h("section", { class: "sm-answer", "aria-label": name }, h("h4", {}, h("code", {}, name)), table(boxes[at].answers[name]))));
    }
    row.hidden = opened;
    const left = said(at) && !opened ? ` ${points(at)} point${points(at) === 1 ? " is" : "s are"} left.` : "";
    const words = said(at) || `This box is worth ${points(at)} points now. A question costs ${question}, and a wrong guess costs ${wrong}.`;
    verdict.replaceChildren(...worded(words + left));
    verdict.classList.toggle("sm-right", opened);
    reveal.hidden = !opened;
    reveal.replaceChildren(...(opened ? [h("pre", { class: "hs-code", tabindex: "0", "aria-label": "The mistake" }, boxes[at].code), h("p", {}, boxes[at].cure)] : []));
  };
  const turn = () => { layer.value = ""; mistake.value = ""; show(); };
  show();
  listen(model, symptom, "box", turn);
  listen(model, symptom, "asked accused", show);
  const panel = h("div", { class: "sc-figure sm-figure" },
    h("div", { class: "hs-row sm-tabs", role: "group", "aria-label": "The boxes" }, ...tabs, total),
    h("div", { class: "sm-box" }, symptom,
      h("div", { class: "sm-asks", role: "group", "aria-label": "Questions" }, ...asks), answers, row, verdict, reveal));
  stage(model, el, "Four sealed models", panel).classList.add("hs-alone");
}

export default widget(draw);
