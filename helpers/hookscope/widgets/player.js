// The order player: a call tree, of which only the visible rows are in the page, and the current event.

const ROW = 24; // pixels, as --row in player.css
const SIGNS = { forward: "→", backward: "←", step: "◆" };
const SPEEDS = [["1500", "slow"], ["700", "normal"], ["250", "fast"], ["60", "very fast"]];

function draw(model, el) {
  const events = model.get("_events");
  const lines = model.get("_lines");
  const lineOf = [];
  lines.forEach(([, , place], line) => { if (place >= 0) lineOf[place] = line; });
  const last = events.length - 1;
  const height = ROW * Math.min(Math.max(lines.length, 8), 17);
  const id = `hookscope-tree-${++lastId}`;

  const go = (index) => {
    const to = Math.min(Math.max(index, -1), last);
    if (to !== model.get("index")) put(model, { index: to });
  };
  const step = (by) => { pause(); go(model.get("index") + by); };
  const jump = (index) => { pause(); go(index); };

  // Playing.
  let timer;
  const play = () => {
    if (model.get("index") === last) go(-1);
    timer = setInterval(() => {
      go(model.get("index") + 1);
      if (model.get("index") === last) pause();
    }, Number(speed.value));
    showPlay();
  };
  const pause = () => {
    if (timer === undefined) return;
    clearInterval(timer);
    timer = undefined;
    showPlay();
  };
  const showPlay = () => {
    playing.replaceChildren(...sign(timer === undefined ? "▶" : "❚❚", timer === undefined ? "Play" : "Pause"));
    words.setAttribute("aria-live", timer === undefined ? "polite" : "off"); // do not read out every event while it plays
  };
  const toggle = () => (timer === undefined ? play() : pause());
  cleanups.get(model)?.push(pause);

  const sign = (mark, word) => [h("span", { "aria-hidden": "true" }, mark), ` ${word}`];
  const button = (mark, word, act) => h("button", { type: "button", onclick: act }, ...sign(mark, word));
  const first = button("⇤", "First", () => jump(0));
  const back = button("←", "Back", () => step(-1));
  const playing = button("▶", "Play", toggle);
  const next = button("→", "Next", () => step(1));
  const end = button("⇥", "Last", () => jump(last));
  const speed = h("select", {}, ...SPEEDS.map(([value, text]) => h("option", { value }, text)));
  speed.value = "700";
  speed.addEventListener("change", () => { if (timer !== undefined) { pause(); play(); } });
  const bar = slider(model, "index", {
    min: -1, max: last, text: (index) => (index < 0 ? `before event 1 of ${last + 1}` : `event ${index + 1} of ${last + 1}`),
  });
  bar.control.addEventListener("pointerdown", pause);
  bar.value.setAttribute("aria-live", "off"); // only the sentence is read out

  // A strip below the slider shows the forward and backward phases.
  const runs = [];
  for (const [phase] of events) {
    if (runs.at(-1)?.phase === phase) runs.at(-1).count += 1;
    else runs.push({ phase, count: 1 });
  }
  const strip = h("div", { class: "op-strip", "aria-hidden": "true" }, h("span", { class: "op-start", style: "flex: 1 1 0" }),
    ...runs.map(({ phase, count }) => h("span", { class: `op-${phase}`, style: `flex: ${count} 1 0` },
      count > 0.2 * events.length ? `${SIGNS[phase]} ${phase}` : "")));
  strip.hidden = runs.length > 40;
  const track = field("event", bar.control);
  track.append(h("div", { class: "op-track" }, bar.control, strip));

  // The current event: a sentence, and its facts one by one.
  const badge = h("p", { class: "op-badge" });
  const words = h("p", { class: "op-words", "aria-live": "polite" });
  const facts = h("dl", { class: "op-facts" });
  const torch = h("p", { class: "op-torch" });

  // The tree. All rows have the same height, so rows out of view can be left out.
  const rows = h("div", { class: "op-rows", style: `height: ${lines.length * ROW}px` });
  const box = h("div", {
    class: "op-tree", style: `height: ${height}px; --digits: ${String(last + 1).length}`, tabindex: "0", role: "listbox", "aria-label": "Call tree of the events",
  }, rows);
  const row = (line) => {
    const [depth, text, place, phase] = lines[line];
    const now = model.get("index");
    const style = `top: ${line * ROW}px; --depth: ${depth}`;
    // Bold for the part before the type of a layer, or before the values of an event.
    const cut = place < 0 ? text.lastIndexOf(": ") + 1 : text.indexOf("  ");
    const [what, rest] = cut > 0 ? [text.slice(0, cut), text.slice(cut)] : [text, ""];
    const tail = h("span", { class: "op-text", title: text },
      h("b", {}, depth === 0 ? `${SIGNS[phase]} ${what}` : what), rest);
    if (place < 0) {
      return h("div", { class: `op-row op-head${depth === 0 ? ` op-${phase}` : ""}`, role: "presentation", style },
        h("span", { class: "op-number" }), tail);
    }
    const state = place === now ? " op-lit" : place < now ? " op-past" : " op-future";
    return h("div", {
      class: `op-row op-event op-${phase}${state}`, role: "option", id: `${id}-${place}`, style,
      "aria-selected": String(place === now), "aria-posinset": String(place + 1), "aria-setsize": String(last + 1),
      onclick: () => jump(place),
    },
    h("span", { class: "op-number" }, String(place + 1)),
    h("span", { class: "op-sign", "aria-hidden": "true" }, place === now ? "▶" : place < now ? SIGNS[phase] : "·"), tail);
  };
  const fill = () => {
    const from = Math.max(Math.floor(box.scrollTop / ROW) - 4, 0);
    const to = Math.min(from + Math.ceil(height / ROW) + 8, lines.length);
    const seen = Array.from({ length: to - from }, (_, at) => from + at);
    const lit = lineOf[model.get("index")];
    if (lit !== undefined && (lit < from || lit >= to)) seen.push(lit); // aria-activedescendant must name an existing element
    rows.replaceChildren(...seen.map(row));
  };
  box.addEventListener("scroll", fill);

  /** The calls around an event, without the call of its own hook. */
  const inside = (line, of) => {
    const around = [];
    for (let at = line, depth = lines[line][0]; at >= 0 && depth > 1; at--) {
      if (lines[at][0] < depth) {
        depth = lines[at][0];
        if (lines[at][1] !== "forward()") around.unshift(lines[at][1].replace(/: \S+$/, ""));
      }
    }
    if (of.startsWith(`${around.at(-1)} (`)) around.pop();
    return around.join(" › ");
  };

  const show = () => {
    const index = model.get("index");
    const [phase, sentence, kind, of, whose, given, shapes, values, way] = events[index] ?? [];
    badge.textContent = phase ? `${SIGNS[phase]} ${phase}` : "● start";
    badge.className = `op-badge op-${phase || "start"}`;
    words.textContent = sentence ?? `No hook has fired yet. ${last + 1} will.`;
    const pairs = phase ? [
      ["hook", kind], ["of", of], ["inside", inside(lineOf[index], of)], ["registered as", whose],
      [given, shapes], ["values", values],
    ] : [];
    facts.replaceChildren(...pairs.filter(([, fact]) => fact)
      .flatMap(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)]));
    torch.hidden = !way;
    torch.replaceChildren("Register this hook with", ...(way ?? "").split(" → ").map((part) => h("code", {}, part)));
    for (const [control, off] of [[first, index === 0], [back, index < 0], [next, index === last], [end, index === last]]) {
      control.setAttribute("aria-disabled", String(off)); // a disabled button would lose the keyboard focus
    }
    const top = (lineOf[index] ?? 0) * ROW;
    const seen = box.clientHeight || height; // can be smaller on a narrow page
    if (top < box.scrollTop + ROW || top > box.scrollTop + seen - 2 * ROW) box.scrollTop = top - seen / 2;
    if (index >= 0) box.setAttribute("aria-activedescendant", `${id}-${index}`);
    else box.removeAttribute("aria-activedescendant");
    fill();
  };

  const root = stage(model, el, "Order player",
    h("div", { class: "hs-row op-controls" }, first, back, playing, next, end, field("speed", speed)),
    h("div", { class: "hs-row op-slider" }, track, bar.value),
    h("div", { class: "hs-columns" }, box, h("div", { class: "op-panel" }, badge, words, facts, torch)),
    h("p", { class: "op-keys" }, "Keys: arrows to step, Home and End to jump, space to play or pause. Click a line to jump to it."));
  root.classList.add("hs-alone"); // needs no kernel
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target === speed) return;
    const onSlider = event.target === bar.control;
    const acts = {
      ArrowRight: () => step(1), ArrowDown: () => step(1), ArrowLeft: () => step(-1), ArrowUp: () => step(-1),
      Home: () => jump(0), End: () => jump(last), " ": toggle,
    };
    if (!(event.key in acts)) return;
    event.stopPropagation(); // in a notebook, arrows would move to another cell
    if (event.key === " " && event.target.tagName === "BUTTON") return; // the key presses the button
    if (onSlider && event.key.startsWith("Arrow")) { pause(); return; } // the slider handles its own arrows
    event.preventDefault();
    acts[event.key]();
  });
  listen(model, root, "index", show);
  const sized = new ResizeObserver(() => show()); // scrolling works once it is on the page
  sized.observe(box);
  cleanups.get(model)?.push(() => sized.disconnect());
  show();
}

export default widget(draw);
