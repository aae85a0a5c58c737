function draw(model, el) {
  const releases = model.get("_releases");
  const names = Object.entries(model.get("_documents")).map(([id, title]) => [id, `${id}: ${title}`]);
  const documentChoice = choice(model, "document", names);
  const release = slider(model, "_at", { min: 0, max: releases.length - 1, text: (at) => `torch ${releases[at]}` });
  const verdict = h("p", { class: "hi-verdict", "aria-live": "polite" });
  const then = h("th", { scope: "col" });
  const here = h("th", { scope: "col" });
  const body = h("tbody");
  const table = h("table", { class: "hi-claims" },
    h("caption", {}, "The claims that depend on the release"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "claim"), h("th", { scope: "col" }, "it says"), then, here)), body);

  const shows = (label, standing, answer, differs) => h("td", { "data-torch": label },
    h("span", { class: "hi-standing" }, standing, differs ? " (differs)" : null), h("span", { class: "hi-answer" }, answer));
  const show = () => {
    const { verdict: text, rows, here: mine } = model.get("shown");
    const code = model.get("_code")[model.get("document")];
    verdict.textContent = text;
    then.textContent = `torch ${releases[model.get("_at")]}, recorded`;
    here.textContent = `torch ${mine}, run here`;
    body.replaceChildren(...rows.map(([id, says, answer, standing, answerHere, standingHere], at) =>
      h("tr", { class: standing === standingHere ? "" : "hi-differ" },
        h("th", { scope: "row" }, id), h("td", {}, says, code[at] ? h("pre", { class: "hi-code" }, code[at]) : null),
        shows(then.textContent, standing, answer), shows(here.textContent, standingHere, answerHere, standing !== standingHere))));
  };
  show();
  listen(model, el, "shown", show);

  stage(model, el, "What the author would have seen",
    h("div", { class: "hs-row hi-choose" }, field("Document", documentChoice), field("Release", release.control), release.value),
    verdict,
    h("div", { class: "hi-wide", tabindex: "0", role: "region", "aria-label": "claims", ...ownKeys }, table),
    h("div", { class: "hi-wide", tabindex: "0", role: "region", "aria-label": "chart", ...ownKeys },
      h("div", { class: "hi-hint", "aria-hidden": "true" }, "Move the chart to the side →"),
      picture(model, "png", "alt", { class: "hi-chart" })),
    h("p", { class: "hi-key" }, "A bar holds the answer of the releases above it, and a black line stands where the answer changed. ",
      "An answer that does not fit into its bar stands below it. Releases that are alike in every row share a column. ",
      "The one with the release you chose is framed."));
}

export default widget(draw);
