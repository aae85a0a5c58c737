const HEADS = {
  "tensor": "tensor", "value": "value", "is_leaf": "is_leaf", "requires_grad": "requires_grad", "retains_grad": "retains_grad",
  "arrived": "incoming gradient", "hook saw": "hook saw", "hook returned": "hook returned",
  ".grad before": ".grad before", ".grad after": ".grad after",
};

/** A word that can break after each "_" in a narrow column. */
const breakable = (text) => text.split("_").flatMap((part, index) => (index ? ["_", h("wbr"), part] : [part]));

/** An <input> for one number of a dict trait. Invalid text is reset when the input loses focus. */
function number(model, trait, name, label, otherwise) {
  const now = () => String(model.get(trait)[name] ?? otherwise);
  const control = h("input", { type: "number", step: "any", class: "gp-number", "aria-label": label, ...ownKeys });
  let last = now();
  control.value = last;
  const take = () => {
    const value = control.valueAsNumber;
    if (!Number.isFinite(value)) control.value = last;
    else if (String(value) !== last) {
      last = String(value);
      put(model, { [trait]: { ...model.get(trait), [name]: value } });
    }
  };
  control.addEventListener("change", take);
  control.addEventListener("keydown", (event) => { if (event.key === "Enter") take(); });
  const show = () => { if (now() !== last) control.value = last = now(); };
  return Object.assign(control, { show });
}

const RULES = [
  "The gradient 1 starts at the top box. On each arrow it is multiplied by the local gradient.",
  "Type your guess of every .grad: a number, or None. Then press Run backward, and choose the next of the four tasks.",
];
const STEP = 300 / SPEED; // milliseconds that a gradient takes for an arrow
const missing = (model) => model.get("shown").asks.filter((name) => !(name in model.get("guesses")));
const isAsked = (model) => model.get("shown").guess && model.get("task") >= 0;

/** Whether a guess is right, and if not, why: the reasons come with the run. */
function judge(model, name) {
  const text = model.get("guesses")[name];
  const answer = model.get("shown").answers[name];
  if (text === undefined || !answer || model.get("runs") !== 1) return null; // a guess is about the first pass
  const typed = text.toLowerCase() === "none" ? null : Number(text.replace(",", "."));
  const same = (value) => (typed === null || typeof value !== "number" ? typed === value
    : Math.abs(typed - value) <= Math.max(0.005 * Math.max(Math.abs(typed), Math.abs(value)), 1e-9));
  if (same(answer.right)) return { good: true, why: "" };
  const [, why] = answer.reasons.find(([value]) => same(value)) ?? [null, answer.otherwise];
  return { good: false, why: `${name}.grad is ${answer.shown}, and you wrote ${text}. ${why}` };
}

/** Gradients travel down the arrows of a graph, one step of the engine after the other. */
function traveler(done) {
  let frame = 0;
  let timer = 0;
  const stop = () => { cancelAnimationFrame(frame); clearTimeout(timer); };
  const show = (svg, stage) => {
    for (const part of svg.querySelectorAll("[data-from]")) part.classList.toggle("hs-later", Number(part.dataset.from) > stage);
    for (const part of svg.querySelectorAll("[data-until]")) part.classList.toggle("hs-later", Number(part.dataset.until) <= stage);
  };
  const start = (svg, arrows, moves) => {
    stop();
    const last = Math.max(0, ...arrows.map(({ stage }) => stage));
    const arrive = (stage) => {
      show(svg, stage);
      if (stage >= last) done();
      else if (calm()) timer = setTimeout(() => arrive(stage + 1), STEP);
      else fly(stage + 1);
    };
    const fly = (stage) => {
      const tokens = arrows.filter((arrow) => arrow.stage === stage).map(({ points, values }) => {
        const token = s("g", { class: "gp-token", "aria-hidden": "true" }, s("circle", { r: 8 }),
          s("text", { y: -13, "text-anchor": "middle" }, values.join(" + ")));
        svg.append(token);
        return [token, points];
      });
      let begun;
      const step = (now) => {
        begun ??= now;
        const share = Math.min((now - begun) / STEP, 1);
        for (const [token, points] of tokens) {
          const [x, y] = pointAlong(points, share);
          token.setAttribute("transform", `translate(${x} ${y})`);
        }
        if (share < 1) frame = requestAnimationFrame(step);
        else {
          for (const [token] of tokens) token.remove();
          arrive(stage);
        }
      };
      frame = requestAnimationFrame(step);
    };
    arrive(moves ? 0 : last);
  };
  return { start, stop };
}

