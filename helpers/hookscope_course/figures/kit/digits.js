// What the figures of the digits share.

/** One sentence above the figure that says what has just happened. */
function sentence(model) {
  const text = h("p", { class: "dg-sentence", role: "status" });
  const show = () => { text.textContent = model.get("_shown").sentence; };
  show();
  listen(model, text, "_shown", show);
  return text;
}

/** Scores as bars and as numbers; rows are [name, probability, what it was before]. */
function bars(caption) {
  const body = h("tbody");
  const table = h("table", { class: "dg-bars" }, h("caption", {}, ...caption), body);
  const line = () => h("tr", {}, h("th", { scope: "row" }),
    h("td", { class: "dg-track" }, h("div", { "aria-hidden": "true" }, h("span", { class: "dg-bar" }), h("span", { class: "dg-was" }))),
    h("td", { class: "dg-share" }));
  const show = (rows, read) => {
    while (body.children.length < rows.length) body.append(line());
    rows.forEach(([name, share, was], place) => {
      const row = body.children[place];
      row.classList.toggle("dg-best", name === String(read));
      row.children[0].textContent = name;
      row.querySelector(".dg-bar").style.width = `${100 * share}%`;
      row.querySelector(".dg-was").style.width = `${100 * (was ?? 0)}%`;
      row.querySelector(".dg-was").hidden = was === undefined;
      row.children[2].textContent = `${(100 * share).toFixed(1)} %`;
    });
  };
  return { table, show };
}

/** What the two kinds of bars are. */
const withAndWithout = () => [["", "with the hook"], ["dg-without", "without"]].map(([kind, text]) =>
  h("span", { class: "dg-legend" }, h("span", { class: `dg-key ${kind}` }), text));

/** The hook as it runs, to read and to copy. */
function hookCode(model) {
  const code = codeLines(model, "code", "The hook as code");
  const done = h("span", { role: "status" });
  listen(model, code, "code", () => { done.textContent = ""; });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(model.get("code"));
      done.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(code);
      done.textContent = "Selected: press Ctrl+C.";
    }
  };
  return h("div", { class: "dg-code" },
    h("div", { class: "hs-row" }, h("strong", {}, "The hook that does it"), h("button", { type: "button", onclick: copy }, "Copy"), done),
    code);
}
