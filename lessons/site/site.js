// The stand-in for a kernel: it knows what the real widget answered to each choice, and computes nothing.

const here = document.currentScript.src;

/** What a widget asks of the page: traits that can be read, set and listened to. `take` answers what was set. */
class Model {
  hearers = {};
  pending = new Map();
  get(name) { return this.state[name]; }
  set(name, value) { this.pending.set(name, value); }
  on(event, hearer) { (this.hearers[event] ??= []).push(hearer); }
  off(event, hearer) { this.hearers[event] = (this.hearers[event] ?? []).filter((each) => each !== hearer); }
  save_changes() {
    const asked = Object.fromEntries(this.pending);
    this.pending.clear();
    this.take(asked);
  }
  change(next, asked = []) {
    const before = this.state;
    this.state = next;
    for (const name of Object.keys(next)) {
      // What was asked for and not given is told, too: a control goes back to what is shown.
      if (before[name] !== next[name] || asked.includes(name)) for (const hearer of this.hearers[`change:${name}`] ?? []) hearer();
    }
  }
}

class Recorded extends Model {
  constructor(record) {
    super();
    this.record = record;
    this.state = this.read(record.state);
  }
  read(states) {
    const value = (each) => {
      if (each === null || typeof each !== "object") return each;
      if (Object.keys(each).length === 1 && "is" in each) return value(this.record.values[each.is]);
      if ("base64" in each) return new DataView(Uint8Array.from(atob(each.base64), (sign) => sign.charCodeAt(0)).buffer);
      if (Array.isArray(each)) return each.map(value);
      return Object.fromEntries(Object.entries(each).map(([name, one]) => [name, value(one)]));
    };
    return value(states);
  }
  take(asked) {
    const { controls, quiet, answers, alone, free } = this.record;
    const { _request: request = this.state._request, ...chosen } = asked;
    const wanted = { ...this.state, ...chosen };
    const changed = controls.filter((name) => JSON.stringify(wanted[name]) !== JSON.stringify(this.state[name]));
    const known = answers[JSON.stringify(controls.map((name) => wanted[name]))]
      ?? (changed.includes(controls[0]) ? alone[JSON.stringify([controls[0], wanted[controls[0]]])] : undefined);
    const others = Object.keys(chosen).every((name) => controls.includes(name) || quiet.includes(name) || wanted[name] === this.state[name]);
    let next = { ...this.state };
    if (known && others) next = { ...this.read(this.record.state), ...this.read(known), problem: "" };
    else if (free && others) next = { ...this.read(this.record.state), ...wanted, problem: "" };
    else next.problem = "This was not recorded for the page. In your own copy of the course it works: make lab.";
    for (const name of quiet) next[name] = wanted[name];
    this.change({ ...next, _request: request, _response: request }, Object.keys(chosen));
  }
}

const draw = (place) => {
  const record = (window.hookscopeLive ?? {})[place.dataset.live];
  const style = document.createElement("style");
  style.textContent = record.css;
  document.head.append(style);
  const url = URL.createObjectURL(new Blob([record.esm], { type: "text/javascript" }));
  import(url).then(({ default: widget }) => {
    place.replaceChildren();
    widget.render({ model: new Recorded(record), el: place });
    reachable();
  });
};

// A recording is fetched when its place comes near; a script, since a page that was opened from a disk may load one.
const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    const script = document.createElement("script");
    script.src = new URL(`live/${target.dataset.live}.js`, here);
    script.onload = () => draw(target);
    document.head.append(script);
  }
}, { rootMargin: "1000px" });
for (const place of document.querySelectorAll("[data-live]")) near.observe(place);

// What scrolls sideways can be scrolled by keyboard, too.
const reachable = () => {
  for (const each of document.querySelectorAll("pre, .cell_output, .live, article table")) {
    if (each.scrollWidth > each.clientWidth + 1) each.tabIndex = 0;
    else if (!each.matches("[role]")) each.removeAttribute("tabindex");
  }
};
reachable();
addEventListener("resize", reachable);
document.addEventListener("toggle", reachable, true);

// A link, or the search, may lead into what is folded away: open it.
const unfold = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();
addEventListener("beforeprint", () => document.querySelectorAll("details.answer, details.imports").forEach((each) => { each.open = true; }));

// Where you are, in the list of pages; and a name for the buttons that only show a tooltip.
const scroller = document.querySelector(".sidebar-scroll");
const current = scroller?.querySelector(".current-page");
if (current) scroller.scrollTop = current.offsetTop - scroller.clientHeight / 2;
addEventListener("load", () => {  // they are made by another script
  for (const each of document.querySelectorAll(".copybtn")) each.setAttribute("aria-label", each.dataset.tooltip || "Copy");
});
