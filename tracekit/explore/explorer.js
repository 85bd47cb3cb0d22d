// The explorer's view: draws sets of components, and what is known of them, from plain data.
//
// Two things may stand behind it: a widget of Jupyter (`model`), which measures what is asked for, or
// nothing but a table of what was measured (a saved page). All texts are set as text, never as HTML.
// Whatever is shown of a set is looked up by the key of that set.

const CSS = `
.tk-explore { color: var(--fg); font: 14px/1.45 system-ui, "Segoe UI", Arial, sans-serif; max-width: 1100px;
  text-align: left; }
.tk-explore * { box-sizing: border-box; }
.tk-explore .tk-title { font-weight: 600; font-size: 15px; }
.tk-explore .tk-muted { color: var(--muted); }
.tk-explore .tk-tools { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0; align-items: center; }
.tk-explore button, .tk-explore select { font: inherit; font-size: 13px; color: var(--fg);
  background: var(--panel); border: 1px solid var(--line); border-radius: 4px; padding: 3px 9px;
  min-height: 28px; cursor: pointer; }
.tk-explore select option { color: #1a1a1a; background: #ffffff; }
.tk-explore button:hover:not(:disabled) { border-color: var(--fg); }
.tk-explore button:disabled { opacity: 0.45; cursor: default; }
.tk-explore :focus-visible { outline: 3px solid var(--minus); outline-offset: 1px; }
.tk-explore .tk-gap { width: 10px; }
.tk-explore .tk-status { font-size: 15px; min-height: 22px; }
.tk-explore .tk-effect { font-weight: 700; }
.tk-explore .tk-second { min-height: 20px; }
.tk-explore .tk-warning { font-weight: 600; }
.tk-explore .tk-members { color: var(--muted); min-height: 20px; overflow-wrap: anywhere; }
.tk-explore .tk-problem { color: var(--problem); font-weight: 600; overflow-wrap: anywhere; }
.tk-explore .tk-problem:empty { display: none; }
.tk-explore .tk-grids { position: relative; display: flex; flex-wrap: wrap; gap: 18px; margin: 10px 0 4px;
  align-items: flex-start; overflow-x: auto; padding: 3px; }
.tk-explore .tk-arrows { position: absolute; left: 0; top: 0; z-index: 4; pointer-events: none;
  overflow: visible; }
.tk-explore .tk-arrows path { fill: none; stroke-linecap: round; }
.tk-explore .tk-arrows text { font-size: 11px; font-weight: 700; text-anchor: middle; fill: var(--fg);
  stroke: var(--zero); stroke-width: 3px; paint-order: stroke; }
.tk-explore .tk-grid-name { font-size: 13px; font-weight: 600; margin: 0 0 3px 46px; }
.tk-explore .tk-grid { display: inline-block; user-select: none; }
.tk-explore .tk-row { display: flex; }
.tk-explore .tk-row-name { width: 46px; flex: none; padding: 0 4px 0 0; }
.tk-explore .tk-row-name button { width: 100%; height: 100%; min-height: 0; padding: 0 6px 0 0;
  border: 0; background: none; text-align: right; color: var(--muted); font-size: 12px; }
.tk-explore .tk-row-name button:hover { text-decoration: underline; color: var(--fg); }
.tk-explore .tk-column-name { flex: none; text-align: center; font-size: 11px; color: var(--muted);
  overflow: visible; white-space: nowrap; }
.tk-explore .tk-column-name.tk-upright { writing-mode: vertical-rl; transform: rotate(180deg);
  text-align: left; max-height: 120px; overflow: hidden; }
.tk-explore .tk-cell { flex: none; position: relative; border: 1px solid var(--faint);
  margin: 0 -1px -1px 0; background: var(--zero); cursor: pointer; }
.tk-explore .tk-cell.tk-none { cursor: default; background: repeating-linear-gradient(45deg,
  var(--faint), var(--faint) 2px, transparent 2px, transparent 6px); }
.tk-explore .tk-cell.tk-on { z-index: 1; border: 2px solid var(--fg); }
.tk-explore .tk-cell.tk-on::after { content: ""; position: absolute; inset: 0; margin: auto;
  width: 36%; aspect-ratio: 1; max-height: 60%; border-radius: 50%; background: var(--fg);
  box-shadow: 0 0 0 2px var(--zero); }
.tk-explore .tk-cell.tk-dragged { outline: 2px dashed var(--fg); outline-offset: -4px; z-index: 2; }
.tk-explore .tk-cell:focus-visible { z-index: 3; }
.tk-explore .tk-letter { position: absolute; right: 1px; top: -1px; font-size: 9px; line-height: 11px;
  font-weight: 700; pointer-events: none; color: var(--fg); }
.tk-explore .tk-saved { line-height: 20px; }
.tk-explore .tk-cell.tk-leads { box-shadow: inset 0 -3px 0 var(--line); }
.tk-explore .tk-body.tk-tall { display: flex; flex-wrap: wrap; gap: 0 24px; align-items: flex-start; }
.tk-explore .tk-tall .tk-grids { max-width: 100%; }
.tk-explore .tk-tall .tk-side { flex: 1 1 420px; min-width: min(100%, 300px); position: sticky; top: 8px;
  padding-top: 30px; }
.tk-explore .tk-hover { min-height: 22px; }
.tk-explore .tk-legend { display: flex; gap: 6px; align-items: center; font-size: 12px;
  color: var(--muted); min-height: 18px; }
.tk-explore .tk-bar { width: 120px; height: 10px; border: 1px solid var(--line);
  background: linear-gradient(to right, var(--minus), var(--zero), var(--plus)); }
.tk-explore .tk-budget { display: flex; gap: 8px; align-items: center; margin: 6px 0; }
.tk-explore .tk-budget input { width: 260px; accent-color: var(--minus); }
.tk-explore .tk-strip { width: 100%; display: block; cursor: pointer; }
.tk-explore .tk-strip text { fill: var(--muted); font-size: 11px; }
.tk-explore .tk-detail { background: var(--panel); border-radius: 4px; padding: 6px 10px;
  min-height: 96px; overflow-wrap: anywhere; }
.tk-explore .tk-token { white-space: pre-wrap; border-radius: 2px; padding: 1px 1px; margin-right: 2px;
  box-shadow: inset 0 -1px 0 var(--line), inset -1px 0 0 var(--line); }
.tk-explore .tk-token.tk-changed { font-weight: 700; background: var(--mark);
  text-decoration: underline; text-underline-offset: 3px; }
.tk-explore .tk-compare:empty { display: none; }
.tk-explore .tk-compare { margin: 6px 0; }
.tk-explore .tk-ask { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0 4px; }
.tk-explore .tk-ask[hidden] { display: none; }
.tk-explore .tk-ask input { flex: 1 1 260px; min-width: 0; font: inherit; font-size: 13px;
  color: var(--fg); background: var(--zero); border: 1px solid var(--line); border-radius: 4px;
  padding: 3px 8px; }
.tk-explore .tk-written { width: 100%; display: grid; grid-template-columns: 1fr 1fr; gap: 2px 16px;
  overflow-wrap: anywhere; white-space: pre-wrap; }
.tk-explore .tk-written > span { grid-column: 1 / -1; font-weight: 400; }
.tk-explore .tk-code { width: 100%; font: 12px/1.4 monospace; color: var(--fg);
  background: var(--panel); border: 1px solid var(--line); }
.tk-explore .tk-unseen { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); white-space: nowrap; }
`;

