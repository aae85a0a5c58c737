// The chooser: a filter box, a button for each group, and the rows that fit, the best one first.

const LITTLE = new Set("a an and are at by can do does for from get how i in is it my of on or that the to want what when which with".split(" "));
const wordsOf = (text) => text.toLowerCase().split(/[^a-z0-9_.]+/).filter((word) => word && !LITTLE.has(word));

/** How well a row fits: a word in its title counts most, then one that people also type, then one of the answer. */
function fit(row, words, phrase) {
  const places = [row.want, row.also, `${row.answer} ${row.hooks} ${row.group} ${row.lines}`].map((text) => text.toLowerCase());
  let [found, points] = [0, 0];
  for (const word of words) {
    const stem = word.length > 4 ? word.replace(/(ing|ed|es|s)$/, "") : word;
    const at = places.findIndex((text) => text.includes(stem));
    if (at >= 0) [found, points] = [found + 1, points + [4, 2, 1][at]];
  }
  if (row.also.toLowerCase().split(", ").some((said) => said === phrase || said === words.join(" "))) points += 10;
  return { row, found, points };
}

/** The rows to show: those with the most of the words. */
function fitting(rows, text, group) {
  const words = wordsOf(text);
  const fits = rows.filter((row) => !group || row.group === group).map((row) => fit(row, words, text.trim().toLowerCase()));
  const most = Math.max(0, ...fits.map(({ found }) => found));
  if (words.length && !most) return [];
  return fits.filter(({ found }) => found === most).sort((one, other) => other.points - one.points).map(({ row }) => row);
}

/** A sentence, with what stands between backticks as code. */
const sentence = (text) => h("p", { class: "ch-answer" }, ...text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part)));

function draw(model, el) {
  const [rows, groups] = [model.get("_rows"), model.get("_groups")];
  const box = h("input", { type: "search", placeholder: "attention map, gradient is None, freeze …", ...ownKeys });
  box.addEventListener("input", () => put(model, { words: box.value }));
  const chips = h("div", { class: "hs-row", role: "group", "aria-label": "Groups" },
    ...[["", "All"], ...Object.entries(groups)].map(([group, name]) =>
      h("button", { type: "button", "data-group": group, onclick: () => put(model, { group }) }, name)));
  const count = h("p", { class: "ch-count", role: "status" });
  const list = h("div", { class: "ch-list" });

  const copy = (lines) => {
    const button = h("button", { type: "button", onclick: async () => {
      try {
        await navigator.clipboard.writeText(lines);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(button.previousElementSibling);
        button.textContent = "Selected: press Ctrl+C";
      }
    } }, "Copy");
    return button;
  };
  const card = (row) => h("details", { class: "ch-row" },
    h("summary", {}, row.want),
    sentence(row.answer),
    h("pre", { class: "hs-code", tabindex: "0", role: "group", "aria-label": "Lines to paste", ...ownKeys }, row.lines),
    copy(row.lines),
    h("p", { class: "ch-facts" }, [row.hooks, `since torch ${row.since}`, row.taught].filter(Boolean).join(" · ")));
  const show = () => {
    const [words, group] = [model.get("words"), model.get("group")];
    if (box.value !== words) box.value = words;
    for (const chip of chips.children) chip.setAttribute("aria-pressed", String(chip.dataset.group === group));
    const found = fitting(rows, words, group);
    count.textContent = found.length ? `${found.length} of ${rows.length}` : "Nothing fits. Try fewer words, or All.";
    list.replaceChildren(...found.map(card));
    if (wordsOf(words).length && found.length) list.firstElementChild.open = true;
  };

  show();
  listen(model, box, "words group", show);
  stage(model, el, "The chooser", h("div", { class: "ch-chooser" }, field("I want to …", box, { class: "hs-field ch-filter" }), chips, count, list))
    .classList.add("hs-alone");
}

export default widget(draw);
