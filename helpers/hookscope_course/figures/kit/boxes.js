// Boxes and arrows as SVG, from the numbers that hookscope_course.figures.kit.boxes.layout has worked out.

/** The picture in `drawing`; a screen reader says `alt`, and the numbers are in a table beside it. */
function boxes(drawing, alt) {
  const tip = `hookscope-${++lastId}`;
  const head = (id, kind) => s("marker", { id, class: kind, markerWidth: 9, markerHeight: 9, refX: 8, refY: 4.5,
    markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0,0.5 L9,4.5 L0,8.5 z" }));
  const svg = s("svg", {
    class: "hs-boxes", role: "img", "aria-label": alt, viewBox: `0 0 ${drawing.width} ${drawing.height}`,
    style: `width:${drawing.width}px`,
  }, s("defs", {}, head(`${tip}-a`, "hs-flows"), head(`${tip}-b`, "hs-still")));
  for (const { points, flows } of drawing.arrows) {
    svg.append(s("polyline", {
      class: flows ? "hs-flows" : "hs-still", points: points.join(" "), "marker-end": `url(#${tip}-${flows ? "a" : "b"})`,
    }));
  }
  // What comes with a stage has two states: "before" is shown until the gradient is there, "after" from then on.
  const state = ({ x, y, width, height, round }, lines, lit, attributes = {}) => {
    const box = s("g", { class: `hs-box${lit ? " hs-thick" : ""}`, ...attributes }, s("rect", { x, y, width, height, rx: round ? 14 : 2 }));
    lines.forEach(([text, look], line) =>
      box.append(s("text", { x: x + 9, y: y + 21 + 17 * line, class: `hs-${look}` }, text)));
    return box;
  };
  for (const box of drawing.boxes) {
    if (box.before) svg.append(state(box, box.before, false, { "data-until": box.stage }));
    svg.append(state(box, box.lines, box.lit, box.before ? { "data-from": box.stage } : {}));
  }
  for (const { at: [x, y], text, flows, stage } of drawing.arrows) {
    if (!text) continue;
    const wide = 7.3 * text.length + 6; // no line goes through the numbers, not even their own
    svg.append(s("g", stage === undefined ? {} : { "data-from": stage },
      s("rect", { class: "hs-paper", x: x - wide / 2, y: y - 9, width: wide, height: 18 }),
      s("text", { class: `hs-along ${flows ? "" : "hs-quiet"}`, x, y: y + 4 }, text)));
  }
  return svg;
}