const SILENCE = 6000; // Milliseconds without an answer after which the view says so.
const MOST_UNDONE = 100;
const MOST_ARROWS = 20;
const WIDEST = 6;
const CIRCUIT =
  "Faithfulness: how much of the effect of all is left with the set alone; 1 is all of it. " +
  "Completeness: how much is left without the set; 0 is none. In brackets: 95 % over the examples.";
const SPREAD = "In brackets: how far the effect moves when the examples are resampled (95 %).";

// ---- numbers and keys ---------------------------------------------------------------------------

function fmt(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "\u2013";
  const isTiny = value !== 0 && Math.abs(value) < 1e-4;
  const text = isTiny ? Number(value.toExponential(2)).toExponential() : String(Number(value.toPrecision(3)));
  return text.replaceAll("-", "\u2212");
}

function signed(value) {
  return (value > 0 ? "+" : "") + fmt(value);
}

// A text under the pointer's reach never shrinks: what lies around it would move, another thing
// would come under the pointer, and the text would grow again, for ever.
function keepHeight(node) {
  // It has no height before it is in the page, and in a hidden one.
  if (!node.offsetHeight) return;
  // Rounded up: rounded down, it would shrink by a fraction. Not the height on screen, which a
  // slide scales.
  node.style.minHeight = `${Math.ceil(parseFloat(getComputedStyle(node).height))}px`;
}

function mean(values) {
  let total = 0;
  for (const value of values) total += value;
  return total / values.length;
}

// The same text as `set_key` of Python: runs of ascending flat indices.
function setKey(members) {
  const parts = [];
  for (let i = 0; i < members.length; ) {
    let j = i;
    while (j + 1 < members.length && members[j + 1] === members[j] + 1) j++;
    parts.push(i === j ? `${members[i]}` : `${members[i]}-${members[j]}`);
    i = j + 1;
  }
  return parts.join(",");
}

function membersOf(key) {
  const members = [];
  for (const run of key.split(",").filter(Boolean)) {
    const [low, high] = run.split("-").map(Number);
    for (let i = low; i <= (high ?? low); i++) members.push(i);
  }
  return members;
}

function toggled(members, index) {
  const without = members.filter((i) => i !== index);
  if (without.length < members.length) return without;
  return [...members, index].sort((a, b) => a - b);
}

function floats(view) {
  if (typeof view === "string") {
    const bytes = Uint8Array.from(atob(view), (c) => c.charCodeAt(0));
    return new Float32Array(bytes.buffer);
  }
  const buffer = view.buffer ?? view;
  const start = view.byteOffset ?? 0;
  return new Float32Array(buffer.slice(start, start + view.byteLength));
}

// ---- what is known ------------------------------------------------------------------------------

class Known {
  constructor(setup) {
    this.setup = setup;
    this.measured = new Map();
    this.predicted = new Map();
    this.unpredicted = new Map();
    this.problems = new Map();
    this.circuits = new Map();
  }

  addTable(table) {
    let values = floats(table.effects);
    let at = 0;
    for (const entry of table.measured) at = this.addMeasured(entry, values, at);
    values = floats(table.gains);
    const n = this.setup.labels.length;
    table.predicted.forEach((entry, i) =>
      this.predicted.set(entry.key, { ...entry, gains: values.slice(i * n, (i + 1) * n) }),
    );
    for (const entry of table.circuits) this.circuits.set(entry.key, entry);
    for (const entry of table.unpredicted) this.unpredicted.set(entry.key, entry.reason);
  }

  addMeasured(entry, values, at = 0) {
    const n = this.setup.examples.length;
    const part = (has) => (has ? values.slice(at, (at += n)) : null);
    const effects = part(true);
    const x = part(entry.x);
    const y = part(entry.y);
    this.measured.set(entry.key, { ...entry, effects, x, y });
    this.problems.delete(entry.key);
    return at;
  }

  alone(index) {
    return this.measured.get(String(index))?.effect ?? null;
  }

  // A prediction of a set that was not measured, from a neighbour that was, or from single effects.
  guess(members) {
    for (let i = 0; i < this.setup.labels.length; i++) {
      const key = setKey(toggled(members, i));
      const near = this.measured.get(key);
      const gains = this.predicted.get(key);
      if (near && gains && !gains.rough && Number.isFinite(gains.gains[i])) {
        const joins = members.includes(i);
        const value = near.effect + (joins ? 1 : -1) * gains.gains[i];
        return { value, from: `the set ${joins ? "without" : "with"} ${this.setup.labels[i]}` };
      }
    }
    const singles = members.map((i) => this.alone(i));
    if (members.length && singles.every((value) => value !== null)) {
      return { value: singles.reduce((a, b) => a + b, 0), from: "the sum of single effects" };
    }
    return null;
  }
}

// ---- the set, its history, pins -------------------------------------------------------------------

class Session {
  constructor(state, n) {
    this.n = n;
    this.adopt(state);
  }

  adopt(state) {
    this.history = [...state.history];
    this.position = state.position;
    this.pins = { ...state.pins };
    this.example = state.example;
  }

  get key() {
    return this.history[this.position];
  }

  get members() {
    return membersOf(this.key);
  }

  select(members) {
    const key = setKey([...members].sort((a, b) => a - b));
    if (key === this.key) return;
    this.history = [...this.history.slice(0, this.position + 1), key].slice(-MOST_UNDONE);
    this.position = this.history.length - 1;
  }

  complement() {
    const own = new Set(this.members);
    this.select([...Array(this.n).keys()].filter((i) => !own.has(i)));
  }

  step(by) {
    this.position = Math.min(this.history.length - 1, Math.max(0, this.position + by));
  }

  state() {
    return {
      history: this.history,
      position: this.position,
      pins: this.pins,
      example: this.example,
    };
  }
}