/** The field for what a learner expects in one .grad. */
function guessField(model, name) {
  const control = h("input", { type: "text", class: "gp-guess", placeholder: "?", "aria-label": `your guess of ${name}.grad`,
    autocomplete: "off", ...ownKeys });
  const sign = h("span", { class: "gp-sign" });
  const take = () => {
    const text = control.value.trim();
    const { [name]: old, ...others } = model.get("guesses");
    if (text === (old ?? "")) return;
    const fits = text.toLowerCase() === "none" || Number.isFinite(Number(text.replace(",", ".")));
    if (!fits) control.value = old ?? "";
    else put(model, { guesses: text ? { ...others, [name]: text } : others });
  };
  control.addEventListener("change", take);
  control.addEventListener("keydown", (event) => { if (event.key === "Enter") take(); });
  const show = (judged) => {
    const text = model.get("guesses")[name] ?? "";
    if (document.activeElement !== control || !text) control.value = text;
    control.readOnly = model.get("runs") > 0;
    sign.textContent = judged ? (judged.good ? "✓" : "✗") : "";
    sign.className = `gp-sign ${judged?.good ? "gp-good" : "gp-bad"}`;
    sign.setAttribute("aria-label", judged ? (judged.good ? "right" : "wrong") : "");
  };
  return { element: h("span", { class: "gp-guessing" }, control, sign), show };
}

/** A row per tensor: the value of a leaf, the choice of hook and retain_grad, and the factor of the hook. */
function chooser(model) {
  const asking = model.get("shown").guess;
  const body = h("tbody");
  const table = h("table", { class: "gp-choose" },
    h("thead", {}, h("tr", {}, ...["tensor", "value", asking ? "on it" : "you put on it", ...(asking ? ["your guess"] : [])].map((text) => h("th", { scope: "col" }, text)))),
    body);
  let drawn = "";
  let rows = [];
  const show = () => {
    const { tensors, kinds } = model.get("shown");
    const names = JSON.stringify(tensors);
    if (names !== drawn) {
      drawn = names;
      rows = tensors.map(({ name, made, leaf, free }) => {
        const value = leaf ? number(model, "values", name, `value of ${name}`, 0) : null;
        const factor = number(model, "factors", name, `factor of the hook on ${name}`, 2);
        const kind = h("select", { "aria-label": `what is put on ${name}`, disabled: !free, ...ownKeys },
          ...kinds.map((text) => h("option", { value: text }, text)));
        kind.addEventListener("change", () => put(model, { choices: { ...model.get("choices"), [name]: kind.value } }));
        const times = h("span", { class: "gp-factor" }, "× ", factor);
        const guess = asking ? guessField(model, name) : null;
        const row = h("tr", {},
          h("th", { scope: "row" }, leaf ? name : `${name} = ${made}`),
          h("td", {}, value),
          h("td", { title: free ? "" : "It does not require grad, so torch refuses a hook." }, h("div", { class: "gp-put" }, kind, times)),
          guess && h("td", {}, guess.element));
        return { name, free, value, factor, kind, times, row, guess };
      });
      body.replaceChildren(...rows.map(({ row }) => row));
    }
    table.classList.toggle("gp-locked", isAsked(model));
    for (const { name, free, value, factor, kind, times, guess } of rows) {
      kind.value = model.get("choices")[name] ?? "nothing";
      times.classList.toggle("gp-off", !kind.value.includes("hook"));
      const locked = isAsked(model);
      if (value) value.disabled = locked;
      kind.disabled = locked || !free;
      factor.disabled = locked || !kind.value.includes("hook");
      if (guess) guess.element.hidden = !model.get("shown").asks.includes(name);
      value?.show();
      factor.show();
    }
  };
  const judgeAll = (known) => {
    for (const { name, guess } of rows) guess?.show(known ? judge(model, name) : null);
  };
  show();
  listen(model, table, "shown choices values factors task", show);
  return { table, judgeAll };
}

