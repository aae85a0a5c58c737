// The page's end of the comm: what anywidget gives to a script, and what the widget manager does with messages.

const models = new Map();
const leaked = [];

/** As in ipywidgets: `set` tells the page at once, and `save_changes` waits until the last answer has come. */
class PageModel {
  hearers = {};
  changed = {};
  asking = false;
  constructor(id, state) { Object.assign(this, { id, state }); }
  get(name) { return this.state[name]; }
  set(name, value) {
    this.changed[name] = value;
    this.receive({ [name]: value });
  }
  on(event, hearer) { (this.hearers[event] ??= []).push(hearer); }
  off(event, hearer) { this.hearers[event] = (this.hearers[event] ?? []).filter((each) => each !== hearer); }
  tell(event) { for (const hearer of [...(this.hearers[event] ?? [])]) hearer(); }
  receive(state) {
    const other = Object.keys(state).filter((name) => JSON.stringify(this.state[name]) !== JSON.stringify(state[name])
      || state[name] instanceof DataView);
    Object.assign(this.state, state);
    for (const name of other) this.tell(`change:${name}`);
  }
  async save_changes() {
    if (this.asking) return;
    this.asking = true;
    while (Object.keys(this.changed).length) {
      const asked = this.changed;
      this.changed = {};
      take(await window.hookscopeSet(this.id, asked));
    }
    this.asking = false;
  }
}

const read = (state) => Object.fromEntries(Object.entries(state).map(([name, each]) => [name,
  each?.base64 === undefined ? each : new DataView(Uint8Array.from(atob(each.base64), (sign) => sign.charCodeAt(0)).buffer)]));

/** What widgets have sent. A value that the page has changed meanwhile stays, as in ipywidgets. */
function take(sent) {
  for (const { id, state } of sent) {
    const model = models.get(id);
    if (!model || !state) continue;
    model.receive(Object.fromEntries(Object.entries(read(state)).filter(([name]) => !(name in model.changed))));
  }
}

async function draw({ id, cell, state, layout, esm, css }) {
  const place = Object.assign(document.createElement("div"), { className: "cell" });
  place.dataset.cell = cell;
  document.querySelector("main").append(place);
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const model = new PageModel(id, { ...read(state), layout });
  models.set(id, model);
  const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  model.undo = await widget.render({ model, el: place });
}

function clear() {
  for (const model of models.values()) model.undo?.();
  models.clear();
  document.querySelector("main").replaceChildren();
}

const stop = () => { for (const model of models.values()) model.tell("comm_live_update"); };

// A notebook takes a key that reaches the page, unless it was typed into a field, presses a button, or comes from a place
// that keeps its keys.
addEventListener("keydown", ({ key, target }) => {
  const free = ["Tab", "Shift", "Escape"].includes(key) || ([" ", "Enter"].includes(key) && target.matches("button, summary, input"));
  const kept = target.closest("[data-lm-suppress-shortcuts], input:not([type=range]):not([type=checkbox]), textarea, select");
  if (!free && !kept && target.closest(".hookscope")) leaked.push(key);
});
