// A filter box, a button for each group, and the rows that fit, the best one first. The chooser and the fact check use it.

const LITTLE = new Set("a an and are at by can do does for from get how i in is it my of on or that the to want what when which with".split(" "));
const wordsOf = (text) => text.toLowerCase().split(/[^a-z0-9_.]+/).filter((word) => word && !LITTLE.has(word));

const stem = (word) => (word.length > 4 ? word.replace(/(ing|ed|es|s)$/, "") : word);

/** Whether two words differ by one letter: another one, one more, one less, or two that changed places. */
function isNear(one, other) {
  let same = 0;
  while (same < one.length && one[same] === other[same]) same += 1;
  const [left, right] = [one.slice(same), other.slice(same)];
  const isSwapped = left[0] === right[1] && left[1] === right[0] && left.slice(2) === right.slice(2);
  return isSwapped || left.slice(1) === right.slice(1) || left.slice(1) === right || left === right.slice(1);
}

/** The words that were typed, each mistyped one as the rows have it. */
function mend(words, rows, textsOf) {
  const texts = rows.flatMap(textsOf).map((text) => text.toLowerCase());
  const isKnown = (word) => texts.some((text) => text.includes(stem(word)));
  const known = new Set(texts.flatMap(wordsOf));
  return words.map((word) => (word.length < 5 || isKnown(word) ? word : [...known].find((each) => isNear(word, each)) ?? word));
}

/** How well a row fits: a word in its title counts most, then one that people also type, then one of the rest. */
function fit(row, texts, words, phrase) {
  const places = texts.map((text) => text.toLowerCase());
  let [found, points] = [0, 0];
  for (const word of words) {
    const at = places.findIndex((text) => text.includes(stem(word)));
    if (at >= 0) [found, points] = [found + 1, points + [4, 2, 1][at]];
  }
  if (places[1].split(", ").some((said) => said === phrase || said === words.join(" "))) points += 10;
  return { row, found, points };
}

/** The rows to show: those with the most of the words. */
function fitting(rows, textsOf, text, group) {
  const words = mend(wordsOf(text), rows, textsOf);
  const chosen = rows.filter((row) => !group || row.group === group);
  const fits = chosen.map((row) => fit(row, textsOf(row), words, text.trim().toLowerCase()));
  const most = Math.max(0, ...fits.map(({ found }) => found));
  if (words.length && !most) return [];
  return fits.filter(({ found }) => found === most).sort((one, other) => other.points - one.points).map(({ row }) => row);
}

/**
 * Draw a filter. Args: name: of the widget. label, example: of the box. buttons: what the groups are. textsOf(row): title,
 * other words separated by ", ", the rest. title(row): what is always seen. inside(row): what is seen when it is opened.
 */
function finder({ name, label, example, buttons, textsOf, title, inside }) {
  return (model, el) => {
    const [rows, groups] = [model.get("_rows"), model.get("_groups")];
    const box = h("input", { type: "search", placeholder: example, ...ownKeys });
    box.addEventListener("input", () => put(model, { words: box.value }));
    const chips = switches(model, "group", [["", "All"], ...Object.entries(groups)],
      { label: buttons, look: (group) => ({ "data-group": group }) });
    const count = h("p", { class: "ch-count", role: "status" });
    const list = h("div", { class: "ch-list" });
    const card = (row) => h("details", { class: "ch-row" }, h("summary", {}, ...title(row)), ...inside(row));
    const show = () => {
      const [words, group] = [model.get("words"), model.get("group")];
      if (box.value !== words) box.value = words;
      const found = fitting(rows, textsOf, words, group);
      count.textContent = found.length ? `${found.length} of ${rows.length}` : "Nothing fits. Try fewer words, or All.";
      list.replaceChildren(...found.map(card));
      if (wordsOf(words).length && found.length) list.firstElementChild.open = true;
    };
    show();
    listen(model, box, "words group", show);
    stage(model, el, name, h("div", { class: "ch-chooser" }, field(label, box, { class: "hs-field ch-filter" }), chips, count, list))
      .classList.add("hs-alone");
  };
}
