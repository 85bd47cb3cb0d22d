// The grids: cells, their colours, arrows over them, and what a click or a key does there.

const MOST_ARROWS = 20;
const WIDEST = 6;

function buildGrid(view, grid, number) {
  const name = element("div", { class: "tk-grid-name", text: grid.title });
  name.id = `${view.id}-grid${number}`;
  const table = element("div", {
    class: "tk-grid",
    role: "grid",
    "aria-multiselectable": "true",
    "aria-labelledby": name.id,
    "aria-rowcount": grid.layers.length + 1,
    "aria-colcount": grid.columns.length + 1,
  });
  const upright = grid.columns.some((text) => text.length > 3);
  const corner = element("div", { class: "tk-row-name tk-column-name", role: "columnheader", text: "layer" });
  const header = element("div", { class: "tk-row", role: "row" }, corner);
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
      on: { click: () => switchRow(view, row.filter((i) => i !== null)) },
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
        view.nodes.cells.set(index, { cell, grid: number, row: r, column: c });
      }
      line.append(cell);
    });
    table.append(line);
  });
  const first = table.querySelector("[data-index]");
  if (first) first.tabIndex = 0;
  table.addEventListener("keydown", (event) => gridKey(view, event, grid, number));
  table.addEventListener("focusin", (event) => {
    const index = event.target.dataset?.index;
    if (index !== undefined) focusOn(view, Number(index), table);
  });
  table.addEventListener("pointerover", (event) => {
    const index = event.target.closest("[data-index]")?.dataset.index;
    if (index !== undefined) showHover(view, Number(index));
  });
  table.addEventListener("pointerleave", () => showHover(view, focusedIn(view, table)));
  table.addEventListener("pointerdown", (event) => startDrag(view, event, number));
  return element("div", {}, name, table);
}

function fitCells(view) {
  const widest = Math.max(...view.setup.grids.map((grid) => grid.columns.length));
  const tallest = Math.max(...view.setup.grids.map((grid) => grid.layers.length));
  const size = Math.max(7, Math.min(28, Math.floor(900 / widest), Math.floor(760 / tallest)));
  const height = Math.max(size, 13);
  view.nodes.root.querySelectorAll(".tk-cell").forEach((cell) => {
    cell.style.width = `${size}px`;
    cell.style.height = `${height}px`;
  });
  view.nodes.root.querySelectorAll(".tk-column-name[data-text]").forEach((name, i) => {
    // A header keeps its width when labels are left out.
    name.style.width = `${size - 1}px`;
    const text = name.dataset.text;
    const every = name.classList.contains("tk-upright") ? 1 : Math.ceil((7 * text.length + 4) / size);
    const column = [...name.parentElement.children].indexOf(name) - 1;
    name.textContent = column % Math.max(1, every) === 0 ? text : "";
  });
  view.nodes.root.querySelectorAll(".tk-row-name button").forEach((name) => {
    name.style.fontSize = size < 15 ? "10px" : "";
    name.style.lineHeight = `${height - 2}px`;
    name.parentElement.style.height = `${height - 1}px`;
  });
}

function switchAll(view, indices, on) {
  const own = new Set(view.own);
  indices.forEach((i) => (on ? own.add(i) : own.delete(i)));
  changeBy(view, () => view.session.select([...own]));
}

function switchRow(view, indices) {
  switchAll(view, indices, !indices.every((i) => view.own.has(i)));
}

function toggle(view, index) {
  changeBy(view, () => view.session.select(toggled(view.session.members, index)));
}

// The cells of the rectangle between two cells of a grid.
function between(view, from, to) {
  const lies = (name, at) => Math.min(from[name], to[name]) <= at[name] && at[name] <= Math.max(from[name], to[name]);
  const isIn = (at) => at.grid === from.grid && lies("row", at) && lies("column", at);
  return [...view.nodes.cells].filter(([, at]) => isIn(at)).map(([index]) => index);
}

function startDrag(view, event, number) {
  const { root, cells } = view.nodes;
  const start = event.target.closest("[data-index]");
  if (!start || event.button !== 0) return;
  const first = Number(start.dataset.index);
  let inside = [first];
  let moved = false;
  const mark = () =>
    cells.forEach(({ cell }, index) => cell.classList.toggle("tk-dragged", moved && inside.includes(index)));
  const move = ({ clientX, clientY }) => {
    const under = root.getRootNode().elementFromPoint?.(clientX, clientY) ?? document.elementFromPoint(clientX, clientY);
    const here = under?.closest?.("[data-index]");
    const to = here && root.contains(here) ? cells.get(Number(here.dataset.index)) : null;
    if (!to || to.grid !== number) return;
    inside = between(view, cells.get(first), to);
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
    stop();
    switchAll(view, inside, !view.own.has(first));
  };
  if (event.pointerType !== "touch") window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", end);
  window.addEventListener("pointercancel", stop);
}

