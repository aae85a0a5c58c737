// The symptom tree: click a symptom, answer the questions that it leads to, and land on the cause and the cure.

function draw(model, el) {
  const tree = model.get("_tree");
  const symptoms = h("div", { class: "st-symptoms", role: "group", "aria-label": "What do you see?" });
  const asks = h("div", { class: "st-asks" });
  const cure = h("div", { class: "st-cure", role: "status" });
  const lines = s("svg", { class: "st-lines", "aria-hidden": "true" });
  const yours = h("section", { class: "st-yours", "aria-label": "Your model" });
  const columns = h("div", { class: "st-columns" }, lines, symptoms, asks, cure);
  const go = (path, key) => {
    put(model, { path });
    show();
    columns.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  };

  /** The steps of the path: each question with the answer that was clicked, and the cure, if it is reached. */
  const steps = () => {
    const path = model.get("path");
    const found = [];
    let place = tree[path[0]];
    for (let at = 1; place?.question; at++) {
      found.push({ ...place, at, chosen: path[at] });
      place = place.answers.find(([answer]) => answer === path[at])?.[1];
    }
    return { found, end: place };
  };
  const button = (text, path, key, pressed) =>
    h("button", { type: "button", class: "st-step", "data-key": key, "aria-pressed": String(pressed), onclick: () => go(path, key) }, text);
  const card = ({ question, tool, answers, at, chosen }) => {
    const path = model.get("path").slice(0, at);
    return h("section", { class: "st-ask", "aria-label": question }, h("p", { class: "st-question" }, question), h("code", {}, tool),
      h("div", { class: "st-answers", role: "group", "aria-label": "What do you find?" },
        ...answers.map(([answer]) => button(answer, [...path, answer], `${at} ${answer}`, answer === chosen))));
  };
  /** What diagnose has found on the reader's model: the first finding, and the others below it. */
  const found = model.get("_found");
  const line = (code) => codeBlock("What to write", code);
  if (found.rows) {
    const [first, ...others] = found.rows;
    yours.append(h("p", { class: "st-head" }, found.caption), h("p", { class: "st-cause" }, first.finding), h("p", {}, first.evidence), line(first.write),
      ...others.map((row) => h("p", { class: "st-other" }, `${row.finding} ${row.evidence}`)));
  }
  const show = () => {
    const path = model.get("path");
    const { found, end } = steps();
    const key = columns.contains(document.activeElement) ? document.activeElement.dataset.key : undefined; // it is drawn anew
    symptoms.replaceChildren(h("p", { class: "st-head" }, "What do you see?"),
      ...Object.keys(tree).map((symptom) => button(symptom, [symptom], `0 ${symptom}`, symptom === path[0])));
    asks.replaceChildren(h("p", { class: "st-head" }, "Ask"),
      ...(found.length ? found.map(card) : [h("p", { class: "st-empty" }, "Click what you see.")]));
    cure.replaceChildren(h("p", { class: "st-head" }, "It was"), ...(end ? [h("div", { class: "st-end" },
      h("p", { class: "st-cause" }, end.cause), h("p", {}, end.cure),
      line(end.code))]
      : [h("p", { class: "st-empty" }, "")]));
    link();
    if (key !== undefined) columns.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  };

  /** Draw the path: from the symptom to the first question, from each answer to the next one, and to the cure. */
  const link = () => {
    const base = columns.getBoundingClientRect();
    if (!base.width) return;
    const at = (element) => {
      const { left, top, width, height } = element.getBoundingClientRect();
      return { left: left - base.left, top: top - base.top, right: left - base.left + width, bottom: top - base.top + height, x: left - base.left + width / 2, y: top - base.top + height / 2 };
    };
    const [last, end] = [asks.lastElementChild, cure.querySelector(".st-end")];
    if (end) { // beside the last question, where there are columns
      end.style.marginTop = "0";
      const beside = at(end).left >= at(last).right;
      end.style.marginTop = `${beside ? Math.max(0, at(last).top - at(end).top) : 0}px`;
    }
    const pressed = [...columns.querySelectorAll('.st-step[aria-pressed="true"]')];
    const targets = [...asks.querySelectorAll(".st-ask"), ...cure.querySelectorAll(".st-end")];
    const paths = pressed.slice(0, targets.length).map((from, place) => {
      const [start, end] = [at(from), at(targets[place])];
      if (end.left >= start.right) {
        const [y, bend] = [Math.min(end.top + 22, end.bottom), (start.right + end.left) / 2];
        return `M${start.right} ${start.y}C${bend} ${start.y} ${bend} ${y} ${end.left} ${y}`;
      }
      const bend = (start.bottom + end.top) / 2;
      return `M${start.x} ${start.bottom}C${start.x} ${bend} ${end.x} ${bend} ${end.x} ${end.top}`;
    });
    lines.setAttribute("viewBox", `0 0 ${base.width} ${base.height}`);
    lines.replaceChildren(...paths.map((d) => s("path", { d })));
  };

  show();
  listen(model, columns, "path", show);
  const over = h("button", { type: "button", onclick: () => go([], `0 ${model.get("path")[0] ?? ""}`) }, "Start over");
  const figure = h("div", { class: "sc-figure st-figure" }, ...(found.rows ? [yours] : []), columns, h("div", { class: "sc-player" }, over));
  stage(model, el, "The symptom tree", figure).classList.add("hs-alone");
  const watch = new ResizeObserver(link);
  watch.observe(columns);
  cleanups.get(model)?.push(() => watch.disconnect());
}

export default widget(draw);
