// The keys of `make class`, and the number of the slide. JupyterLab loads this file as it loads any extension of its own.
"use strict";
(() => {
  // Wherever the focus is, also in a widget that keeps its keys to itself: a clicker knows no other ones.
  const ALWAYS = { PageDown: "forward", PageUp: "back", "Shift Enter": "run" };
  // Where nobody types and no widget has the focus. More specific than what the slides themselves bind to these keys.
  const MOVING = "body[data-jp-deck-mode='presenting'] .jp-Deck .jp-Notebook.jp-mod-commandMode:not(.jp-mod-readWrite) :focus";
  const KEYS = {
    ArrowRight: "forward", ArrowDown: "forward", Space: "forward", ArrowLeft: "back", ArrowUp: "back", "Shift Space": "back",
  };

  const READABLE = 18; // pixels, as high as a letter and what stands around it

  function activate(app) {
    const number = Object.assign(document.createElement("div"), { className: "hookscope-class-number" });
    const look = Object.assign(document.createElement("link"), { rel: "stylesheet", href: STYLE });
    document.head.append(look);
    document.body.append(number);
    const notebook = () => app.shell.currentWidget?.content;
    let ran = null; // the cell whose output the class looks at
    let running = false;
    let growing = null;
    let sizing = null;

    /** Let the words in drawings grow until they can be read from the last row, by two fifths at most: else they touch. */
    function enlarge(output) {
      for (const word of output.querySelectorAll(".hookscope svg text")) {
        const drawn = word.getBoundingClientRect(), own = word.getBBox();
        if (!own.height || drawn.height > drawn.width * (own.height / own.width) * 2) continue; // hidden, or upright
        const grown = parseFloat(word.style.scale) || 1;
        const { fontSize, textAnchor } = getComputedStyle(word);
        const size = (parseFloat(fontSize) * drawn.height) / own.height / grown;
        word.style.transformOrigin = { start: "left", middle: "center", end: "right" }[textAnchor];
        word.style.scale = Math.min(1.4, Math.max(1, READABLE / size)).toFixed(2);
      }
    }

    /** Scroll to what a cell has put out, all of it if that fits. It may be drawn a while after the run has ended. */
    function show(cell) {
      const output = cell.outputArea.node;
      growing = new ResizeObserver(() => {
        enlarge(output);
        const fits = output.clientHeight <= notebook().outerNode.clientHeight;
        output.scrollIntoView({ block: fits ? "nearest" : "start" });
      });
      growing.observe(output);
      sizing?.disconnect();
      sizing = new MutationObserver(() => enlarge(output));
      sizing.observe(output, { childList: true, subtree: true });
    }
    /** From now on the teacher scrolls. */
    const release = () => { growing?.disconnect(); growing = null; };
    for (const event of ["keydown", "pointerdown", "wheel"]) document.addEventListener(event, release, true);

    async function run() {
      const cell = notebook().activeCell;
      if (running) return;
      if (cell.model.type !== "code" || (cell === ran && !cell.model.isDirty)) return go("forward");
      running = true;
      ran = cell;
      show(cell);
      try {
        await app.commands.execute("notebook:run-cell");
      } finally {
        running = false;
      }
    }

    /** Go on, or back: within a cell that is taller than the screen, to the next cell, to the next slide. A cell that has
     * not run yet runs first: the cells below need it, and a clicker has no Shift+Enter. */
    async function go(direction) {
      const { activeCell, outerNode } = notebook();
      const cell = activeCell.node.getBoundingClientRect(), screen = outerNode.getBoundingClientRect();
      const rest = direction === "forward" ? cell.bottom - screen.bottom : screen.top - cell.top;
      if (rest >= 2) {
        outerNode.scrollBy({ top: (direction === "forward" ? 1 : -1) * Math.min(rest, 0.85 * screen.height) });
        return;
      }
      const { model } = activeCell;
      const waits = model.type === "code" && model.executionCount === null && activeCell !== ran;
      if (direction === "forward" && waits) return run();
      await app.commands.execute(`deck:${direction}`);
      const { node } = notebook().activeCell;
      const fits = node.clientHeight <= outerNode.clientHeight;
      node.scrollIntoView({ block: fits ? "nearest" : direction === "forward" ? "start" : "end" });
    }

    const begins = (cell) => cell.getMetadata("slideshow")?.slide_type === "slide";
    function arrive({ model, activeCellIndex }) {
      ran = null;
      const cells = [...model.cells];
      number.textContent = `${cells.slice(0, activeCellIndex + 1).filter(begins).length} / ${cells.filter(begins).length}`;
    }
    const known = new WeakSet();
    app.shell.currentChanged.connect(() => {
      const shown = notebook();
      if (!shown?.activeCellChanged || known.has(shown)) return;
      known.add(shown);
      shown.activeCellChanged.connect(() => arrive(shown));
    });

    const commands = { run, forward: () => go("forward"), back: () => go("back") };
    for (const [name, execute] of Object.entries(commands)) app.commands.addCommand(`hookscope-class:${name}`, { execute });
    for (const [key, name] of Object.entries(KEYS)) {
      app.commands.addKeyBinding({ command: `hookscope-class:${name}`, keys: [key], selector: MOVING });
    }
    window.addEventListener("keydown", (event) => {
      const name = ALWAYS[(event.shiftKey ? "Shift " : "") + event.key];
      const isOurs = name && !event.ctrlKey && !event.altKey && !event.metaKey;
      if (!isOurs || document.body.dataset.jpDeckMode !== "presenting" || !notebook()?.activeCell) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      release();
      commands[name]();
    }, true);
  }

  const STYLE = new URL("class.css", document.currentScript.src).href;
  const plugin = { id: "hookscope-class:keys", autoStart: true, activate };
  (window._JUPYTERLAB ??= {})["hookscope-class"] = { init: () => {}, get: async () => () => ({ __esModule: true, default: plugin }) };
})();
