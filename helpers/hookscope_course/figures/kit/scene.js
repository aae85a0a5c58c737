// The figures' language, drawn as SVG: boxes with a value, a module with two doors, rails on which values travel, pegs
// that are hooks, a player. A figure's own script stands behind this one and builds its scene from these.

const move = (element, [x, y]) => element.setAttribute("transform", `translate(${x} ${y})`);
const mark = (element, name, on) => element.classList.toggle(name, Boolean(on));

/** An empty scene. Its parts are drawn once; what changes later are their words, classes and places. */
function scene([width, height], label) {
  return s("svg", { class: "sc-scene", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
}

/** Lines of text, the first at (x, y). */
function words(lines, [x, y], { size, anchor = "middle", kind = "" }) {
  return s("text", { x, y, class: kind, "font-size": size, "text-anchor": anchor, "aria-hidden": "true" },
    ...lines.map((line, at) => s("tspan", { x, dy: at ? 1.15 * size : 0 }, line)));
}

/** A module: a frame with a title and two doors. */
function frame([x, y, width, height], doors, title, at, size) {
  const door = ([left, top, w, h]) => s("rect", { class: "sc-door", x: left, y: top, width: w, height: h, rx: 10 });
  return s("g", { "aria-hidden": "true" },
    s("rect", { class: "sc-frame", x, y, width, height, rx: 14 }), ...doors.map(door), words([title], at, { size }));
}

/** The `d` of a path, and the `points` of a polygon, through points. */
const pathOf = (points) => `M${points.map((point) => point.join(" ")).join("L")}`;
const cornersOf = (points) => points.map((point) => point.join()).join(" ");

/** A line with an arrow at its end. */
function rail(points, way, dotted = false) {
  const [[x0, y0], [x1, y1]] = points.slice(-2);
  const long = Math.hypot(x1 - x0, y1 - y0) || 1;
  const [u, v] = [(x1 - x0) / long, (y1 - y0) / long];
  const ends = [[x1, y1], [x1 - 11 * u - 6 * v, y1 - 11 * v + 6 * u], [x1 - 11 * u + 6 * v, y1 - 11 * v - 6 * u]];
  return s("g", { class: `sc-rail sc-${way}${dotted ? " sc-dotted" : ""}`, "aria-hidden": "true" },
    s("path", { d: pathOf([...points.slice(0, -1), [x1 - 8 * u, y1 - 8 * v]]) }), s("polygon", { points: cornersOf(ends) }));
}

/** The frame that a keyboard's focus shows around a box. */
const focusFrame = ([x, y, width, height], gap, rx, name) =>
  s("rect", { class: name, x: x - width / 2 - gap, y: y - height / 2 - gap, width: width + 2 * gap, height: height + 2 * gap, rx });

/** The sign of a hook that looks. */
const eye = () => [s("path", { class: "sc-eye", d: "M-9 0Q0 -9 9 0Q0 9 -9 0Z" }), s("circle", { class: "sc-pupil", r: 2.8 })];

/** A box with a name and a value; `set` writes the value, and says whether a hook changed it and whether it is now. */
function box([x, y, width, height], name, way, size, does = false) {
  const value = s("text", { x, y: y + 0.95 * size + 2, "font-size": 1.15 * size, "text-anchor": "middle" });
  const rect = { x: x - width / 2, y: y - height / 2, width, height, rx: 10 };
  const wide = { x: rect.x - 5, y: rect.y - 5, width: width + 10, height: height + 10, rx: 14, class: "sc-halo" };
  const group = s("g", { class: `sc-box sc-${way}${does ? " sc-does" : ""}`, "aria-hidden": "true" },
    s("rect", rect), s("rect", wide),
    s("text", { x, y: y - 0.3 * size, class: does ? "" : "sc-soft", "font-size": (does ? 1 : 0.92) * size, "text-anchor": "middle" }, name),
    value);
  const set = (text, { changed = false, now = false } = {}) => {
    if (value.textContent !== text) value.textContent = text;
    mark(group, "sc-changed", changed);
    mark(group, "sc-now", now);
  };
  return { element: group, set };
}

/** A place for a hook. Its ring is a little smaller than a peg, which covers it. */
function slot({ at: [x, y], lines, text, anchor }, radius, size) {
  const circle = s("circle", { cx: x, cy: y, r: radius - 1.5 });
  return s("g", { class: "sc-slot", "aria-hidden": "true" }, circle,
    words(lines, text, { size, anchor, kind: "sc-soft" }));
}

/** A hook: it looks (an eye) or says what it does; a badge has its number. It is a button that can be reached by Tab. */
function peg(radius, size) {
  const looks = s("g", {}, ...eye());
  const sign = s("text", { class: "sc-sign", y: 0.3 * size, "font-size": 0.88 * size });
  const number = s("text", { y: 0.28 * size, "font-size": 0.82 * size });
  const badge = s("g", { class: "sc-badge" }, s("circle", { r: 0.62 * size }), number);
  move(badge, [radius, -radius]);
  const circle = (name, r) => s("circle", { class: name, r });
  const element = s("g", { class: "sc-peg", tabindex: 0, role: "button", ...ownKeys },
    circle("sc-focus", radius + 9), circle("sc-ring-edge", radius + 2), circle("sc-ring", radius + 2), circle("sc-body", radius),
    looks, sign, badge);
  const set = ({ text = "", order = "", label, fires = false }) => {
    looks.style.display = text ? "none" : "";
    sign.textContent = text;
    number.textContent = order;
    badge.style.display = order === "" ? "none" : "";
    element.setAttribute("aria-label", label);
    mark(element, "sc-fires", fires);
  };
  return { element, set };
}

/**
 * Let an element be dragged and pressed. A drag is a pointer that has moved, and a press a click without one.
 * Args: follow, drop: called with the event, and how far the pointer has moved, while it moves and at its end.
 * cancel: when the browser takes the pointer away. press: when it is pressed. vertical: whether only up and down count.
 */
function drag(element, { follow, drop, cancel, press, vertical = false }) {
  let from = null;
  let dragged = false;
  const wayOf = (event) => [event.clientX - from[0], event.clientY - from[1]];
  // A finger that moves an element must not scroll the page; touch-action does not count inside an SVG.
  element.addEventListener("touchmove", (event) => event.preventDefault(), { passive: false });
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    element.focus({ preventScroll: true });
    element.setPointerCapture(event.pointerId);
    from = [event.clientX, event.clientY];
    dragged = false;
  });
  element.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [across, down] = wayOf(event);
    dragged ||= Math.hypot(vertical ? 0 : across, down) >= 4;
    if (dragged) follow(event, [across, down]);
  });
  element.addEventListener("pointerup", (event) => {
    if (!from) return;
    const way = wayOf(event);
    from = null;
    if (dragged) drop(event, way);
  });
  element.addEventListener("pointercancel", () => { from = null; cancel(); });
  element.addEventListener("click", () => { if (!dragged) press(); dragged = false; });
}