function gridKey(view, event, grid, number) {
  const index = event.target.dataset?.index;
  if (index === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = view.nodes.cells.get(Number(index));
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (event.key === " " || event.key === "Enter") {
    toggle(view, Number(index));
  } else if (event.key === "Home" || event.key === "End") {
    const row = grid.cells[at.row].filter((i) => i !== null);
    view.nodes.cells.get(event.key === "Home" ? row[0] : row[row.length - 1]).cell.focus();
  } else if (event.key in steps) {
    const [down, right] = steps[event.key];
    let [row, column] = [at.row + down, at.column + right];
    while (grid.cells[row]?.[column] === null) [row, column] = [row + down, column + right];
    const next = grid.cells[row]?.[column];
    if (next !== undefined) view.nodes.cells.get(next).cell.focus();
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

function focusOn(view, index, table) {
  table.querySelectorAll('[data-index][tabindex="0"]').forEach((cell) => (cell.tabIndex = -1));
  const { cell } = view.nodes.cells.get(index);
  cell.tabIndex = 0;
  cell.setAttribute("aria-label", hoverText(view, index));
  view.focused = index;
  showHover(view, index);
}

function focusedIn(view, table) {
  const at = view.nodes.root.getRootNode().activeElement;
  return at?.dataset?.index !== undefined && table.contains(at) ? Number(at.dataset.index) : null;
}

// What the colour of a cell says, by component; null where it is not known.
function cellValues(view) {
  const { known, session, setup } = view;
  if (view.color === "alone") return setup.labels.map((_, i) => known.alone(i));
  if (view.color === "none") return null;
  const row = view.rowGains;
  if (session.example !== null && row && row.key === session.key && row.example === session.example) {
    return [...row.gains];
  }
  if (session.example !== null) return null;
  return (known.predicted.get(session.key) ?? lastPredicted(view))?.gains ?? null;
}

// A page makes no predictions: those of the last set that has some say more than none.
function lastPredicted(view) {
  if (view.host.live) return null;
  const { history, position } = view.session;
  const key = history.slice(0, position).findLast((each) => view.known.predicted.has(each));
  return view.known.predicted.get(key) ?? null;
}

function largestOf(values) {
  const sizes = values ? [...values].filter((v) => v !== null && Number.isFinite(v)).map(Math.abs) : [];
  return sizes.reduce((a, b) => Math.max(a, b), 0);
}

// The colour of a cell; empty where it has none.
function shade(value, largest) {
  if (value === null || !Number.isFinite(value) || largest === 0) return "";
  const share = Math.round(100 * Math.abs(value / largest));
  return `color-mix(in oklab, var(--${value > 0 ? "plus" : "minus"}) ${share}%, var(--zero))`;
}

function drawCells(view) {
  const { setup, session, known, members, own } = view;
  const values = cellValues(view);
  const largest = largestOf(values);
  const pins = Object.entries(session.pins).map(([name, key]) => [name, new Set(membersOf(key))]);
  for (const [index, { cell }] of view.nodes.cells) {
    const on = own.has(index);
    cell.classList.toggle("tk-on", on);
    cell.setAttribute("aria-selected", String(on));
    // In full where the focus is: working all of them out would take too long.
    const text = index === view.focused ? hoverText(view, index) : `${setup.labels[index]}, ${on ? "on" : "off"}`;
    cell.setAttribute("aria-label", text);
    const leads = !view.host.live && known.measured.has(setKey(toggled(members, index)));
    cell.classList.toggle("tk-leads", leads);
    cell.classList.toggle("tk-unknown", view.color === "alone" && values[index] === null);
    if (view.color === "none") cell.style.background = on ? "var(--plus)" : "";
    else cell.style.background = shade(values?.[index] ?? null, largest);
    const letters = pins.filter(([, pinned]) => pinned.has(index)).map(([name]) => name);
    cell.querySelector(".tk-letter")?.remove();
    if (letters.length) {
      cell.append(element("span", { class: "tk-letter", "aria-hidden": "true", text: letters.join("") }));
    }
  }
  drawLegend(view, largest);
}

// What dots, arrows and colours mean.
function legendText(view, isColoured) {
  const { setup, session, known, color } = view;
  const { example, key } = session;
  const predicted = known.predicted.has(key);
  const { paths } = setup;
  const open = paths.some(({ sure }) => !sure) ? ", open where p \u2265 .05" : "";
  const arrows = paths.length ? `; arrows: paths, as wide as their effect, dashed below 0${open}` : "";
  const dot = `\u25c9 in the set${arrows}`;
  if (isColoured) {
    const earlier = predicted ? "" : `, for an earlier set (${namesOf(setup, lastPredicted(view).key)}), as this one has no prediction`;
    const gain = `predicted gain of having the component in the set${earlier}`;
    const ofExample = `predicted gain on example ${example}`;
    const alone = "effect alone, measured; dotted: not measured";
    return `${color === "alone" ? alone : example === null ? gain : ofExample}; ${dot}`;
  }
  if (color !== "gain") return dot;
  const reason = known.unpredicted.get(key);
  if (reason) return `${dot}; no predictions: ${reason}`;
  const lacks = example !== null && predicted;
  return lacks ? `${dot}; predictions of example ${example} are not at hand` : dot;
}

function drawLegend(view, largest) {
  const text = legendText(view, largest > 0);
  const bar = [element("span", { text: fmt(-largest) }), element("span", { class: "tk-bar" })];
  const words = element("span", { text: largest > 0 ? `+${fmt(largest)}  ${text}` : text });
  view.nodes.legend.replaceChildren(...(largest > 0 ? bar : []), words);
}

// Paths between members, over the cells: from the lower layer to the higher one.
function drawArrows(view) {
  const isBetween = ({ from, to }) => from !== null && to !== null;
  const all = view.setup.paths.filter(isBetween);
  const strongest = Math.max(...all.map(({ effect }) => Math.abs(effect)));
  const shown = all.filter(({ from, to }) => view.own.has(from) && view.own.has(to));
  const [parts, letters] = [[], []];
  const path = (d, attributes) => parts.push(drawn("path", { d, ...attributes }));
  // The strongest last, so that it lies on top.
  for (const { from, to, by, effect, sure } of shown.slice(0, MOST_ARROWS).reverse()) {
    const [a, b] = [from, to].map((index) => {
      const { cell } = view.nodes.cells.get(index);
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
  view.nodes.arrows.replaceChildren(...parts, ...letters);
}

// The strongest paths of a member, in words.
function pathTexts(view, index) {
  if (!view.own.has(index)) return [];
  const ends = (each) => each.from === index || each.to === index;
  const isShown = (end) => end === null || view.own.has(end);
  return view.setup.paths
    .filter((each) => ends(each) && isShown(each.from) && isShown(each.to))
    .slice(0, 3)
    .map(({ from, to, by, effect, low, high }) => {
      const name = (end, other) => (end === null ? other : view.setup.labels[end]);
      const way = `${name(from, "embedding")} \u2192 ${name(to, "logits")}${by ? ` (${by})` : ""}`;
      return `${way} ${signed(effect)} [${fmt(low)}, ${fmt(high)}]`;
    });
}

function hoverText(view, index) {
  const { known, session } = view;
  const on = view.own.has(index);
  const parts = [view.setup.labels[index], on ? "on" : "off"];
  const alone = known.alone(index);
  if (alone !== null) parts.push(`alone ${fmt(alone)}`);
  else if (view.color === "alone") parts.push("not measured alone");
  const word = on ? "if removed" : "if added";
  const predicted = known.predicted.get(session.key);
  const gain = predicted?.gains[index];
  if (Number.isFinite(gain)) {
    parts.push(`${predicted.rough ? "roughly " : ""}predicted ${signed(on ? -gain : gain)} ${word}`);
  }
  const next = known.measured.get(setKey(toggled(view.members, index)));
  if (next && view.now) parts.push(`measured ${signed(next.effect - view.now.effect)} ${word}`);
  parts.push(...pathTexts(view, index));
  return parts.join(" \u00b7 ");
}

function showHover(view, index) {
  view.hovered = index;
  view.nodes.hover.textContent =
    index === null
      ? "Click components on and off, or drag over several. Hover to see what each would bring."
      : hoverText(view, index);
  view.nodes.hover.classList.toggle("tk-muted", index === null);
  keepHeight(view.nodes.hover);
}
