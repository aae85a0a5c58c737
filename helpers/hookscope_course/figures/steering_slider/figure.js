// A slider for the strength of a push, the text under it, and three curves that appear as far as the slider has been.

const [CW, CH, CL, CR, CT, CB] = [620, 182, 44, 14, 10, 176]; // the chart: its size, and where its curves run

function draw(model, el) {
  const { strengths, text, names, groups, places, runs, random: many } = model.get("_data");
  const [wanted, , rest] = names;
  const index = () => strengths.indexOf(model.get("strength"));
  const percent = (share) => `${Math.round(100 * share)} %`;
  const go = (place, at) => {
    const [low, high] = model.get("explored")[place];
    put(model, { strength: strengths[at], place, explored: { ...model.get("explored"), [place]: [Math.min(low, at), Math.max(high, at)] } });
  };

  // The text: what stands there, and what is written.
  const written = h("span", { class: "sv-new" });
  const sentence = h("p", { class: "sv-text" }, h("span", { class: "sv-given" }, `${text} `), written);
  const verdict = h("span", { class: "sv-verdict" });
  const say = h("p", { class: "sv-say", role: "status" });
  const control = h("p", { class: "sv-control" });

  // The slider.
  const bar = h("input", { type: "range", class: "sv-bar", min: "0", max: String(strengths.length - 1), step: "1", ...ownKeys,
    oninput: () => go(model.get("place"), Number(bar.value)) });
  const value = h("output", { class: "hs-value sv-value", "aria-live": "off" });
  const marks = h("div", { class: "sv-marks", "aria-hidden": "true" },
    ...strengths.flatMap((strength, at) => (Number.isInteger(strength) ? [h("span", { style: `left: ${(100 * at) / (strengths.length - 1)}%` }, signed(strength))] : [])));

  // The chart.
  const x = (at) => CL + ((CW - CL - CR) * at) / (strengths.length - 1);
  const y = (share) => CB - (CB - CT) * share;
  const word = (words_, at, anchor = "middle") => s("text", { x: at[0], y: at[1], "text-anchor": anchor, "font-size": 13 }, words_);
  const ticks = [0, 0.5, 1].flatMap((share) => [s("line", { class: "sv-line", x1: CL, x2: CW - CR, y1: y(share), y2: y(share) }), word(percent(share), [CL - 6, y(share) + 4], "end")]);
  const kinds = [["vector", 0, "sv-wanted", wanted], ["vector", 2, "sv-rest", rest], ["random", 0, "sv-random", `${wanted}, random pushes (mean of ${many})`], ["random", 2, "sv-broken", `${rest}, random pushes`]];
  const curves = kinds.map(([kind, group, look]) => ({ kind, group, line: s("polyline", { class: look }), dot: s("circle", { class: `${look} sv-dot`, r: 5 }) }));
  const here = s("line", { class: "sv-here", y1: CT - 4, y2: CB + 4 });
  const chart = s("svg", { class: "sc-scene sv-chart", viewBox: `0 0 ${CW} ${CH}`, role: "img" },
    ...ticks, here, ...curves.map(({ line }) => line), ...curves.map(({ dot }) => dot));
  const legend = kinds.map(([, , look, name]) => {
    const share = h("td", { class: "sv-share" });
    const key = s("svg", { class: "sv-key", viewBox: "0 0 30 10", "aria-hidden": "true" }, s("line", { class: look, x1: 1, x2: 29, y1: 5, y2: 5 }));
    return { row: h("tr", {}, h("td", {}, key), h("th", { scope: "row" }, name), share), share };
  });
  const table = h("table", { class: "sv-legend" }, h("caption", { class: "sv-soft" }, "the first new word is"), h("tbody", {}, ...legend.map(({ row }) => row)));

  const show = () => {
    const [at, place] = [index(), model.get("place")];
    const strength = signed(strengths[at]);
    const { vector, random } = runs[place];
    const group = groups[vector[at].words[0]] ?? 2;
    bar.value = String(at);
    value.textContent = strength;
    bar.setAttribute("aria-valuetext", `${strength}: ${vector[at].words.join(" ")}`);
    written.textContent = vector[at].words.join(" ");
    written.className = `sv-new sv-group-${group}`;
    verdict.textContent = names[group];
    verdict.className = `sv-verdict sv-group-${group}`;
    say.textContent = `At strength ${strength} it writes “${vector[at].words[0]}”. ` +
      (group === 0 ? `That is what you want: ${wanted} have ${percent(vector[at].shares[0])}.`
        : group === 1 ? `${wanted[0].toUpperCase()}${wanted.slice(1)} have ${percent(vector[at].shares[0])}.`
        : `The text has broken down: ${rest} has ${percent(vector[at].shares[2])}.`);
    control.replaceChildren(h("span", { class: "sv-soft" }, "One of the random pushes, as long as yours: "), text, " ", h("b", {}, random[at].words.join(" ")));
    const [low, high] = model.get("explored")[place];
    for (const { kind, group: which, line, dot } of curves) {
      const points = runs[place][kind].map((run, n) => [x(n), y(run.shares[which])]);
      line.setAttribute("points", points.slice(low, high + 1).map((point) => point.map((each) => each.toFixed(1)).join()).join(" "));
      dot.setAttribute("cx", points[at][0]);
      dot.setAttribute("cy", points[at][1]);
    }
    here.setAttribute("x1", x(at));
    here.setAttribute("x2", x(at));
    legend.forEach(({ share }, n) => { share.textContent = percent(runs[place][kinds[n][0]][at].shares[kinds[n][1]]); });
    chart.setAttribute("aria-label", `Four curves from strength ${strengths[low]} to ${strengths[high]}. At ${strength}: ` +
      kinds.map(([kind, which, , name]) => `${name} ${percent(runs[place][kind][at].shares[which])}`).join("; "));
  };

  // The slider is the axis of the chart: its thumb stands below the line.
  const track = h("div", { class: "sv-track", style: `margin: 0 calc(${(100 * CR) / CW}% - 8px) 0 calc(${(100 * CL) / CW}% - 8px)` }, bar, marks);
  const slide = h("div", { class: "sv-slide" }, field("strength", track));
  const root = stage(model, el, "Steer it", h("div", { class: "sc-figure sv-figure" },
    say, sentence, h("div", { class: "sv-which" }, verdict),
    places.length > 1 ? switches(model, "place", places.map((place) => [place, place]),
      { label: "where it is added", text: "added to", pick: (place) => go(place, index()) }) : null,
    h("div", { class: "sv-columns" }, h("div", {}, chart, slide), table), control));
  const label = root.querySelector("label"); // the field holds a track, and its label is for the slider
  bar.id = `${label.htmlFor}-bar`;
  label.htmlFor = bar.id;
  label.append(" ", value);
  root.classList.add("hs-alone"); // all runs are on the page
  show();
  listen(model, root, "strength place explored", show);
}

export default widget(draw);
