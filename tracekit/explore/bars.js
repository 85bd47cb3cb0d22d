// Effects by example as ticks on lanes, and the slider along the front.

const LANE = 30; // Height in pixels.

function lanesOf(view) {
  const lanes = [];
  if (view.now) lanes.push(["now", view.now]);
  for (const name of ["A", "B"]) {
    const key = view.session.pins[name];
    const measured = key === undefined ? null : view.known.measured.get(key);
    if (measured && key !== view.session.key) lanes.push([name, measured]);
  }
  return lanes;
}

function xOf(view, value) {
  const [low, high] = view.range;
  return view.left + ((value - low) / (high - low || 1)) * (view.width - view.left - 14);
}

function buildStrip(view) {
  view.nodes.stripName = element("div", { class: "tk-muted", id: `${view.id}-strip` });
  view.nodes.strip = drawn("svg", {
    class: "tk-strip",
    role: "listbox",
    tabindex: "0",
    "aria-labelledby": `${view.id}-strip`,
  });
  view.nodes.strip.addEventListener("pointermove", (event) => pointAt(view, event));
  view.nodes.strip.addEventListener("pointerleave", () => {
    view.shownExample = view.session.example;
    drawStrip(view);
  });
  view.nodes.strip.addEventListener("click", (event) => {
    pointAt(view, event);
    pinExample(view);
  });
  view.nodes.strip.addEventListener("keydown", (event) => stripKey(view, event));
  view.nodes.detail = element("div", { class: "tk-detail" });
  view.nodes.side.append(view.nodes.stripName, view.nodes.strip, view.nodes.detail);
  if (typeof ResizeObserver !== "undefined") {
    new ResizeObserver(() => resize(view)).observe(view.nodes.root);
  }
}

function drawStrip(view) {
  if (!view.nodes.strip) return;
  const lanes = lanesOf(view);
  view.left = 40;
  view.width = Math.max(300, view.nodes.side.clientWidth || 800);
  const height = LANE * Math.max(1, lanes.length) + 20;
  view.nodes.strip.setAttribute("viewBox", `0 0 ${view.width} ${height}`);
  view.nodes.strip.setAttribute("height", height);
  const weights = view.setup.weighted ? ", times its weight" : "";
  const n = view.setup.examples.length;
  view.nodes.stripName.textContent = `${view.setup.axis} on each of ${n} example${n === 1 ? "" : "s"}${weights}`;
  const parts = [];
  const line = (x1, y1, x2, y2, attributes) =>
    parts.push(drawn("line", { x1, y1, x2, y2, ...attributes }));
  const bottom = height - 20;
  line(view.left, bottom, view.width - 14, bottom, { stroke: "var(--line)" });
  for (const value of new Set([view.range[0], 0, view.range[1]])) {
    const x = xOf(view, value);
    if (value !== 0 && Math.abs(x - xOf(view, 0)) < 60) continue;
    line(x, bottom, x, bottom + 4, { stroke: "var(--line)" });
    const anchor = value === 0 || lanes.length === 0 ? "middle" : value < 0 ? "start" : "end";
    parts.push(drawn("text", { x, y: bottom + 15, "text-anchor": anchor }, fmt(value)));
  }
  const zero = xOf(view, 0);
  line(zero, 0, zero, bottom, { stroke: "var(--line)", "stroke-dasharray": "2 3" });
  let active = "";
  lanes.forEach(([name, measured], lane) => {
    const top = lane * LANE + 3;
    parts.push(drawn("text", { x: 2, y: top + 16 }, name));
    measured.effects.forEach((value, number) => parts.push(tickOf(view, lane, number, value)));
    if (lane === 0 && measured.effects[view.shownExample] !== undefined) {
      active = `${view.id}-example${view.shownExample}`;
    }
    const x = xOf(view, measured.effect);
    const y = top + LANE - 6;
    parts.push(
      drawn("path", { d: `M${x - 5} ${y + 4}L${x + 5} ${y + 4}L${x} ${y - 4}Z`, fill: "var(--minus)" }),
    );
  });
  view.nodes.strip.replaceChildren(...parts);
  if (active) view.nodes.strip.setAttribute("aria-activedescendant", active);
  else view.nodes.strip.removeAttribute("aria-activedescendant");
  drawDetail(view);
}

