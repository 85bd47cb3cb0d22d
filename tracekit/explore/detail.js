// What is said of the set: its effect, pinned sets beside it, an example in full, a prompt of one's own.

const CIRCUIT =
  "Faithfulness: how much of the effect of all is left with the set alone; 1 is all of it. " +
  "Completeness: how much is left without the set; 0 is none. In brackets: 95 % over the examples.";
const SPREAD = "In brackets: how far the effect moves when the examples are resampled (95 %).";
const INTERVAL = "On examples that had no part in choosing the set.";

// What a line of the state says of the set: its size, its effect, and all else.
function statusOf({ setup, known, session, host, members, now }) {
  const count = `${members.length} of ${session.n} ${setup.noun}`;
  if (!now) {
    const guess = known.guess(members);
    const waits = host.live && !known.problems.has(session.key);
    const rest = [waits ? "measuring" : `not measured${host.saved ? ", and this page has no model to measure it" : ""}`];
    if (guess) rest.push(`predicted ${fmt(guess.value)} from ${guess.from}`);
    return { count, effect: null, rest };
  }
  const rest = [];
  const circuit = known.circuits.get(session.key);
  if (setup.full) {
    const percent = (share) => fmt(share === null ? null : Math.round(100 * share));
    const ends = circuit
      ? ` [${percent(circuit.share_of_full_low)}, ${percent(circuit.share_of_full_high)}]`
      : "";
    rest.push(`${Math.round((100 * now.effect) / setup.full)} % of the effect of all${ends}`);
  }
  const singles = members.map((i) => known.alone(i));
  if (members.length > 1 && singles.every((value) => value !== null)) {
    const sum = singles.reduce((a, b) => a + b, 0);
    rest.push(`alone they sum to ${fmt(sum)} (interaction ${signed(now.effect - sum)})`);
  }
  if (now.seconds !== null && !host.saved) rest.push(`${Math.max(1, Math.round(1000 * now.seconds))} ms`);
  const spread = now.low === null ? "" : ` [${fmt(now.low)}, ${fmt(now.high)}]`;
  return { count, effect: `effect ${fmt(now.effect)}${spread}`, rest };
}

function circuitText(circuit) {
  const words = ["faithfulness", "completeness"].map((name) => {
    const ends = [`${name}_low`, `${name}_high`].map((end) => fmt(circuit[end]));
    return `${name} ${fmt(circuit[name])} [${ends.join(", ")}]`;
  });
  return `${words.join(" \u00b7 ")} on the searched examples [95 % spread]`;
}

function drawStatus(view) {
  const { setup, known, session, now, members, nodes, progress } = view;
  const { count, effect, rest } = statusOf(view);
  const line = [element("span", { text: count })];
  const add = (kind, text, title) => line.push(" \u00b7 ", element("span", { class: `tk-${kind}`, text, title }));
  const [n, independent, ...held] = setup.held_out[session.key] ?? [];
  const [mean, low, high] = held.map(fmt);
  if (n) add("held-out", `held-out effect ${mean} (95 % interval ${low} to ${high}; n ${n}, independent ${independent})`, INTERVAL);
  if (effect !== null) add("effect", n ? `searched ${effect}` : effect, SPREAD);
  for (const part of rest) line.push(` \u00b7 ${part}`);
  nodes.status.replaceChildren(...line);
  nodes.status.dataset.key = session.key;
  nodes.status.dataset.measured = String(now !== null);
  nodes.waiting.textContent =
    !now && progress && progress.key === session.key
      ? `\u2026 ${progress.done} of ${progress.total} batches, mean so far ${fmt(progress.effect)}`
      : "";
  const circuit = now ? known.circuits.get(session.key) : null;
  nodes.circuit.textContent = circuit ? circuitText(circuit) : "";
  if (circuit?.warning) {
    const warning = element("span", { class: "tk-warning", text: circuit.warning });
    nodes.circuit.append(" \u00b7 ", warning);
  }
  keepHeight(nodes.second);
  nodes.membersLine.textContent = namesOf(setup, session.key, 24);
  nodes.problem.textContent = [known.problems.get(session.key), view.host.notice].filter(Boolean).join(" ");
}

// Its members, or as many of them as there is room for.
function namesOf({ labels }, key, most = 4) {
  const members = membersOf(key);
  const names = members.slice(0, most).map((i) => labels[i]);
  if (members.length > most) names.push(`and ${members.length - most} more`);
  return names.join(", ") || "the empty set";
}

function drawSaved({ host, known, nodes, setup }) {
  if (!host.saved) return;
  nodes.saved.textContent =
    `A saved page without the model. ${known.measured.size} measured sets can be clicked; of any other it shows ` +
    `a prediction only. A line at the foot of a cell: a click leads to a measured set. ${setup.coverage ?? ""}`;
}

function describe({ known, setup }, name, key) {
  const [measured, circuit] = [known.measured.get(key), known.circuits.get(key)];
  const faithful = circuit ? `, faithfulness ${fmt(circuit.faithfulness)}` : "";
  const effect = measured ? `effect ${fmt(measured.effect)}${faithful}` : "not measured";
  return `${name}: ${membersOf(key).length} ${setup.noun}, ${effect}`;
}

