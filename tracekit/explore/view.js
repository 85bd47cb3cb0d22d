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
.tk-explore .tk-effect, .tk-explore .tk-held-out { font-weight: 700; }
.tk-explore .tk-held-out ~ .tk-effect { font-weight: 400; }
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
.tk-explore .tk-cell.tk-unknown { background: radial-gradient(var(--line) 1px, transparent 1.5px) 0 0 / 6px 6px; }
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
`;

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

// All that a reader changes, and the nodes that show it. `draw` brings these up to date.
function makeView(el, setup, session, known, host) {
  const view = {
    setup,
    session,
    known,
    host, // live, saved, changed(), page(): what stands behind the view
    id: `tk${++counter}`,
    color: "gain",
    progress: null,
    shownExample: null,
    rowGains: null, // predictions for the pinned example: {key, example, gains}
    range: [0, 0],
    focused: null,
    hovered: null,
    nodes: { cells: new Map() },
  };
  build(view, el);
  watchTheme(view);
  draw(view);
  return view;
}

function build(view, el) {
  const { setup } = view;
  view.nodes.root = element("div", {
    class: "tk-explore",
    "data-lm-suppress-shortcuts": "true",
    role: "group",
    "aria-label": `Explorer: ${setup.title}`,
    on: { keydown: (event) => shortcut(view, event) },
  });
  const [light, dark] = setup.colors;
  const colors = `.tk-explore { ${light} }\n.tk-explore.tk-dark { ${dark} }`;
  view.nodes.root.append(element("style", { text: colors + CSS }));
  view.nodes.root.append(
    element("div", { class: "tk-title", text: setup.title }),
    element("div", { class: "tk-muted", text: setup.subtitle }),
    element("div", { class: "tk-muted tk-basis", text: setup.basis }),
  );
  view.nodes.root.append(buildTools(view));
  view.nodes.status = element("div", { class: "tk-status", role: "status", "aria-live": "polite" });
  view.nodes.waiting = element("span", { class: "tk-muted tk-waiting", "aria-hidden": "true" });
  view.nodes.circuit = element("span", { class: "tk-circuit", title: CIRCUIT, "aria-live": "polite" });
  view.nodes.second = element("div", { class: "tk-second" }, view.nodes.waiting, view.nodes.circuit);
  view.nodes.membersLine = element("div", { class: "tk-members" });
  view.nodes.problem = element("div", { class: "tk-problem", role: "alert" });
  view.nodes.grids = element("div", { class: "tk-grids" });
  setup.grids.forEach((grid, number) => view.nodes.grids.append(buildGrid(view, grid, number)));
  view.nodes.arrows = drawn("svg", { class: "tk-arrows", width: 1, height: 1, "aria-hidden": "true" });
  view.nodes.grids.append(view.nodes.arrows);
  view.nodes.hover = element("div", { class: "tk-hover" });
  view.nodes.legend = element("div", { class: "tk-legend" });
  view.nodes.compare = element("div", { class: "tk-compare" });
  view.nodes.saved = element("div", { class: "tk-muted tk-saved" });
  // Of a deep model all else stands beside the grid, where there is room.
  const isTall = setup.grids.some((grid) => grid.layers.length > 16);
  view.nodes.side = element("div", { class: "tk-side" }, view.nodes.hover, view.nodes.legend);
  view.nodes.root.append(view.nodes.status, view.nodes.second, view.nodes.problem, view.nodes.membersLine, view.nodes.saved);
  view.nodes.root.append(element("div", { class: `tk-body${isTall ? " tk-tall" : ""}` }, view.nodes.grids, view.nodes.side));
  if (setup.front) view.nodes.side.append(buildBudget(view));
  view.nodes.side.append(view.nodes.compare);
  buildStrip(view);
  view.nodes.codeBox = element("div");
  view.nodes.side.append(buildAsk(view));
  view.nodes.root.append(view.nodes.codeBox);
  el.append(view.nodes.root);
  fitCells(view);
  showHover(view, null);
}

function makeButton(text, help, action) {
  return element("button", { type: "button", text, title: help, on: { click: action } });
}

function buildTools(view) {
  const s = view.session;
  const change = (text, help, action) => makeButton(text, help, () => changeBy(view, action));
  const b = {
    clear: change("Clear", "Take everything out of the set", () => s.select([])),
    all: change("All", "Put all components in", () => s.select([...Array(s.n).keys()])),
    complement: change("Complement", "Exchange the set for all other components", () => s.complement()),
    undo: change("Undo", "The set before (Ctrl+Z)", () => s.step(-1)),
    redo: change("Redo", "The set that was undone (Ctrl+Shift+Z)", () => s.step(1)),
  };
  const pin = (name) =>
    change(`Pin ${name}`, `Keep this set as ${name}`, () => {
      if (s.pins[name] === s.key) delete s.pins[name];
      else s.pins[name] = s.key;
    });
  const pins = { A: pin("A"), B: pin("B") };
  Object.assign(view.nodes, { buttons: b, pinButtons: pins });
  const colors = [
    ["gain", "predicted gain"],
    ["alone", "effect alone"],
    ["none", "nothing"],
  ];
  const colorSelect = element(
    "select",
    {
      "aria-label": "What the colour of a cell says",
      on: {
        change: (event) => {
          view.color = event.target.value;
          draw(view);
        },
      },
    },
    ...colors.map(([value, text]) => element("option", { value, text })),
  );
  const gap = () => element("span", { class: "tk-gap" });
  return element(
    "div",
    { class: "tk-tools", role: "group", "aria-label": "Changes of the set" },
    ...[b.clear, b.all, b.complement, gap(), b.undo, b.redo, gap()],
    ...[pins.A, pins.B, gap()],
    element("label", {}, element("span", { text: "Colour: " }), colorSelect),
    gap(),
    makeButton("Copy as Python", "Copy code that measures this set", () => copyCode(view)),
    makeButton("Save page", "One file with all that was measured", () => savePage(view)),
  );
}

function resize(view) {
  if (view.nodes.side.offsetWidth !== view.width) {
    view.width = view.nodes.side.offsetWidth;
    for (const node of [view.nodes.hover, view.nodes.detail, view.nodes.second]) node.style.minHeight = "";
    keepHeight(view.nodes.hover);
    keepHeight(view.nodes.second);
  }
  drawArrows(view);
  drawStrip(view);
}

function watchTheme(view) {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    let at = view.nodes.root;
    let dark = query.matches;
    while (at) {
      const [r, g, b, a] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
      if (a === undefined ? r !== undefined : a > 0.5) {
        dark = 0.3 * r + 0.59 * g + 0.11 * b < 128;
        break;
      }
      at = at.parentElement ?? at.getRootNode()?.host;
    }
    view.nodes.root.classList.toggle("tk-dark", dark);
  };
  apply();
  query.addEventListener("change", apply);
  new MutationObserver(apply).observe(document.body, { attributes: true });
  // The element may be put into the page later.
  requestAnimationFrame(apply);
}

function changeBy(view, action) {
  const before = view.session.key;
  action();
  if (view.session.key !== before) view.progress = null;
  view.host.changed();
  draw(view);
}

function shortcut(view, event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") {
    event.preventDefault();
    changeBy(view, () => view.session.step(event.shiftKey ? 1 : -1));
  }
}

function draw(view) {
  const { session, known } = view;
  view.members = session.members;
  view.own = new Set(view.members);
  view.now = known.measured.get(session.key) ?? null;
  for (const { effects } of known.measured.values()) {
    view.range = [Math.min(view.range[0], ...effects), Math.max(view.range[1], ...effects)];
  }
  if (view.shownExample === null) view.shownExample = session.example;
  const parts = [drawStatus, drawSaved, drawCells, drawArrows, drawBudget, drawWritten, drawCompare, drawStrip];
  for (const drawPart of parts) drawPart(view);
  const { undo, redo, clear, all } = view.nodes.buttons;
  undo.disabled = session.position === 0;
  redo.disabled = session.position === session.history.length - 1;
  clear.disabled = view.members.length === 0;
  all.disabled = view.members.length === session.n;
  for (const [name, button] of Object.entries(view.nodes.pinButtons)) {
    const pinned = session.pins[name] === session.key;
    button.textContent = pinned ? `Unpin ${name}` : `Pin ${name}`;
    button.setAttribute("aria-pressed", String(pinned));
  }
  showHover(view, view.hovered);
}

function codeOf(view) {
  const members = view.members.map((i) => {
    const [kind, layer, index, span] = view.setup.parts[i];
    const words = [JSON.stringify(kind), layer, index, ...(span ? [JSON.stringify(span)] : [])];
    return `    tk.Component(${words.join(", ")}),\n`;
  });
  const effect = view.now ? `  # ${fmt(view.now.effect).replace("\u2212", "-")}` : "";
  if (!members.length) return "members = []\n";
  return `members = [\n${members.join("")}]\ntracer.evaluate(members)${effect}\n`;
}

async function copyCode(view) {
  const text = codeOf(view);
  const box = element("textarea", {
    class: "tk-code",
    readonly: "",
    rows: Math.min(12, text.split("\n").length),
    "aria-label": "Code that measures this set",
  });
  box.value = text;
  view.nodes.codeBox.replaceChildren(box);
  box.select();
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The text is selected: Ctrl+C copies it.
  }
}

function savePage(view) {
  const url = URL.createObjectURL(new Blob([view.host.page()], { type: "text/html" }));
  const link = element("a", { href: url, download: "explore.html" });
  view.nodes.root.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
