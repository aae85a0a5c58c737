// The chooser: what you want to do, and the lines to paste.

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

export default widget(finder({
  name: "The chooser",
  label: "I want to …",
  example: "attention map, gradient is None, freeze …",
  buttons: "Groups",
  textsOf: (row) => [row.want, row.also, `${row.answer} ${row.hooks} ${row.group} ${row.lines}`],
  title: (row) => [row.want],
  inside: (row) => [
    h("p", { class: "ch-answer" }, ...worded(row.answer)),
    h("pre", { class: "hs-code", tabindex: "0", role: "group", "aria-label": "Lines to paste", ...ownKeys }, row.lines),
    copy(row.lines),
    h("p", { class: "ch-facts" }, [row.hooks, `since torch ${row.since}`, row.taught].filter(Boolean).join(" · ")),
  ],
}));
