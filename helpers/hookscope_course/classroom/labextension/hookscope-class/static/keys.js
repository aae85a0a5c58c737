// The keys of `make class`, and the number of the slide. JupyterLab loads this file as it loads any extension of its own.
"use strict";
(() => {
  const PRESENTING = "body[data-jp-deck-mode='presenting']";
  // The nearest match wins, then the more specific one: the bindings of JupyterLab and of its slides stand behind these.
  const CELL = `${PRESENTING} .jp-Deck .jp-Notebook .jp-Cell`;
  const MOVING = `${PRESENTING} .jp-Deck .jp-Notebook.jp-mod-commandMode:not(.jp-mod-readWrite) :focus`;
  const KEYS = [
    ["run", "Shift Enter", PRESENTING, CELL],
    ["forward", "PageDown", PRESENTING, CELL],
    ["back", "PageUp", PRESENTING, CELL],
    ...["ArrowRight", "ArrowDown", "Space"].map((key) => ["forward", key, MOVING]),
    ...["ArrowLeft", "ArrowUp", "Shift Space"].map((key) => ["back", key, MOVING]),
  ];

  function activate(app) {
    const number = Object.assign(document.createElement("div"), { className: "hookscope-class-number" });
    const look = Object.assign(document.createElement("link"), { rel: "stylesheet", href: STYLE });
    document.head.append(look);
    document.body.append(number);
    const notebook = () => app.shell.currentWidget?.content;
    let ran = null; // the cell whose output the class looks at
    let running = false;
    let growing = null;

    /** Scroll to what a cell has put out, all of it if that fits. It may be drawn a while after the run has ended. */
    function show(cell) {
      const output = cell.outputArea.node;
      growing = new ResizeObserver(() => {
        const fits = output.clientHeight <= notebook().outerNode.clientHeight;
        output.scrollIntoView({ block: fits ? "nearest" : "start" });
      });
      growing.observe(output);
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

    /** Go on, or back: within a cell that is taller than the screen, to the next cell, to the next slide. */
    async function go(direction) {
      const { activeCell, outerNode } = notebook();
      const cell = activeCell.node.getBoundingClientRect(), screen = outerNode.getBoundingClientRect();
      const rest = direction === "forward" ? cell.bottom - screen.bottom : screen.top - cell.top;
      if (rest >= 2) {
        outerNode.scrollBy({ top: (direction === "forward" ? 1 : -1) * Math.min(rest, 0.85 * screen.height) });
        return;
      }
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
    for (const [name, key, ...selectors] of KEYS) {
      for (const selector of selectors) app.commands.addKeyBinding({ command: `hookscope-class:${name}`, keys: [key], selector });
    }
  }

  const STYLE = new URL("class.css", document.currentScript.src).href;
  const plugin = { id: "hookscope-class:keys", autoStart: true, activate };
  (window._JUPYTERLAB ??= {})["hookscope-class"] = { init: () => {}, get: async () => () => ({ __esModule: true, default: plugin }) };
})();