// ---- elements -----------------------------------------------------------------------------------

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "on") for (const [event, f] of Object.entries(value)) made.addEventListener(event, f);
    else if (name === "text") made.textContent = value;
    else if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function drawn(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

let counter = 0;

class View {
  constructor(el, setup, session, known, host) {
    this.setup = setup;
    this.session = session;
    this.known = known;
    this.host = host; // live, saved, changed(), page(): what stands behind the view
    this.id = `tk${++counter}`;
    this.color = "gain";
    this.progress = null;
    this.shownExample = null;
    this.rowGains = null; // predictions for the pinned example: {key, example, gains}
    this.range = [0, 0];
    this.focused = null;
    this.cells = new Map();
    this.build(el);
    this.watchTheme();
    this.draw();
  }

  // ---- building, once ---------------------------------------------------------------------------

  build(el) {
    const { setup } = this;
    this.root = element("div", {
      class: "tk-explore",
      "data-lm-suppress-shortcuts": "true",
      role: "group",
      "aria-label": `Explorer: ${setup.title}`,
      on: { keydown: (event) => this.shortcut(event) },
    });
    const [light, dark] = setup.colors;
    const colors = `.tk-explore { ${light} }\n.tk-explore.tk-dark { ${dark} }`;
    this.root.append(element("style", { text: colors + CSS }));
    this.root.append(
      element("div", { class: "tk-title", text: setup.title }),
      element("div", { class: "tk-muted", text: setup.subtitle }),
    );
    this.root.append(this.buildTools());
    this.status = element("div", { class: "tk-status", role: "status", "aria-live": "polite" });
    this.waiting = element("span", { class: "tk-muted tk-waiting", "aria-hidden": "true" });
    this.circuit = element("span", { class: "tk-circuit", title: CIRCUIT, "aria-live": "polite" });
    this.second = element("div", { class: "tk-second" }, this.waiting, this.circuit);
    this.membersLine = element("div", { class: "tk-members" });
    this.problem = element("div", { class: "tk-problem", role: "alert" });
    this.grids = element("div", { class: "tk-grids" });
    setup.grids.forEach((grid, number) => this.grids.append(this.buildGrid(grid, number)));
    this.arrows = drawn("svg", { class: "tk-arrows", width: 1, height: 1, "aria-hidden": "true" });
    this.grids.append(this.arrows);
    this.hover = element("div", { class: "tk-hover" });
    this.legend = element("div", { class: "tk-legend" });
    this.compare = element("div", { class: "tk-compare" });
    this.saved = element("div", { class: "tk-muted tk-saved" });
    // Of a deep model all else stands beside the grid, where there is room.
    const isTall = setup.grids.some((grid) => grid.layers.length > 16);
    this.side = element("div", { class: "tk-side" }, this.hover, this.legend);
    this.root.append(this.status, this.second, this.problem, this.membersLine, this.saved);
    this.root.append(element("div", { class: `tk-body${isTall ? " tk-tall" : ""}` }, this.grids, this.side));
    if (setup.front) this.side.append(this.buildBudget());
    this.side.append(this.compare);
    this.buildStrip();
    this.codeBox = element("div");
    this.side.append(this.buildAsk());
    this.root.append(this.codeBox);
    el.append(this.root);
    this.fitCells();
    this.showHover(null);
  }

  button(text, help, action) {
    return element("button", { type: "button", text, title: help, on: { click: action } });
  }

  buildTools() {
    const change = (action) => () => this.change(action);
    const s = this.session;
    this.buttons = {
      clear: this.button("Clear", "Take everything out of the set", change(() => s.select([]))),
      all: this.button(
        "All",
        "Put all components in",
        change(() => s.select([...Array(s.n).keys()])),
      ),
      complement: this.button(
        "Complement",
        "Exchange the set for all other components",
        change(() => s.complement()),
      ),
      undo: this.button("Undo", "The set before (Ctrl+Z)", change(() => s.step(-1))),
      redo: this.button("Redo", "The set that was undone (Ctrl+Shift+Z)", change(() => s.step(1))),
    };
    this.pinButtons = {};
    for (const name of ["A", "B"]) {
      this.pinButtons[name] = this.button(`Pin ${name}`, `Keep this set as ${name}`, () =>
        this.change(() => {
          if (s.pins[name] === s.key) delete s.pins[name];
          else s.pins[name] = s.key;
        }),
      );
    }
    const colors = [
      ["gain", "predicted gain"],
      ["alone", "effect alone"],
      ["none", "nothing"],
    ];
    this.colorSelect = element(
      "select",
      {
        "aria-label": "What the colour of a cell says",
        on: {
          change: (event) => {
            this.color = event.target.value;
            this.draw();
          },
        },
      },
      ...colors.map(([value, text]) => element("option", { value, text })),
    );
    const gap = () => element("span", { class: "tk-gap" });
    const b = this.buttons;
    return element(
      "div",
      { class: "tk-tools", role: "group", "aria-label": "Changes of the set" },
      ...[b.clear, b.all, b.complement, gap(), b.undo, b.redo, gap()],
      ...[this.pinButtons.A, this.pinButtons.B, gap()],
      element("label", {}, element("span", { text: "Colour: " }), this.colorSelect),
      gap(),
      this.button("Copy as Python", "Copy code that measures this set", () => this.copyCode()),
      this.button("Save page", "One file with all that was measured", () => this.savePage()),
    );
  }

  buildGrid(grid, number) {
    const box = element("div", {});
    const name = element("div", { class: "tk-grid-name", text: grid.title });
    name.id = `${this.id}-grid${number}`;
    const table = element("div", {
      class: "tk-grid",
      role: "grid",
      "aria-multiselectable": "true",
      "aria-labelledby": name.id,
      "aria-rowcount": grid.layers.length + 1,
      "aria-colcount": grid.columns.length + 1,
    });
    const upright = grid.columns.some((text) => text.length > 3);
    const header = element("div", { class: "tk-row", role: "row" });
    header.append(
      element("div", { class: "tk-row-name tk-column-name", role: "columnheader", text: "layer" }),
    );
    grid.columns.forEach((text) =>
      header.append(
        element("div", {
          class: `tk-column-name${upright ? " tk-upright" : ""}`,
          role: "columnheader",
          "aria-label": `${grid.noun} ${text}`,
          "data-text": text,
        }),
      ),
    );
    table.append(header);
    grid.cells.forEach((row, r) => {
      const line = element("div", { class: "tk-row", role: "row" });
      const layer = element("button", {
        type: "button",
        text: grid.layers[r],
        title: `Switch all of layer ${grid.layers[r]}`,
        "aria-label": `Switch all of layer ${grid.layers[r]}`,
        on: { click: () => this.switchAll(row.filter((i) => i !== null)) },
      });
      line.append(element("div", { class: "tk-row-name", role: "rowheader" }, layer));
      row.forEach((index, c) => {
        const cell = element("div", { class: "tk-cell", role: "gridcell" });
        if (index === null) {
          cell.classList.add("tk-none");
          cell.setAttribute("aria-label", "not studied");
          cell.setAttribute("aria-disabled", "true");
        } else {
          cell.tabIndex = -1;
          cell.dataset.index = index;
          this.cells.set(index, { cell, grid: number, row: r, column: c });
        }
        line.append(cell);
      });
      table.append(line);
    });
    const first = table.querySelector("[data-index]");
    if (first) first.tabIndex = 0;
    table.addEventListener("keydown", (event) => this.gridKey(event, grid, number));
    table.addEventListener("focusin", (event) => {
      const index = event.target.dataset?.index;
      if (index !== undefined) this.focusOn(Number(index), table);
    });
    table.addEventListener("pointerover", (event) => {
      const index = event.target.closest("[data-index]")?.dataset.index;
      if (index !== undefined) this.showHover(Number(index));
    });
    table.addEventListener("pointerleave", () => this.showHover(this.focusedIn(table)));
    table.addEventListener("pointerdown", (event) => this.startDrag(event, number));
    box.append(name, table);
    return box;
  }

  fitCells() {
    const widest = Math.max(...this.setup.grids.map((grid) => grid.columns.length));
    const tallest = Math.max(...this.setup.grids.map((grid) => grid.layers.length));
    const size = Math.max(7, Math.min(28, Math.floor(900 / widest), Math.floor(760 / tallest)));
    const height = Math.max(size, 13);
    this.root.querySelectorAll(".tk-cell").forEach((cell) => {
      cell.style.width = `${size}px`;
      cell.style.height = `${height}px`;
    });
    this.root.querySelectorAll(".tk-column-name[data-text]").forEach((name, i) => {
      // A header keeps its width when labels are left out.
      name.style.width = `${size - 1}px`;
      const text = name.dataset.text;
      const every = name.classList.contains("tk-upright") ? 1 : Math.ceil((7 * text.length + 4) / size);
      const column = [...name.parentElement.children].indexOf(name) - 1;
      name.textContent = column % Math.max(1, every) === 0 ? text : "";
    });
    this.root.querySelectorAll(".tk-row-name button").forEach((name) => {
      name.style.fontSize = size < 15 ? "10px" : "";
      name.style.lineHeight = `${height - 2}px`;
      name.parentElement.style.height = `${height - 1}px`;
    });
  }

  buildBudget() {
    const { front } = this.setup;
    this.slider = element("input", {
      type: "range",
      min: 0,
      max: front.keys.length - 1,
      step: 1,
      id: `${this.id}-budget`,
      on: {
        input: () => this.change(() => this.session.select(membersOf(front.keys[this.slider.value]))),
      },
    });
    this.budgetText = element("output", { for: `${this.id}-budget` });
    return element(
      "div",
      { class: "tk-budget" },
      element("label", { for: `${this.id}-budget`, text: front.name }),
      this.slider,
      this.budgetText,
    );
  }

  // A prompt of the reader's own, and what the model writes after it.
  buildAsk() {
    const input = (text) =>
      element("input", {
        type: "text",
        placeholder: text,
        "aria-label": text,
        on: {
          input: () => this.drawWritten(),
          keydown: (event) => {
            event.stopPropagation();
            if (event.key === "Enter" && !event.isComposing) this.ask();
          },
        },
      });
    this.asked = null;
    this.answer = null;
    this.inputs = [input("Try the set on a prompt of yours, and press Enter")];
    if (this.setup.needs_other) this.inputs.push(input("Its counterfactual, of as many tokens"));
    this.written = element("div", { class: "tk-written", "aria-live": "polite" });
    this.askBox = element("div", { class: "tk-ask" }, ...this.inputs, this.written);
    return this.askBox;
  }

  ask() {
    const empty = this.inputs.find(({ value }) => !value);
    if (empty) return empty.focus();
    this.asked = this.question();
    this.answer = null;
    this.host.ask(...this.inputs.map(({ value }) => value));
    this.drawWritten();
  }

  question() {
    return JSON.stringify(this.inputs.map(({ value }) => value));
  }

  // An answer stands beside the texts and the set that it is of only.
  drawWritten() {
    const { answer } = this;
    this.askBox.hidden = !this.host.live;
    const lines = [];
    const muted = (text) => element("span", { class: "tk-muted", text });
    if (this.asked !== this.question()) this.written.replaceChildren();
    else if (answer === null) this.written.replaceChildren(muted("writing \u2026"));
    else if (answer.key !== this.session.key) {
      this.written.replaceChildren(muted("Another set was on. Press Enter again for this one."));
    } else if (answer.problem) {
      this.written.replaceChildren(element("span", { class: "tk-problem", text: answer.problem }));
    } else {
      for (const [title, text] of [
        ["by itself: ", answer.clean],
        ["with the set replaced: ", answer.intervened],
      ]) lines.push(element("div", {}, muted(title), text));
      this.written.replaceChildren(...lines);
    }
  }

  buildStrip() {
    this.stripName = element("div", { class: "tk-muted", id: `${this.id}-strip` });
    this.strip = drawn("svg", {
      class: "tk-strip",
      role: "listbox",
      tabindex: "0",
      "aria-labelledby": `${this.id}-strip`,
    });
    this.strip.addEventListener("pointermove", (event) => this.pointAt(event));
    this.strip.addEventListener("pointerleave", () => {
      this.shownExample = this.session.example;
      this.drawStrip();
    });
    this.strip.addEventListener("click", (event) => {
      this.pointAt(event);
      this.pinExample();
    });
    this.strip.addEventListener("keydown", (event) => this.stripKey(event));
    this.detail = element("div", { class: "tk-detail" });
    this.side.append(this.stripName, this.strip, this.detail);
    if (typeof ResizeObserver !== "undefined") {
      new ResizeObserver(() => this.resize()).observe(this.root);
    }
  }

  resize() {
    if (this.side.offsetWidth !== this.width) {
      this.width = this.side.offsetWidth;
      for (const node of [this.hover, this.detail, this.second]) node.style.minHeight = "";
      keepHeight(this.hover);
      keepHeight(this.second);
    }
    this.drawArrows();
    this.drawStrip();
  }

  // ---- colours of the surroundings ----------------------------------------------------------------

  watchTheme() {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const apply = () => {
      let at = this.root;
      let dark = query.matches;
      while (at) {
        const [r, g, b, a] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
        if (a === undefined ? r !== undefined : a > 0.5) {
          dark = 0.3 * r + 0.59 * g + 0.11 * b < 128;
          break;
        }
        at = at.parentElement ?? at.getRootNode()?.host;
      }
      this.root.classList.toggle("tk-dark", dark);
    };
    apply();
    query.addEventListener("change", apply);
    new MutationObserver(apply).observe(document.body, { attributes: true });
    // The element may be put into the page later.
    requestAnimationFrame(apply);
  }

  // ---- changing the set ---------------------------------------------------------------------------

  change(action) {
    const before = this.session.key;
    action();
    if (this.session.key !== before) this.progress = null;
    this.host.changed();
    this.draw();
  }

  switchAll(indices) {
    const own = new Set(this.session.members);
    const on = !indices.every((i) => own.has(i));
    indices.forEach((i) => (on ? own.add(i) : own.delete(i)));
    this.change(() => this.session.select([...own]));
  }

  toggle(index) {
    this.change(() => this.session.select(toggled(this.session.members, index)));
  }

  shortcut(event) {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") {
      event.preventDefault();
      this.change(() => this.session.step(event.shiftKey ? 1 : -1));
    }
  }

  startDrag(event, number) {
    const start = event.target.closest("[data-index]");
    if (!start || event.button !== 0) return;
    const from = this.cells.get(Number(start.dataset.index));
    let inside = [Number(start.dataset.index)];
    let moved = false;
    const mark = () => {
      this.cells.forEach(({ cell }, index) =>
        cell.classList.toggle("tk-dragged", moved && inside.includes(index)),
      );
    };
    const move = (at) => {
      const under = document.elementFromPoint(at.clientX, at.clientY) ?? null;
      const here = (this.root.getRootNode().elementFromPoint?.(at.clientX, at.clientY) ?? under)?.closest?.(
        "[data-index]",
      );
      const to = here && this.root.contains(here) ? this.cells.get(Number(here.dataset.index)) : null;
      if (!to || to.grid !== number) return;
      const between = (a, b, c) => Math.min(a, b) <= c && c <= Math.max(a, b);
      inside = [...this.cells]
        .filter(
          ([, at]) =>
            at.grid === number &&
            between(from.row, to.row, at.row) &&
            between(from.column, to.column, at.column),
        )
        .map(([index]) => index);
      moved = moved || inside.length > 1;
      mark();
    };
    const stop = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", end);
      window.removeEventListener("pointercancel", stop);
      moved = false;
      mark();
    };
    const end = () => {
      const chosen = inside;
      stop();
      // All become what the first one becomes.
      const own = new Set(this.session.members);
      const on = !own.has(Number(start.dataset.index));
      chosen.forEach((i) => (on ? own.add(i) : own.delete(i)));
      this.change(() => this.session.select([...own]));
    };
    if (event.pointerType !== "touch") window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", end);
    window.addEventListener("pointercancel", stop);
  }

  gridKey(event, grid, number) {
    const index = event.target.dataset?.index;
    if (index === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.cells.get(Number(index));
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === " " || event.key === "Enter") {
      this.toggle(Number(index));
    } else if (event.key === "Home" || event.key === "End") {
      const row = grid.cells[at.row].filter((i) => i !== null);
      this.cells.get(event.key === "Home" ? row[0] : row[row.length - 1]).cell.focus();
    } else if (event.key in steps) {
      const [down, right] = steps[event.key];
      let [row, column] = [at.row + down, at.column + right];
      while (grid.cells[row]?.[column] === null) [row, column] = [row + down, column + right];
      const next = grid.cells[row]?.[column];
      if (next !== undefined) this.cells.get(next).cell.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  focusOn(index, table) {
    table.querySelectorAll('[data-index][tabindex="0"]').forEach((cell) => (cell.tabIndex = -1));
    const { cell } = this.cells.get(index);
    cell.tabIndex = 0;
    cell.setAttribute("aria-label", this.hoverText(index));
    this.focused = index;
    this.showHover(index);
  }

  focusedIn(table) {
    const index = this.root.getRootNode().activeElement?.dataset?.index;
    return index !== undefined && table.contains(this.root.getRootNode().activeElement)
      ? Number(index)
      : null;
  }

  // ---- drawing ------------------------------------------------------------------------------------

  draw() {
    const { session, known } = this;
    this.members = session.members;
    this.own = new Set(this.members);
    this.now = known.measured.get(session.key) ?? null;
    for (const { effects } of known.measured.values()) {
      for (const value of effects) {
        if (value < this.range[0]) this.range[0] = value;
        if (value > this.range[1]) this.range[1] = value;
      }
    }
    if (this.shownExample === null) this.shownExample = session.example;
    this.drawStatus();
    this.drawSaved();
    this.drawCells();
    this.drawArrows();
    this.drawBudget();
    this.drawWritten();
    this.drawCompare();
    this.drawStrip();
    this.buttons.undo.disabled = session.position === 0;
    this.buttons.redo.disabled = session.position === session.history.length - 1;
    this.buttons.clear.disabled = this.members.length === 0;
    this.buttons.all.disabled = this.members.length === session.n;
    for (const [name, button] of Object.entries(this.pinButtons)) {
      const pinned = session.pins[name] === session.key;
      button.textContent = pinned ? `Unpin ${name}` : `Pin ${name}`;
      button.setAttribute("aria-pressed", String(pinned));
    }
    this.showHover(this.hovered ?? null);
  }

  drawStatus() {
    const { setup, known, session, now } = this;
    const count = `${this.members.length} of ${session.n} ${setup.noun}`;
    const parts = [count];
    const circuit = known.circuits.get(session.key);
    let effect = null;
    if (now) {
      effect = `effect ${fmt(now.effect)}`;
      if (now.low !== null) effect += ` [${fmt(now.low)}, ${fmt(now.high)}]`;
      if (setup.full) {
        const [low, high] = ["low", "high"].map((end) => circuit?.[`share_of_full_${end}`]);
        const percent = (share) => fmt(share === null ? null : Math.round(100 * share));
        const ends = circuit ? ` [${percent(low)}, ${percent(high)}]` : "";
        parts.push(`${Math.round((100 * now.effect) / setup.full)} % of all${ends}`);
      }
      const singles = this.members.map((i) => known.alone(i));
      if (this.members.length > 1 && singles.every((value) => value !== null)) {
        const sum = singles.reduce((a, b) => a + b, 0);
        parts.push(`alone they sum to ${fmt(sum)} (interaction ${signed(now.effect - sum)})`);
      }
      if (now.seconds !== null) parts.push(`${Math.max(1, Math.round(1000 * now.seconds))} ms`);
    } else {
      const guess = known.guess(this.members);
      const guessed = guess ? `predicted ${fmt(guess.value)} from ${guess.from}` : null;
      if (known.problems.has(session.key)) parts.push("not measured");
      else parts.push(this.host.live ? "measuring" : "not measured");
      if (guessed) parts.push(guessed);
    }
    const line = [element("span", { text: parts[0] })];
    if (effect !== null) line.push(" \u00b7 ", element("span", { class: "tk-effect", text: effect, title: SPREAD }));
    for (const part of parts.slice(1)) line.push(` \u00b7 ${part}`);
    this.status.replaceChildren(...line);
    this.status.dataset.key = session.key;
    this.status.dataset.measured = String(now !== null);
    const progress = this.progress;
    this.waiting.textContent =
      !now && progress && progress.key === session.key
        ? `\u2026 ${progress.done} of ${progress.total} batches, mean so far ${fmt(progress.effect)}`
        : "";
    const words = ["faithfulness", "completeness"].map((name) => {
      const ends = [`${name}_low`, `${name}_high`].map((end) => fmt(circuit?.[end]));
      return `${name} ${fmt(circuit?.[name])} [${ends.join(", ")}]`;
    });
    this.circuit.textContent = now && circuit ? words.join(" \u00b7 ") : "";
    if (now && circuit?.warning) {
      const warning = element("span", { class: "tk-warning", text: circuit.warning });
      this.circuit.append(" \u00b7 ", warning);
    }
    keepHeight(this.second);
    const names = this.members.slice(0, 24).map((i) => setup.labels[i]);
    if (this.members.length > 24) names.push(`and ${this.members.length - 24} more`);
    this.membersLine.textContent = names.join(", ") || "the empty set";
    const problem = known.problems.get(session.key);
    this.problem.textContent = [problem, this.host.notice].filter(Boolean).join(" ");
  }

  // Paths between members, over the cells: from the lower layer to the higher one.
  drawArrows() {
    const isBetween = ({ from, to }) => from !== null && to !== null;
    const all = this.setup.paths.filter(isBetween);
    const strongest = Math.max(...all.map(({ effect }) => Math.abs(effect)));
    const shown = all.filter(({ from, to }) => this.own.has(from) && this.own.has(to));
    const [parts, letters] = [[], []];
    const path = (d, attributes) => parts.push(drawn("path", { d, ...attributes }));
    // The strongest last, so that it lies on top.
    for (const { from, to, by, effect, sure } of shown.slice(0, MOST_ARROWS).reverse()) {
      const [a, b] = [from, to].map((index) => {
        const { cell } = this.cells.get(index);
        return [cell.offsetLeft + cell.offsetWidth / 2, cell.offsetTop + cell.offsetHeight / 2];
      });
      const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
      // Bent, so that it passes by the cells in between.
      const c = [(a[0] + b[0]) / 2 - 0.16 * dy, (a[1] + b[1]) / 2 + 0.16 * dx];
      const width = Math.max(1.2, ((WIDEST * Math.abs(effect)) / strongest) * (sure ? 1 : 0.5));
      const color = `var(--${effect > 0 ? "plus" : "minus"})`;
      const away = (point, by) => {
        const length = Math.hypot(c[0] - point[0], c[1] - point[1]) || 1;
        return point.map((value, i) => value + (by * (c[i] - value)) / length);
      };
      const [start, tip, base] = [away(a, 8), away(b, 7), away(b, 13 + width)];
      const d = `M${start}Q${c} ${base}`;
      const dash = effect > 0 ? {} : { "stroke-dasharray": `${width + 3} ${width + 3}` };
      path(d, { stroke: "var(--zero)", "stroke-width": width + 2, "stroke-opacity": 0.8 });
      path(d, { stroke: color, "stroke-width": width, "data-path": `${from}-${to}`, ...dash });
      const half = (3 + width / 2) / (6 + width);
      const side = (sign) =>
        base.map((value, i) => value + sign * half * (i ? tip[0] - base[0] : base[1] - tip[1]));
      path(`M${side(1)}L${tip}L${side(-1)}Z`, {
        stroke: color,
        "stroke-width": 1.5,
        style: `fill: ${sure ? color : "var(--zero)"}`,
      });
      if (by) {
        // Beside the head.
        const [x, y] = base.map((at, i) => at + (9 + width / 2) * (b[1 - i] - base[1 - i]) * (i ? 1 : -1) / 18);
        letters.push(drawn("text", { x, y: y + 4 }, by[0]));
      }
    }
    this.arrows.replaceChildren(...parts, ...letters);
  }

  // The strongest paths of a member, in words.
  pathTexts(index) {
    if (!this.own.has(index)) return [];
    const ends = (each) => each.from === index || each.to === index;
    const isShown = (end) => end === null || this.own.has(end);
    return this.setup.paths
      .filter((each) => ends(each) && isShown(each.from) && isShown(each.to))
      .slice(0, 3)
      .map(({ from, to, by, effect, low, high }) => {
        const name = (end, other) => (end === null ? other : this.setup.labels[end]);
        const way = `${name(from, "embedding")} \u2192 ${name(to, "logits")}${by ? ` (${by})` : ""}`;
        return `${way} ${signed(effect)} [${fmt(low)}, ${fmt(high)}]`;
      });
  }

  // What the colour of a cell says, by component; null where it is not known.
  values() {
    const { known, session, setup } = this;
    if (this.color === "alone") return setup.labels.map((_, i) => known.alone(i));
    if (this.color === "none") return null;
    const row = this.rowGains;
    if (session.example !== null && row && row.key === session.key && row.example === session.example) {
      return [...row.gains];
    }
    if (session.example !== null) return null;
    return (known.predicted.get(session.key) ?? this.lastPredicted())?.gains ?? null;
  }

  // A page makes no predictions: those of the last set that has some say more than none.
  lastPredicted() {
    if (this.host.live) return null;
    const { history, position } = this.session;
    const key = history.slice(0, position).findLast((each) => this.known.predicted.has(each));
    return this.known.predicted.get(key) ?? null;
  }

  drawSaved() {
    if (!this.host.saved) return;
    const n = this.known.measured.size;
    this.saved.textContent =
      `A saved page, no model stands behind it: ${n} sets were measured. A line at the foot of a cell: ` +
      "a click leads to one of them.";
  }

  drawCells() {
    const values = this.values();
    let largest = 0;
    if (values) for (const v of values) if (Number.isFinite(v)) largest = Math.max(largest, Math.abs(v ?? 0));
    const pins = Object.entries(this.session.pins).map(([name, key]) => [name, new Set(membersOf(key))]);
    for (const [index, { cell }] of this.cells) {
      const on = this.own.has(index);
      cell.classList.toggle("tk-on", on);
      cell.setAttribute("aria-selected", String(on));
      // In full where the focus is: working all of them out would take too long.
      const isFocused = index === this.focused;
      const text = isFocused ? this.hoverText(index) : `${this.setup.labels[index]}, ${on ? "on" : "off"}`;
      cell.setAttribute("aria-label", text);
      const leads = !this.host.live && this.known.measured.has(setKey(toggled(this.members, index)));
      cell.classList.toggle("tk-leads", leads);
      const value = values?.[index];
      if (Number.isFinite(value) && value !== null && largest > 0) {
        const share = Math.round(100 * Math.abs(value / largest));
        cell.style.background = `color-mix(in oklab, var(--${value > 0 ? "plus" : "minus"}) ${share}%, var(--zero))`;
      } else cell.style.background = on && this.color === "none" ? "var(--plus)" : "";
      const letters = pins.filter(([, members]) => members.has(index)).map(([name]) => name);
      const shown = cell.querySelector(".tk-letter");
      if (letters.length) {
        const letter = shown ?? element("span", { class: "tk-letter", "aria-hidden": "true" });
        letter.textContent = letters.join("");
        if (!shown) cell.append(letter);
      } else shown?.remove();
    }
    const word = {
      gain:
        this.session.example === null
          ? `predicted gain of having it in the set${this.known.predicted.has(this.session.key) ? "" : " before"}`
          : `predicted gain on example ${this.session.example}`,
      alone: "effect alone, measured",
      none: "",
    }[this.color];
    const { paths } = this.setup;
    const open = paths.some(({ sure }) => !sure) ? ", open where p \u2265 .05" : "";
    const arrows = paths.length ? `; arrows: paths, as wide as their effect, dashed below 0${open}` : "";
    const dot = `\u25c9 in the set${arrows}`;
    if (values && largest > 0) {
      this.legend.replaceChildren(
        element("span", { text: fmt(-largest) }),
        element("span", { class: "tk-bar" }),
        element("span", { text: `+${fmt(largest)}  ${word}; ${dot}` }),
      );
    } else {
      const reason = this.color === "gain" ? this.known.unpredicted.get(this.session.key) : null;
      const lacking =
        this.color === "gain" && this.session.example !== null && this.known.predicted.has(this.session.key)
          ? `${dot}; predictions of example ${this.session.example} are not at hand`
          : null;
      this.legend.replaceChildren(
        element("span", { text: reason ? `${dot}; no predictions: ${reason}` : lacking ?? dot }),
      );
    }
  }

  hoverText(index) {
    const { known, session } = this;
    const on = this.own.has(index);
    const parts = [this.setup.labels[index], on ? "on" : "off"];
    const alone = known.alone(index);
    if (alone !== null) parts.push(`alone ${fmt(alone)}`);
    const word = on ? "if removed" : "if added";
    const predicted = known.predicted.get(session.key);
    const gain = predicted?.gains[index];
    if (Number.isFinite(gain)) {
      parts.push(`${predicted.rough ? "roughly " : ""}predicted ${signed(on ? -gain : gain)} ${word}`);
    }
    const next = known.measured.get(setKey(toggled(this.members, index)));
    if (next && this.now) parts.push(`measured ${signed(next.effect - this.now.effect)} ${word}`);
    parts.push(...this.pathTexts(index));
    return parts.join(" \u00b7 ");
  }

  showHover(index) {
    this.hovered = index;
    this.hover.textContent =
      index === null
        ? "Click components on and off, or drag over several. Hover to see what each would bring."
        : this.hoverText(index);
    this.hover.classList.toggle("tk-muted", index === null);
    keepHeight(this.hover);
  }

  drawBudget() {
    if (!this.slider) return;
    const { front } = this.setup;
    const at = front.keys.indexOf(this.session.key);
    if (at >= 0) this.slider.value = at;
    const text = at >= 0 ? `${front.sizes[at]} ${this.setup.noun}` : "the set is not on it";
    this.budgetText.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
  }

  drawCompare() {
    const { pins } = this.session;
    const lines = [];
    if (Object.keys(pins).length) {
      const describe = (name, key) => {
        const measured = this.known.measured.get(key);
        const circuit = this.known.circuits.get(key);
        const faithful = circuit ? `, faithfulness ${fmt(circuit.faithfulness)}` : "";
        const effect = measured ? `effect ${fmt(measured.effect)}${faithful}` : "not measured";
        return `${name}: ${membersOf(key).length} ${this.setup.noun}, ${effect}`;
      };
      for (const name of ["A", "B"]) {
        if (!(name in pins)) continue;
        const button = this.button(`Go to ${name}`, `Make ${name} the set`, () =>
          this.change(() => this.session.select(membersOf(pins[name]))),
        );
        lines.push(element("div", {}, button, ` ${describe(name, pins[name])}`));
      }
      const names = "A" in pins && "B" in pins ? ["A", "B"] : ["A" in pins ? "A" : "B", "now"];
      const keys = names.map((name) => pins[name] ?? this.session.key);
      if (keys[0] !== keys[1]) lines.push(element("div", { text: this.difference(names, keys) }));
    }
    this.compare.replaceChildren(...lines);
  }

  difference(names, keys) {
    const [first, second] = keys.map(membersOf);
    const inFirst = new Set(first);
    const shared = second.filter((i) => inFirst.has(i)).length;
    const union = first.length + second.length - shared;
    const parts = [`${names[0]} and ${names[1]}: ${shared} shared, Jaccard ${fmt(shared / union)}`];
    const [a, b] = keys.map((key) => this.known.measured.get(key));
    if (a && b) {
      const larger = b.effects.filter((value, i) => value > a.effects[i]).length;
      parts.push(
        `${names[1]} less ${names[0]} ${signed(b.effect - a.effect)}`,
        `larger in ${names[1]} on ${larger} of ${b.effects.length} examples`,
      );
    } else parts.push("their effects are not both measured");
    return parts.join(" \u00b7 ");
  }

  // ---- examples -----------------------------------------------------------------------------------

  lanes() {
    const lanes = [];
    if (this.now) lanes.push(["now", this.now]);
    for (const name of ["A", "B"]) {
      const key = this.session.pins[name];
      const measured = key === undefined ? null : this.known.measured.get(key);
      if (measured && key !== this.session.key) lanes.push([name, measured]);
    }
    return lanes;
  }

  position(value) {
    const [low, high] = this.range;
    return this.left + ((value - low) / (high - low || 1)) * (this.width - this.left - 14);
  }

  drawStrip() {
    if (!this.strip) return;
    const lanes = this.lanes();
    const laneHeight = 30;
    this.left = 40;
    this.width = Math.max(300, this.side.clientWidth || 800);
    const height = laneHeight * Math.max(1, lanes.length) + 20;
    this.strip.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.strip.setAttribute("height", height);
    const weights = this.setup.weighted ? ", times its weight" : "";
    const n = this.setup.examples.length;
    this.stripName.textContent = `${this.setup.axis} on each of ${n} example${n === 1 ? "" : "s"}${weights}`;
    const parts = [];
    const line = (x1, y1, x2, y2, attributes) =>
      parts.push(drawn("line", { x1, y1, x2, y2, ...attributes }));
    const bottom = height - 20;
    line(this.left, bottom, this.width - 14, bottom, { stroke: "var(--line)" });
    for (const value of new Set([this.range[0], 0, this.range[1]])) {
      const x = this.position(value);
      if (value !== 0 && Math.abs(x - this.position(0)) < 60) continue;
      line(x, bottom, x, bottom + 4, { stroke: "var(--line)" });
      const anchor = value === 0 || lanes.length === 0 ? "middle" : value < 0 ? "start" : "end";
      parts.push(drawn("text", { x, y: bottom + 15, "text-anchor": anchor }, fmt(value)));
    }
    const zero = this.position(0);
    line(zero, 0, zero, bottom, { stroke: "var(--line)", "stroke-dasharray": "2 3" });
    let active = "";
    lanes.forEach(([name, measured], lane) => {
      const top = lane * laneHeight + 3;
      parts.push(drawn("text", { x: 2, y: top + 16 }, name));
      measured.effects.forEach((value, number) => {
        const shown = number === this.shownExample;
        const x = this.position(value);
        const tick = drawn("line", {
          x1: x,
          x2: x,
          y1: top + (shown ? 0 : 4),
          y2: top + (shown ? laneHeight - 6 : laneHeight - 10),
          stroke: shown ? "var(--plus)" : "var(--fg)",
          "stroke-width": shown ? 4 : 2,
          "stroke-opacity": shown ? 1 : 0.55,
        });
        if (lane === 0) {
          tick.id = `${this.id}-example${number}`;
          tick.setAttribute("role", "option");
          tick.setAttribute("aria-selected", String(number === this.session.example));
          tick.setAttribute("aria-label", `example ${number}, effect ${fmt(value)}`);
          if (shown) active = tick.id;
        }
        parts.push(tick);
      });
      const x = this.position(measured.effect);
      const y = top + laneHeight - 6;
      parts.push(
        drawn("path", { d: `M${x - 5} ${y + 4}L${x + 5} ${y + 4}L${x} ${y - 4}Z`, fill: "var(--minus)" }),
      );
    });
    this.strip.replaceChildren(...parts);
    if (active) this.strip.setAttribute("aria-activedescendant", active);
    else this.strip.removeAttribute("aria-activedescendant");
    this.drawDetail();
  }

  pointAt(event) {
    const lanes = this.lanes();
    if (!lanes.length) return;
    const box = this.strip.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.width;
    const lane = Math.min(lanes.length - 1, Math.max(0, Math.floor((event.clientY - box.top) / 30)));
    let best = null;
    lanes[lane][1].effects.forEach((value, number) => {
      const distance = Math.abs(this.position(value) - at);
      if (best === null || distance < best[0]) best = [distance, number];
    });
    this.shownExample = best[1];
    this.drawStrip();
  }

  pinExample() {
    const { session } = this;
    if (this.shownExample === null) return;
    this.change(() => {
      session.example = session.example === this.shownExample ? null : this.shownExample;
    });
  }

  stripKey(event) {
    const { now } = this;
    if (!now || event.ctrlKey || event.metaKey) return;
    const order = [...now.effects.keys()].sort((a, b) => now.effects[a] - now.effects[b] || a - b);
    const at = order.indexOf(this.shownExample);
    const last = order.length - 1;
    const to = {
      ArrowLeft: Math.max(0, at - 1),
      ArrowRight: Math.min(last, at + 1),
      Home: 0,
      End: last,
    }[event.key];
    if (to !== undefined) {
      this.shownExample = order[to];
      this.drawStrip();
    } else if (event.key === "Enter" || event.key === " ") this.pinExample();
    else if (event.key === "Escape" && this.session.example !== null) {
      this.change(() => (this.session.example = null));
    } else return;
    event.preventDefault();
  }

  tokens(tokens) {
    return tokens.map(([text, changed]) =>
      element("span", { class: `tk-token${changed ? " tk-changed" : ""}`, text }),
    );
  }

  drawDetail() {
    const number = this.shownExample;
    if (number === null || number === undefined) {
      this.detail.replaceChildren(
        element("span", {
          class: "tk-muted",
          text: "Point at a tick to see its example. Click it to colour the components by that example.",
        }),
      );
      return;
    }
    const example = this.setup.examples[number];
    const pinned = number === this.session.example ? " (pinned)" : "";
    const head = [`Example ${number}${pinned}`];
    if (this.now) head.push(`effect ${fmt(this.now.effects[number])}`);
    const lines = [element("div", { text: head.join(" \u00b7 ") })];
    lines.push(element("div", {}, "prompt: ", ...this.tokens(example.prompt)));
    const other = example.other ? this.tokens(example.other) : [example.source];
    lines.push(element("div", {}, "counterfactual: ", ...other));
    for (const side of ["x", "y"]) {
      if (!example[side].length) continue;
      const before = this.setup.before[side]?.[number];
      const after = this.now?.[side]?.[number];
      const change =
        before === undefined || before === null
          ? ""
          : ` P(${side}) ${fmt(before)} \u2192 ${after === undefined || after === null ? "not recorded" : fmt(Math.exp(after))}`;
      lines.push(
        element("div", {}, `${side}: `, ...this.tokens(example[side].map((text) => [text, false])), change),
      );
    }
    this.detail.replaceChildren(...lines);
    keepHeight(this.detail);
  }

  // ---- taking it elsewhere --------------------------------------------------------------------------

  code() {
    const members = this.members.map((i) => {
      const [kind, layer, index, span] = this.setup.parts[i];
      const words = [JSON.stringify(kind), layer, index, ...(span ? [JSON.stringify(span)] : [])];
      return `    tk.Component(${words.join(", ")}),\n`;
    });
    const effect = this.now ? `  # ${fmt(this.now.effect).replace("\u2212", "-")}` : "";
    if (!members.length) return "members = []\n";
    return `members = [\n${members.join("")}]\ntracer.evaluate(members)${effect}\n`;
  }

  async copyCode() {
    const text = this.code();
    const box = element("textarea", {
      class: "tk-code",
      readonly: "",
      rows: Math.min(12, text.split("\n").length),
      "aria-label": "Code that measures this set",
    });
    box.value = text;
    this.codeBox.replaceChildren(box);
    box.select();
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // The text is selected: Ctrl+C copies it.
    }
  }

  savePage() {
    const url = URL.createObjectURL(new Blob([this.host.page()], { type: "text/html" }));
    const link = element("a", { href: url, download: "explore.html" });
    this.root.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
}

// ---- what stands behind a view --------------------------------------------------------------------

// The data of a page, as `page_data` of Python makes them.
function pageData(parts, setup, session, known) {
  const values = [];
  const measured = [...known.measured.values()].map(({ effects, x, y, ...entry }) => {
    for (const part of [effects, x, y]) if (part) values.push(part);
    return entry;
  });
  const predicted = [...known.predicted.values()].map(({ gains, ...entry }) => entry);
  const gains = [...known.predicted.values()].map((entry) => entry.gains);
  const unpredicted = [...known.unpredicted].map(([key, reason]) => ({ key, reason }));
  const circuits = [...known.circuits.values()];
  const table = { measured, effects: base64(values), predicted, gains: base64(gains), unpredicted, circuits };
  return { parts, setup, state: session.state(), table };
}

function base64(arrays) {
  let text = "";
  for (const array of arrays) {
    for (const byte of new Uint8Array(array.buffer, array.byteOffset, array.byteLength)) {
      text += String.fromCharCode(byte);
    }
  }
  return btoa(text);
}

function pageOf(source, data) {
  const [before, between, after] = data.parts;
  const safe = JSON.stringify(data).replace(/[<>&]/g, (c) => `\\u00${c.charCodeAt(0).toString(16)}`);
  return before + safe + between + source + after;
}

// A page without a kernel.
function showPage(el, data, source) {
  const known = new Known(data.setup);
  known.addTable(data.table);
  const session = new Session(data.state, data.setup.labels.length);
  const host = {
    live: false,
    saved: true,
    notice: "",
    changed() {},
    page: () => pageOf(source, pageData(data.parts, data.setup, session, known)),
  };
  return new View(el, data.setup, session, known, host);
}

// A widget with a kernel.
function render({ model, el }) {
  const setup = model.get("setup");
  const known = new Known(setup);
  known.addTable(model.get("table"));
  const session = new Session(model.get("view_state"), setup.labels.length);
  let stamp = 0;
  let timer = null;
  let sent = JSON.stringify(session.state());
  const host = {
    live: true,
    notice: "",
    changed() {
      const state = session.state();
      const text = JSON.stringify(state);
      if (text === sent) return;
      sent = text;
      if (!host.live) return;
      stamp += 1;
      model.set("view_state", { ...state, stamp });
      model.save_changes();
      expectAnswer();
    },
    ask(prompt, other = null) {
      model.send({ kind: "prompt", prompt, other });
    },
    page: () => pageOf(model.get("_esm"), pageData(model.get("page"), setup, session, known)),
  };
  const view = new View(el, setup, session, known, host);

  function expectAnswer() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      host.notice =
        "No answer from Python. It is busy, or the kernel has stopped. All that was measured stays clickable.";
      view.draw();
    }, SILENCE);
  }

  function answered() {
    clearTimeout(timer);
    timer = null;
    host.notice = "";
  }

  function onMessage(message, buffers) {
    const waits = timer !== null;
    const returns = !host.live;
    host.live = true;
    answered();
    const { key } = message;
    if (message.kind === "seen") {
      // Two changes crossed: what the reader sees holds.
      if (message.stamp === stamp && key !== session.key) {
        sent = "";
        host.changed();
        return;
      }
    } else if (message.kind === "progress") {
      if (key === session.key) view.progress = message;
    } else if (message.kind === "measured") {
      known.addMeasured(message.entry, floats(buffers[0]));
    } else if (message.kind === "predicted") {
      const gains = floats(buffers[0]);
      known.predicted.set(key, { key, rough: message.rough, gains });
      if (buffers.length > 1) {
        view.rowGains = { key, example: message.example, gains: floats(buffers[1]) };
      }
    } else if (message.kind === "circuit") {
      known.circuits.set(key, message);
    } else if (message.kind === "written") {
      const { prompt, other } = message;
      const question = JSON.stringify(setup.needs_other ? [prompt, other] : [prompt]);
      if (question === view.asked) view.answer = message;
    } else if (message.kind === "unpredicted") {
      known.unpredicted.set(key, message.reason);
    } else if (message.kind === "problem") {
      known.problems.set(key, message.text);
    } else if (message.kind === "table") {
      known.addTable({ ...message.table, effects: buffers[0], gains: buffers[1] });
    }
    // Batches follow each other: silence between them is silence too.
    if (waits && ["seen", "progress"].includes(message.kind) && !known.measured.has(session.key)) {
      expectAnswer();
    }
    if (returns) {
      // What was clicked in the meantime.
      sent = "";
      host.changed();
    }
    view.draw();
  }

  function onState() {
    const { stamp: other, ...state } = model.get("view_state");
    const text = JSON.stringify(session.state());
    session.adopt(state);
    sent = JSON.stringify(session.state());
    if (sent !== text) {
      view.progress = null;
      view.draw();
    }
  }

  function onComm() {
    host.live = false;
    answered();
    host.notice =
      "The kernel has stopped or was restarted. All that was measured stays clickable, and Save page keeps it.";
    view.draw();
    // A connection that is only interrupted answers.
    try {
      model.send({ kind: "hello" });
    } catch {
      // There is nothing left to ask.
    }
  }

  model.on("msg:custom", onMessage);
  model.on("change:view_state", onState);
  model.on("comm_live_update", onComm);
  // What was measured since the widget was made.
  model.send({ kind: "hello" });
  return () => {
    clearTimeout(timer);
    model.off("msg:custom", onMessage);
    model.off("change:view_state", onState);
    model.off("comm_live_update", onComm);
  };
}

export default { render };