function draw(model, el) {
  const shown = () => model.get("shown"); // all that is drawn; Python makes it
  const own = model.get("expression");
  const pairs = shown().expressions;
  const expression = choice(model, "expression", pairs.some(([name]) => name === own) ? pairs : [...pairs, [own, own]]);
  expression.classList.add("gp-expression");
  listen(model, expression, "expression", () => {
    const text = model.get("expression");
    if (![...expression.options].some((option) => option.value === text)) expression.fill([...shown().expressions, [text, text]]);
  });
  const again = (wanted) => { if (wanted && !(isAsked(model) && missing(model).length)) put(model, { runs: model.get("runs") + 1 }); };
  const run = h("button", { class: "hs-lit gp-run", onclick: () => again(run.getAttribute("aria-disabled") !== "true") }, "Run backward");
  // In a game, "Start again" leads from everywhere to the beginning of a task, at most one click after the other.
  let left = Math.max(0, model.get("task")); // the task to come back to
  const atStart = () => model.get("runs") === 0 && (!shown().guess || (isAsked(model) && !Object.keys(model.get("guesses")).length));
  const startAgain = () => {
    if (atStart()) return;
    if (model.get("runs") > 0) put(model, { runs: 0 });
    else put(model, { task: left, runs: 0, guesses: {} });
  };
  const restart = h("button", { onclick: startAgain }, "Start again");
  const times = h("span", { class: "gp-times", role: "status" });
  const names = [...shown().tasks.map((name, at) => [String(at), name]), ["-1", "Your own"]];
  // A new task begins before its first pass, without guesses.
  const tasks = shown().guess ? choice(model, "task", names, Number, { runs: 0, guesses: {} }) : null;
  const words = h("p", { class: "gp-words", role: "status" });
  const rules = model.get("shown").guess ? h("ol", { class: "gp-rules" }, ...RULES.map((text) => h("li", {}, text))) : null;
  const ownParts = [field("Expression", expression), field("set .grad of the leaves to None before each pass", checkbox(model, "zero_grad"))];

  const graph = h("div", { class: "gp-graph" });
  const key = h("p", { class: "gp-key" }, "On each arrow: incoming gradient × local gradient of the step = gradient of the operand.");
  const said = h("p", { class: "gp-score", role: "status" });
  const notes = h("ul", { class: "gp-notes", "aria-live": "polite" });
  const body = h("tbody");
  const table = h("table", { class: "gp-numbers" },
    h("thead", {}, h("tr", {}, ...Object.values(HEADS).map((text) => h("th", { scope: "col" }, ...breakable(text))))),
    body);
  const source = h("pre", { class: "gp-code", tabindex: "0", role: "region", ...ownKeys, "aria-label": "torch code of these choices" });
  const copied = h("span", { role: "status" });
  const copy = h("button", {
    onclick: async () => {
      copied.textContent = (await copyOrSelect(shown().code, source)) ? "Copied." : "Selected; press Ctrl+C.";
    },
  }, "Copy the code");

  const chosen = chooser(model);
  // What a learner wrote stands in the box, beside the value.
  const writeGuesses = (svg, drawing, known) => {
    for (const old of svg.querySelectorAll(".gp-yours")) old.remove();
    for (const { name, x, y, width, height } of drawing.boxes) {
      const text = model.get("guesses")[name];
      if (text === undefined) continue;
      const judged = known ? judge(model, name) : null;
      const kind = judged ? (judged.good ? "gp-good" : "gp-bad") : "";
      svg.append(s("text", { class: `gp-yours ${kind}`, x: x + width - 9, y: y + height - 14, "text-anchor": "end" },
        `you: ${text}${judged ? (judged.good ? " ✓" : " ✗") : ""}`));
    }
  };
  let svg = null;
  let drawn = ""; // the run that is shown
  const tell = () => {
    const { drawing, notes: sentences } = model.get("shown");
    const judged = model.get("shown").asks.map((name) => judge(model, name)).filter(Boolean);
    writeGuesses(svg, drawing, true);
    chosen.judgeAll(true);
    said.textContent = judged.length ? `${judged.filter(({ good }) => good).length} of ${judged.length} right` : "";
    const wrong = judged.filter(({ good }) => !good).map(({ why }) => h("li", { class: "gp-why" }, why));
    notes.replaceChildren(...wrong, ...sentences.map((text) => h("li", {}, text)));
    graph.dataset.travels = "no";
  };
  const way = traveler(tell);
  cleanups.get(model)?.push(way.stop);

  const show = () => {
    const { drawing, rows, code, times: passes, most, words: task } = model.get("shown");
    const runs = model.get("runs");
    const now = JSON.stringify([drawing, runs]);
    if (now !== drawn) {
      const moves = drawn !== "" && runs > 0;
      drawn = now;
      svg = boxes(drawing, model.get("alt"));
      graph.replaceChildren(svg, key);
      graph.dataset.travels = moves ? "yes" : "no";
      said.textContent = "";
      notes.replaceChildren();
      chosen.judgeAll(false);
      writeGuesses(svg, drawing, false);
      way.start(svg, drawing.arrows, moves);
    } else if (graph.dataset.travels === "no") tell();
    key.classList.toggle("gp-off", runs === 0);
    words.textContent = task;
    body.replaceChildren(...rows.map((row) => h("tr", {}, ...Object.keys(HEADS).map((key, index) =>
      index ? h("td", {}, row[key]) : h("th", { scope: "row" }, row[key])))));
    if (source.textContent !== code) copied.textContent = "";
    source.textContent = code;
    const open = isAsked(model) ? missing(model) : [];
    times.textContent = runs === 0 && open.length ? `still to guess: ${open.map((name) => `${name}.grad`).join(", ")}` : passes;
    run.setAttribute("aria-disabled", String(runs >= most || (runs === 0 && open.length > 0)));
    restart.setAttribute("aria-disabled", String(atStart()));
    const locked = isAsked(model);
    if (locked) left = model.get("task");
    for (const part of ownParts) part.hidden = locked;
    if (rules) rules.hidden = !locked;
  };
  show();
  listen(model, el, "shown guesses runs task", show);

  const live = model.get("shown").guess ? null : field("run at every change", checkbox(model, "live"));
  stage(model, el, "Gradient playground", rules,
    h("div", { class: "gp-columns" },
      h("div", { class: "gp-side" },
        h("div", { class: "hs-row" }, tasks && field("Task", tasks), ownParts[0]),
        words, chosen.table,
        h("div", { class: "hs-row" }, run, restart, times),
        h("div", { class: "hs-row" }, ownParts[1], live),
        said, notes),
      graph),
    h("details", { class: "gp-source gp-all" }, h("summary", {}, "The numbers in the graph"),
      h("div", { class: "gp-wide", tabindex: "0", role: "region", ...ownKeys, "aria-label": "numbers" }, table)),
    h("details", { class: "gp-source" }, h("summary", {}, "The same in plain torch"), source,
      h("div", { class: "hs-row" }, copy, copied)));
}

export default widget(draw);
