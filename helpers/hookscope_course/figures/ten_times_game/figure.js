// The ten-times table: mark the cells that change, run the row, and see which were right, and why the others were not.

function draw(model, el) {
  const rows = model.get("_rows");
  const columns = model.get("_columns");
  const plain = model.get("_plain");
  const marked = (kind) => model.get("marks")[kind] ?? [];
  const revealed = (kind) => model.get("revealed").includes(kind);
  const guessed = (kind) => marked(kind).length > 0; // each hook changes something, so no mark is no guess
  const wrong = ([kind, , , , , changes]) => columns.filter((name, at) => guessed(kind) && marked(kind).includes(name) !== changes[at]);

  const say = h("p", { class: "sc-say", role: "status" });
  const why = h("div", { class: "tt-why", role: "status" });
  let told = null; // the row whose reasons stand below the table, where they move no row
  const lines = rows.map((row) => {
    const [kind, name, does, values, , changes] = row;
    const cells = columns.map((column, at) => {
      const button = h("button", { type: "button", class: "tt-cell", onclick: () => {
        if (revealed(kind)) return;
        const now = marked(kind);
        const next = now.includes(column) ? now.filter((each) => each !== column) : [...now, column];
        put(model, { marks: { ...model.get("marks"), [kind]: columns.filter((each) => next.includes(each)) } });
      } });
      const show = () => {
        const [on, known, right] = [marked(kind).includes(column), revealed(kind), changes[at]];
        const [judged, good] = [known && guessed(kind), on === right];
        button.setAttribute("aria-pressed", String(on));
        button.setAttribute("aria-disabled", String(known));
        mark(button, "tt-known", known);
        mark(button, "sc-changed", known && right);
        mark(button, "tt-wrong", judged && !good);
        const said = known ? `${values[at]}` : on ? "×10" : String(plain[at]);
        button.replaceChildren(h("span", {}, said), judged ? h("span", { class: good ? "tt-good" : "tt-bad", "aria-hidden": "true" }, good ? " ✓" : " ✗") : "");
        const guess = judged ? `you say it ${on ? "changes" : "stays"}, ${good ? "right" : "wrong"}` : "not guessed";
        button.setAttribute("aria-label", known ? `${column} with the ${name}: ${right ? "becomes" : "stays"} ${values[at]}; ${guess}` : `the ${name} changes ${column}`);
      };
      return { button, show };
    });
    const act = h("button", { type: "button", class: "tt-run", "aria-label": `Run the ${name}`, onclick: () => run([kind]) }, "Run");
    const result = h("button", { type: "button", class: "tt-result", "aria-label": `Why, for the ${name}`, onclick: () => { told = row; render(); } });
    const line = h("tr", {}, h("th", { scope: "row" }, name, h("code", {}, does)),
      ...cells.map(({ button }) => h("td", {}, button)), h("td", { class: "tt-act" }, act, result));
    const show = () => {
      const known = revealed(kind);
      const missed = wrong(row);
      for (const cell of cells) cell.show();
      act.hidden = known;
      result.hidden = !known;
      mark(result, "tt-told", told === row);
      const count = h("span", { class: missed.length ? "tt-bad" : "tt-good" }, `${columns.length - missed.length} of ${columns.length}`);
      result.replaceChildren(guessed(kind) ? count : "no guess", " why?");
    };
    return { row, line, show, act, first: cells[0].button };
  });

  const run = (kinds) => {
    const known = rows.map(([kind]) => kind).filter((kind) => revealed(kind) || kinds.includes(kind));
    told = rows.find((row) => kinds.includes(row[0]) && wrong(row).length) ?? rows.find(([kind]) => kinds.includes(kind));
    put(model, { revealed: known });
    render();
    const next = lines.find(({ row: [kind] }) => !known.includes(kind));
    (next?.first ?? over).focus({ preventScroll: true });
  };
  const all = h("button", { type: "button", onclick: () => run(rows.map(([kind]) => kind)) }, "Run all rows");
  const over = h("button", { type: "button", onclick: () => { told = null; put(model, { revealed: [], marks: {} }); render(); lines[0].first.focus({ preventScroll: true }); } }, "Start over");
  const head = ["each hook multiplies by ten", ...columns].map((name) => h("th", { scope: "col" }, ...name.split(/(?<=\.)/).flatMap((part, at) => (at ? [h("wbr"), part] : [part]))));
  const none = h("tr", { class: "tt-plain" }, h("th", { scope: "row" }, "no hook"), ...plain.map((value) => h("td", {}, String(value))), h("td"));
  const table = h("table", { class: "tt-table" }, h("thead", {}, h("tr", {}, ...head, h("td"))),
    h("tbody", {}, none, ...lines.map(({ line }) => line)));

  /** The reasons for one row: the last that was run, or the one whose "why?" was pressed. */
  const explain = () => {
    if (told && !revealed(told[0])) told = null;
    const [, name, , values, reasons, changes] = told ?? rows[0];
    const missed = told ? wrong(told) : [];
    why.replaceChildren(...(told ? [h("p", {}, h("b", {}, `The ${name}`)), ...columns.map((column, at) => {
      const good = !missed.includes(column);
      const sign = h("span", { class: good ? "tt-good" : "tt-bad", "aria-label": good ? "right" : "wrong" }, good ? "✓ " : "✗ ");
      return h("p", { class: "tt-reason" }, guessed(told[0]) ? sign : "",
        h("b", {}, `${column} ${changes[at] ? "becomes" : "stays"} ${values[at]}: `), reasons[at]);
    })] : [h("p", { class: "tt-soft" }, "When you have run a row, the reasons stand here.")]));
  };
  const render = () => {
    for (const line of lines) line.show();
    explain();
    const known = model.get("revealed").length;
    const counted = rows.filter(([kind]) => revealed(kind) && guessed(kind));
    const right = counted.filter((row) => !wrong(row).length).length;
    const open = known - counted.length;
    const score = [
      counted.length ? `${right} of ${counted.length} rows right${known < rows.length ? " so far" : ""}` : "",
      open ? `${open}${counted.length ? "" : open === 1 ? " row" : " rows"} not guessed` : "",
    ].filter(Boolean).join("; ");
    all.setAttribute("aria-disabled", String(known === rows.length));
    say.textContent = !known ? "Which values become ten times as large? Mark them in one row, then run it." :
      known < rows.length ? `${score}. Mark the next row, then run it.` : `${score}.`;
  };
  const root = stage(model, el, "The ten-times table", h("div", { class: "sc-figure tt-figure" }, say, table, why, h("div", { class: "sc-player" }, all, over)));
  root.classList.add("hs-alone"); // everything is on the page
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    const grid = lines.map(({ line }) => [...line.querySelectorAll("button:not([hidden])")]);
    const row = grid.findIndex((buttons) => buttons.includes(event.target));
    actOn(event, step && row >= 0 && (() => {
      const to = grid[Math.min(Math.max(row + step[0], 0), grid.length - 1)];
      to[Math.min(Math.max(grid[row].indexOf(event.target) + step[1], 0), to.length - 1)].focus();
    }));
  });
  listen(model, root, "marks revealed", render);
  render();
}

export default widget(draw);