/**
 * Let a peg be dragged to a place, and pressed by a click, Enter or Space.
 * Args: svg: its scene. home: where it stands. places: name → point of the places that are free.
 * near: called with the name of the place that it would take, while it moves. drop: with that name, or null, and the
 * point. press: when it is pressed. reach: how near a place must be, in units of the scene.
 */
function draggable(element, { svg, home, places, near, drop, press, reach }) {
  const nearest = ([x, y]) => {
    const far = Object.entries(places()).map(([name, [a, b]]) => [Math.hypot(a - x, b - y), name]).sort(([a], [b]) => a - b);
    return far.length && far[0][0] <= reach ? far[0][1] : null;
  };
  const end = () => {
    mark(element, "sc-held", false);
    near(null);
  };
  drag(element, {
    follow: (event) => {
      const point = pointerAt(svg, event);
      mark(element, "sc-held", true);
      move(element, point);
      near(nearest(point));
    },
    drop: (event) => { end(); drop(nearest(pointerAt(svg, event)), pointerAt(svg, event)); },
    cancel: () => { end(); move(element, home()); },
    press,
  });
  pressByKey(element, press);
}

/** The place in the direction of an arrow key: what is nearest, and least aside. */
function toward(key, [x, y], places) {
  const [u, v] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  let best = null;
  let least = Infinity;
  for (const [name, [a, b]] of Object.entries(places)) {
    const along = (a - x) * u + (b - y) * v;
    const aside = Math.abs((a - x) * v) + Math.abs((b - y) * u);
    if (along > 1 && along + 2 * aside < least) [best, least] = [name, along + 2 * aside];
  }
  return best;
}

/**
 * Move an element along points, and then call back; at once, where motion is to be reduced. One attribute changes in a
 * frame. Returns what stops it, or null if it is there already.
 */
function glide(element, points, duration, done) {
  const stays = points.every(([x, y]) => x === points[0][0] && y === points[0][1]);
  if (calm() || stays) { done(); return null; }
  let begun;
  let frameId;
  const step = (now) => {
    begun ??= now;
    const share = Math.min((SPEED * (now - begun)) / duration, 1);
    if (share === 1) { done(); return; }
    move(element, pointAlong(points, share < 0.5 ? 2 * share * share : 1 - 2 * (1 - share) ** 2));
    frameId = requestAnimationFrame(step);
  };
  frameId = requestAnimationFrame(step);
  return () => cancelAnimationFrame(frameId);
}

