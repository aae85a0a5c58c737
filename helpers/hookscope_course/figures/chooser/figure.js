// The chooser: what you want to do, and the lines to paste.

const copy = (lines) => {
  const button = h("button", { type: "button", onclick: async () => {
    button.textContent = (await copyOrSelect(lines, button.previousElementSibling)) ? "Copied" : "Selected: press Ctrl+C";
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
    codeBlock("Lines to paste", row.lines),
    copy(row.lines),
    h("p", { class: "ch-facts" }, [row.hooks, `since torch ${row.since}`, row.taught].filter(Boolean).join(" · ")),
  ],
}));
