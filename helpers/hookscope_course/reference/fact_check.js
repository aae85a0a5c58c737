// The fact check: what somebody claimed, the verdict, and what torch does.

export default widget(finder({
  name: "The fact check",
  label: "Claims about",
  example: "no_grad, grad_input, remove, 1.2 …",
  buttons: "Verdicts",
  textsOf: (row) => [row.text, row.id, `${row.does} ${row.since} ${row.document}`],
  title: (row) => [h("span", { class: "ch-verdict" }, row.sign), h("span", {}, ...worded(row.text))],
  inside: (row) => [
    h("p", { class: "ch-answer" }, h("strong", {}, "What torch does: "), ...worded(row.does)),
    h("p", { class: "ch-facts" }, [`${row.id}, ${row.document}`, row.since && `since torch ${row.since}`].filter(Boolean).join(" · "), " · run below under ", h("a", { href: `#${row.id}` }, row.id)),
  ],
}));