function drawCompare(view) {
  const { pins, key } = view.session;
  const pinned = ["A", "B"].filter((name) => name in pins);
  const lines = pinned.map((name) => {
    const go = () => changeBy(view, () => view.session.select(membersOf(pins[name])));
    const button = makeButton(`Go to ${name}`, `Make ${name} the set`, go);
    return element("div", {}, button, ` ${describe(view, name, pins[name])}`);
  });
  const names = [...pinned, "now"].slice(0, 2);
  const keys = names.map((name) => pins[name] ?? key);
  if (pinned.length && keys[0] !== keys[1]) {
    lines.push(element("div", { text: difference(view, names, keys) }));
  }
  view.nodes.compare.replaceChildren(...lines);
}

function difference(view, names, keys) {
  const [first, second] = keys.map(membersOf);
  const inFirst = new Set(first);
  const shared = second.filter((i) => inFirst.has(i)).length;
  const union = first.length + second.length - shared;
  const parts = [`${names[0]} and ${names[1]}: ${shared} shared, Jaccard ${fmt(shared / union)}`];
  const [a, b] = keys.map((key) => view.known.measured.get(key));
  if (a && b) {
    const larger = b.effects.filter((value, i) => value > a.effects[i]).length;
    parts.push(
      `${names[1]} less ${names[0]} ${signed(b.effect - a.effect)}`,
      `larger in ${names[1]} on ${larger} of ${b.effects.length} examples`,
    );
  } else parts.push("their effects are not both measured");
  return parts.join(" \u00b7 ");
}

function tokenSpans(tokens) {
  return tokens.map(([text, changed]) =>
    element("span", { class: `tk-token${changed ? " tk-changed" : ""}`, text }),
  );
}

function drawDetail(view) {
  const number = view.shownExample;
  if (number === null || number === undefined) {
    const text = "Point at a tick to see its example. Click it to colour the components by that example.";
    view.nodes.detail.replaceChildren(element("span", { class: "tk-muted", text }));
    return;
  }
  const example = view.setup.examples[number];
  const pinned = number === view.session.example ? " (pinned)" : "";
  const head = [`Example ${number}${pinned}`];
  if (view.now) head.push(`effect ${fmt(view.now.effects[number])}`);
  const lines = [element("div", { text: head.join(" \u00b7 ") })];
  lines.push(element("div", {}, "prompt: ", ...tokenSpans(example.prompt)));
  const other = example.other ? tokenSpans(example.other) : [example.source];
  lines.push(element("div", {}, "counterfactual: ", ...other));
  for (const side of ["x", "y"]) {
    if (!example[side].length) continue;
    const before = view.setup.before[side]?.[number];
    const after = view.now?.[side]?.[number];
    const then = Number.isFinite(after) ? fmt(Math.exp(after)) : "not recorded";
    const change = Number.isFinite(before) ? ` P(${side}) ${fmt(before)} \u2192 ${then}` : "";
    lines.push(
      element("div", {}, `${side}: `, ...tokenSpans(example[side].map((text) => [text, false])), change),
    );
  }
  view.nodes.detail.replaceChildren(...lines);
  keepHeight(view.nodes.detail);
}

// A prompt of the reader's own, and what the model writes after it.
function buildAsk(view) {
  const input = (text) =>
    element("input", {
      type: "text",
      placeholder: text,
      "aria-label": text,
      on: {
        input: () => drawWritten(view),
        keydown: (event) => {
          event.stopPropagation();
          if (event.key === "Enter" && !event.isComposing) ask(view);
        },
      },
    });
  view.asked = null;
  view.answer = null;
  view.nodes.inputs = [input("Try the set on a prompt of yours, and press Enter")];
  if (view.setup.needs_other) view.nodes.inputs.push(input("Its counterfactual, of as many tokens"));
  view.nodes.written = element("div", { class: "tk-written", "aria-live": "polite" });
  view.nodes.askBox = element("div", { class: "tk-ask" }, ...view.nodes.inputs, view.nodes.written);
  return view.nodes.askBox;
}

function ask(view) {
  const empty = view.nodes.inputs.find(({ value }) => !value);
  if (empty) return empty.focus();
  view.asked = questionOf(view);
  view.answer = null;
  view.host.ask(...view.nodes.inputs.map(({ value }) => value));
  drawWritten(view);
}

function questionOf(view) {
  return JSON.stringify(view.nodes.inputs.map(({ value }) => value));
}

// An answer stands beside the texts and the set that it is of only.
function drawWritten(view) {
  const { answer } = view;
  view.nodes.askBox.hidden = !view.host.live;
  const muted = (text) => element("span", { class: "tk-muted", text });
  if (view.asked !== questionOf(view)) view.nodes.written.replaceChildren();
  else if (answer === null) view.nodes.written.replaceChildren(muted("writing \u2026"));
  else if (answer.key !== view.session.key) {
    view.nodes.written.replaceChildren(muted("Another set was on. Press Enter again for this one."));
  } else if (answer.problem) {
    view.nodes.written.replaceChildren(element("span", { class: "tk-problem", text: answer.problem }));
  } else {
    const line = (title, text) => element("div", {}, muted(title), text);
    const lines = [line("by itself: ", answer.clean), line("with the set replaced: ", answer.intervened)];
    view.nodes.written.replaceChildren(...lines);
  }
}
