// Two grids, calls downwards and tokens to the right: mark the cells that a hook hits, run it, and compare.

function draw(model, el) {
  const { changes, runs, given, prompt, ways } = model.get("_data");
  const calls = given[0].length;
  const tokens = given[1][calls - 1];
  const start = (way, call) => (way === 0 ? given[0].slice(0, call).reduce((sum, count) => sum + count, 0) : 0);
  const isGiven = (way, call, token) => token >= start(way, call) && token < start(way, call) + given[way][call];
  const hits = (way) => runs[model.get("change")].ways[way].hits;
  const isHit = (way, call, token) => Boolean(hits(way)[call]?.includes(token));

  const say = h("p", { class: "sc-say", role: "status" });
  const choose = switches(model, "change", changes.map(([name]) => [name, h("code", {}, name)]), {
    label: "what the hook adds to", text: "The hook adds to", class: "hs-row kv-choose",
    pick: (change) => put(model, { change, marks: [], ran: false }),
  });

  const buttons = {};
  const cell = (way, call, token) => {
    if (!isGiven(way, call, token)) return h("td", { class: "kv-none" }, token < prompt + call ? h("span", { class: "kv-kept" }) : null);
    const key = `${way},${call},${token}`;
    const button = h("button", { type: "button", class: "kv-cell", tabindex: "-1", ...ownKeys, onfocus: () => roam(way, key), onclick: () => {
      if (model.get("ran")) return;
      const marks = model.get("marks");
      put(model, { marks: marks.includes(key) ? marks.filter((each) => each !== key) : [...marks, key] });
    } });
    buttons[key] = { button, way, call, token };
    return h("td", {}, button);
  };
  const grid = (way) => {
    const head = Array.from({ length: tokens }, (_, token) => h("th", { scope: "col", class: token < prompt ? "" : "kv-fresh" }, String(token)));
    const rows = Array.from({ length: calls }, (_, call) => {
      const cells = Array.from({ length: tokens }, (_, token) => cell(way, call, token));
      const row = h("tr", {}, h("th", { scope: "row" }, `call ${call + 1}`), ...cells);
      return { row, cells, call };
    });
    const error = h("td", { class: "kv-error", colspan: String(tokens) });
    const table = h("table", { class: "kv-grid" },
      h("caption", {}, h("b", {}, ways[way])),
      h("thead", {}, h("tr", {}, h("td"), h("th", { class: "kv-group", colspan: String(prompt), scope: "colgroup" }, "prompt"), h("th", { class: "kv-group kv-fresh", colspan: String(tokens - prompt), scope: "colgroup" }, "new")),
        h("tr", {}, h("td"), ...head)),
      h("tbody", {}, ...rows.map(({ row }) => row)));
    return { table, rows, error };
  };
  const grids = [grid(0), grid(1)];
  // One cell of each grid can be reached by Tab; the arrows go to the others.
  const roam = (way, key) => {
    for (const [each, { button, way: its }] of Object.entries(buttons)) if (its === way) button.tabIndex = each === key ? 0 : -1;
  };
  roam(0, "0,0,0");
  roam(1, "1,0,0");
  const arrows = (event) => {
    const now = Object.values(buttons).find(({ button }) => button === event.target);
    actOn(event, now && event.key.startsWith("Arrow") && (() => {
      const places = Object.fromEntries(Object.entries(buttons).filter(([, { way }]) => way === now.way).map(([key, { call, token }]) => [key, [100 * token, 100 * call]]));
      buttons[toward(event.key, [100 * now.token, 100 * now.call], places)]?.button.focus();
    }));
  };

  const run = h("button", { type: "button", class: "hs-lit", onclick: () => put(model, { ran: true }) }, "Run generate()");
  const over = h("button", { type: "button", onclick: () => put(model, { ran: false, marks: [] }) }, "Start over");
  const why = h("div", { class: "kv-why", role: "status" });
  const sample = (look, words) => h("span", { class: "kv-sample" }, h("span", { class: look }), words);
  const legend = h("p", { class: "kv-legend" }, sample("kv-cell", "given to the layer"), sample("kv-cell kv-marked", "your mark"), sample("kv-cell kv-hit", "hit by the hook"),
    sample("kv-kept", "not computed: keys and values are kept"), sample("kv-kept kv-stays", "kept, and hit before"));

  const show = () => {
    const [change, marks, ran] = [model.get("change"), model.get("marks"), model.get("ran")];
    for (const [key, { button, way, call, token }] of Object.entries(buttons)) {
      const [marked, hit] = [marks.includes(key), ran && isHit(way, call, token)];
      const lost = ran && call >= hits(way).length;
      mark(button, "kv-marked", marked);
      mark(button, "kv-hit", hit);
      mark(button, "kv-lost", lost);
      mark(button, "kv-missed", ran && marked && !hit);
      button.setAttribute("aria-pressed", String(marked));
      button.setAttribute("aria-disabled", String(ran));
      button.textContent = !ran ? (marked ? "+v" : "") : hit ? (marked ? "✓" : "+v") : marked ? "✗" : "";
      const state = !ran ? "" : hit ? ": hit" : lost ? ": not reached" : ": not hit";
      button.setAttribute("aria-label", `${ways[way]}, call ${call + 1}, token ${token}${state}`);
    }
    grids.forEach(({ rows, error }, way) => {
      error.remove();
      for (const { row, cells, call } of rows) {
        const failed = ran && runs[change].ways[way].error && call === hits(way).length;
        for (const [token, each] of cells.entries()) {
          each.hidden = Boolean(failed);
          const kept = each.querySelector(".kv-kept");
          if (!kept) continue;
          mark(kept, "kv-gone", ran && call >= hits(way).length); // a call that never came
          mark(kept, "kv-stays", ran && hits(way).slice(0, call).some((before) => before.includes(token)));
        }
        if (failed) {
          error.textContent = runs[change].ways[way].error;
          row.append(error);
        }
      }
    });
    const hitCells = Object.entries(buttons).filter(([, { way, call, token }]) => isHit(way, call, token)).map(([key]) => key);
    const found = marks.filter((key) => hitCells.includes(key)).length;
    const wrong = marks.length - found;
    say.textContent = ran ? runs[change].why : `${changes.find(([name]) => name === change)[1]} Which cells does it hit? Mark them in both grids, then run.`;
    why.textContent = !ran || !marks.length ? "" : `${found} of ${hitCells.length} found${wrong ? `, ${wrong} marked that ${wrong === 1 ? "is" : "are"} not hit` : ""}.`;
    run.setAttribute("aria-disabled", String(ran));
    mark(run, "hs-lit", !ran);
  };

  const root = stage(model, el, "The cache as a grid", h("div", { class: "sc-figure kv-figure" }, choose, say,
    h("div", { class: "kv-grids" }, ...grids.map(({ table }) => h("div", { class: "kv-scroll" }, table))), legend,
    h("div", { class: "sc-player" }, run, over, why)));
  root.classList.add("hs-alone"); // all runs are on the page
  root.addEventListener("keydown", arrows);
  show();
  listen(model, root, "change marks ran", show);
}

export default widget(draw);
