// The fact check: what somebody claimed, the verdict, and what torch does.

/** In a notebook, the heading has its name in another attribute, and a link finds it by script only. */
const goTo = (name) => (event) => {
  const heading = document.querySelector(`.jp-Notebook [data-jupyter-id="${name}"]`);
  if (!heading) return;
  event.preventDefault();
  let turns = 8; // cells on the way are drawn when they come near, and move it
  const scroll = () => {
    heading.scrollIntoView({ block: "center" });
    if (turns--) setTimeout(scroll, 100);
  };
  scroll();
};

export default widget(finder({
  name: "The fact check",
  label: "Claims about",
  example: "no_grad, grad_input, remove, 1.2 …",
  buttons: "Verdicts",
  textsOf: (row) => [row.text, row.id, `${row.does} ${row.since} ${row.document}`],
  title: (row) => [h("span", { class: "ch-verdict" }, row.sign), h("span", {}, ...worded(row.text))],
  inside: (row) => [
    h("p", { class: "ch-answer" }, h("strong", {}, "What torch does: "), ...worded(row.does)),
    h("p", { class: "ch-facts" }, [`${row.id}, ${row.document}`, row.since && `since torch ${row.since}`].filter(Boolean).join(" · "), " · run below under ", h("a", { href: `#${row.id}`, onclick: goTo(row.id) }, row.id)),
  ],
}));