/** A value that travels: a dot with its number. */
function token(size) {
  const text = s("text", { "font-size": 1.1 * size });
  const element = s("g", { class: "sc-token", style: "display: none", "aria-hidden": "true" }, s("circle", { r: 8 }), text);
  let stop = () => {};
  const stand = (at, { value, way, below = false, left = false, hidden = false }) => {
    move(element, at);
    text.textContent = value;
    text.setAttribute("x", left ? -size - 9 : below ? 0 : 4); // to the left of the badge above a peg
    text.setAttribute("y", left ? 0.4 * size : below ? 1.5 * size + 11 : -size - 6);
    text.setAttribute("text-anchor", below && !left ? "middle" : "end");
    element.setAttribute("class", `sc-token sc-${way}`);
    element.style.display = hidden ? "none" : "";
  };
  /** Fly along the points and then call back; at once, where motion is to be reduced. */
  const fly = (points, duration, look, done) => {
    stop();
    if (calm()) { done(); return; }
    stand(points[0], look);
    stop = glide(element, points, duration, done) ?? stop;
  };
  const hide = () => { stop(); element.style.display = "none"; };
  return { element, stand, fly, hide, stop: () => stop() };
}

/**
 * Controls to play, step and scrub: buttons, a slider, and keys from anywhere in the figure (`keys` is for its root).
 * Args: go(index): show a station. at(): the index. last(): the last one; limit(): the last that may be reached now.
 * dwell(): milliseconds to stay. A figure calls `arrived()` when it has come to rest, and `show()` when anything changed.
 */
function player(model, { go, at, last, limit = last, dwell, text }) {
  let playing = false;
  let timer;
  const sign = (icon, word) => [h("span", { "aria-hidden": "true" }, icon), ` ${word}`];
  const icon = (sign_, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, sign_);
  const toggle = h("button", { type: "button", class: "sc-play", onclick: () => turn() });
  const back = icon("←", "Back", () => step(-1));
  const next = icon("→", "Next", () => step(1));
  const bar = h("input", { type: "range", min: "0", step: "1", "aria-label": "station", ...ownKeys });
  const value = h("output", { class: "hs-value", "aria-live": "off" });
  const element = h("div", { class: "sc-player" }, toggle, back, next, bar, value);

  const jump = (index) => { pause(); go(Math.min(Math.max(index, 0), limit())); };
  const step = (by) => jump(at() + by);
  const play = () => {
    playing = true;
    show();
    if (at() >= last()) go(0);
    else if (at() < limit()) go(at() + 1);
    else pause();
  };
  const pause = () => {
    clearTimeout(timer);
    if (!playing) return;
    playing = false;
    show();
  };
  const arrived = () => {
    clearTimeout(timer);
    if (!playing) return;
    if (at() >= limit()) { pause(); return; }
    timer = setTimeout(() => go(at() + 1), dwell() / SPEED);
  };
  const show = () => {
    toggle.replaceChildren(...sign(playing ? "❚❚" : "▶", playing ? "Pause" : "Play"));
    back.setAttribute("aria-disabled", String(at() <= 0)); // not disabled: the keyboard would lose its place
    next.setAttribute("aria-disabled", String(at() >= limit()));
    toggle.setAttribute("aria-disabled", String(!playing && at() >= limit() && limit() < last()));
    bar.max = String(last());
    bar.value = String(at());
    value.textContent = text();
    bar.setAttribute("aria-valuetext", value.textContent);
    element.dataset.playing = String(playing);
  };
  bar.addEventListener("input", () => { jump(Number(bar.value)); show(); });
  cleanups.get(model)?.push(() => { playing = false; clearTimeout(timer); });
  const turn = () => (playing ? pause() : play());
  const acts = {
    ArrowRight: () => step(1), ArrowDown: () => step(1), ArrowLeft: () => step(-1), ArrowUp: () => step(-1),
    Home: () => jump(0), End: () => jump(last()), " ": turn,
  };
  const keys = (event) => {
    if (event.key === " " && event.target.tagName === "BUTTON") event.stopPropagation(); // the button is pressed
    else if (!event.defaultPrevented) actOn(event, acts[event.key]);
  };
  /** Say a sentence; while it plays, a screen reader is not flooded with them. */
  const say = (status, text_) => {
    status.textContent = text_;
    status.setAttribute("aria-live", playing ? "off" : "polite");
  };
  return { element, keys, play, pause, turn, arrived, show, say };
}

/** Call draw(whether the figure is narrower than so many pixels), now and whenever that changes. */
function fitWidth(model, figure, pixels, draw) {
  let narrow;
  const fit = (width) => {
    const wanted = Boolean(width && width < pixels);
    if (wanted === narrow) return;
    narrow = wanted;
    draw(narrow);
  };
  const sized = new ResizeObserver(([entry]) => fit(entry.contentRect.width));
  fit(figure.clientWidth);
  sized.observe(figure);
  cleanups.get(model)?.push(() => sized.disconnect());
}