// The effect on an example; those of the set on screen can be chosen.
function tickOf(view, lane, number, value) {
  const shown = number === view.shownExample;
  const [x, top] = [xOf(view, value), lane * LANE + 3];
  const option = {
    id: `${view.id}-example${number}`,
    role: "option",
    "aria-selected": String(number === view.session.example),
    "aria-label": `example ${number}, effect ${fmt(value)}`,
  };
  return drawn("line", {
    x1: x,
    x2: x,
    y1: top + (shown ? 0 : 4),
    y2: top + LANE - (shown ? 6 : 10),
    stroke: shown ? "var(--plus)" : "var(--fg)",
    "stroke-width": shown ? 4 : 2,
    "stroke-opacity": shown ? 1 : 0.55,
    ...(lane === 0 ? option : {}),
  });
}

function pointAt(view, event) {
  const lanes = lanesOf(view);
  if (!lanes.length) return;
  const box = view.nodes.strip.getBoundingClientRect();
  const at = ((event.clientX - box.left) / box.width) * view.width;
  const lane = Math.min(lanes.length - 1, Math.max(0, Math.floor((event.clientY - box.top) / LANE)));
  let best = null;
  lanes[lane][1].effects.forEach((value, number) => {
    const distance = Math.abs(xOf(view, value) - at);
    if (best === null || distance < best[0]) best = [distance, number];
  });
  view.shownExample = best[1];
  drawStrip(view);
}

function pinExample(view) {
  const { session } = view;
  if (view.shownExample === null) return;
  changeBy(view, () => {
    session.example = session.example === view.shownExample ? null : view.shownExample;
  });
}

function stripKey(view, event) {
  const { now } = view;
  if (!now || event.ctrlKey || event.metaKey) return;
  const order = [...now.effects.keys()].sort((a, b) => now.effects[a] - now.effects[b] || a - b);
  const at = order.indexOf(view.shownExample);
  const last = order.length - 1;
  const to = {
    ArrowLeft: Math.max(0, at - 1),
    ArrowRight: Math.min(last, at + 1),
    Home: 0,
    End: last,
  }[event.key];
  if (to !== undefined) {
    view.shownExample = order[to];
    drawStrip(view);
  } else if (event.key === "Enter" || event.key === " ") pinExample(view);
  else if (event.key === "Escape" && view.session.example !== null) {
    changeBy(view, () => (view.session.example = null));
  } else return;
  event.preventDefault();
}

function buildBudget(view) {
  const { front } = view.setup;
  view.nodes.slider = element("input", {
    type: "range",
    min: 0,
    max: front.keys.length - 1,
    step: 1,
    id: `${view.id}-budget`,
    on: {
      input: () => changeBy(view, () => view.session.select(membersOf(front.keys[view.nodes.slider.value]))),
    },
  });
  view.nodes.budgetText = element("output", { for: `${view.id}-budget` });
  return element(
    "div",
    { class: "tk-budget" },
    element("label", { for: `${view.id}-budget`, text: front.name }),
    view.nodes.slider,
    view.nodes.budgetText,
  );
}

function drawBudget(view) {
  if (!view.nodes.slider) return;
  const { front } = view.setup;
  const at = front.keys.indexOf(view.session.key);
  if (at >= 0) view.nodes.slider.value = at;
  const text = at >= 0 ? `${front.sizes[at]} ${view.setup.noun}` : "the set is not on it";
  view.nodes.budgetText.textContent = text;
  view.nodes.slider.setAttribute("aria-valuetext", text);
}
