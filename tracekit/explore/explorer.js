// What stands behind a view: a table of what was measured, on a saved page, or a widget of Jupyter.

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
  return makeView(el, data.setup, session, known, host);
}

// Takes in what Python says of a set.
function takeIn(view, message, buffers) {
  const { known, setup } = view;
  const { kind, key } = message;
  if (kind === "progress") {
    if (key === view.session.key) view.progress = message;
  } else if (kind === "measured") {
    known.addMeasured(message, floats(buffers[0]));
  } else if (kind === "predicted") {
    known.predicted.set(key, { key, rough: message.rough, gains: floats(buffers[0]) });
    if (buffers.length > 1) {
      view.rowGains = { key, example: message.example, gains: floats(buffers[1]) };
    }
  } else if (kind === "circuit") {
    known.circuits.set(key, message);
  } else if (kind === "written") {
    const { prompt, other } = message;
    const question = JSON.stringify(setup.needs_other ? [prompt, other] : [prompt]);
    if (question === view.asked) view.answer = message;
  } else if (kind === "unpredicted") {
    known.unpredicted.set(key, message.reason);
  } else if (kind === "problem") {
    known.problems.set(key, message.text);
  } else if (kind === "table") {
    known.addTable({ ...message.table, effects: buffers[0], gains: buffers[1] });
  }
}

const SILENCE = 6000; // Milliseconds without an answer after which the view says so.
const NO_ANSWER =
  "No answer from Python. It is busy, or the kernel has stopped. All that was measured stays clickable.";
const STOPPED =
  "The kernel has stopped or was restarted. All that was measured stays clickable, and Save page keeps it.";

// Sends the set to Python, if it is another one than Python knows.
function sendState(link) {
  const { model, host, session } = link;
  const state = session.state();
  const text = JSON.stringify(state);
  if (text === link.sent) return;
  link.sent = text;
  if (!host.live) return;
  link.stamp += 1;
  model.set("view_state", { ...state, stamp: link.stamp });
  model.save_changes();
  expectAnswer(link);
}

function expectAnswer(link) {
  clearTimeout(link.timer);
  link.timer = setTimeout(() => {
    link.host.notice = NO_ANSWER;
    draw(link.view);
  }, SILENCE);
}

function answered(link) {
  clearTimeout(link.timer);
  link.timer = null;
  link.host.notice = "";
}

function onMessage(link, message, buffers) {
  const { host, session, view } = link;
  const waits = link.timer !== null;
  const returns = !host.live;
  host.live = true;
  answered(link);
  // Two changes crossed: what the reader sees holds.
  const crossed = message.kind === "seen" && message.stamp === link.stamp && message.key !== session.key;
  if (!crossed) takeIn(view, message, buffers);
  // Batches follow each other: silence between them is silence too.
  if (waits && ["seen", "progress"].includes(message.kind) && !view.known.measured.has(session.key)) {
    expectAnswer(link);
  }
  if (crossed || returns) {
    // What was clicked in the meantime.
    link.sent = "";
    sendState(link);
  }
  if (!crossed) draw(view);
}

function onState(link) {
  const { stamp: other, ...state } = link.model.get("view_state");
  const text = JSON.stringify(link.session.state());
  link.session.adopt(state);
  link.sent = JSON.stringify(link.session.state());
  if (link.sent !== text) {
    link.view.progress = null;
    draw(link.view);
  }
}

function onComm(link) {
  link.host.live = false;
  answered(link);
  link.host.notice = STOPPED;
  draw(link.view);
  // A connection that is only interrupted answers.
  try {
    link.model.send({ kind: "hello" });
  } catch {
    // There is nothing left to ask.
  }
}

// A widget with a kernel.
function render({ model, el }) {
  const setup = model.get("setup");
  const known = new Known(setup);
  known.addTable(model.get("table"));
  const session = new Session(model.get("view_state"), setup.labels.length);
  const host = {
    live: true,
    notice: "",
    changed: () => sendState(link),
    ask: (prompt, other = null) => model.send({ kind: "prompt", prompt, other }),
    page: () => pageOf(model.get("_esm"), pageData(model.get("page"), setup, session, known)),
  };
  const link = { model, session, host, stamp: 0, timer: null, sent: JSON.stringify(session.state()) };
  link.view = makeView(el, setup, session, known, host);
  const listeners = {
    "msg:custom": (message, buffers) => onMessage(link, message, buffers),
    "change:view_state": () => onState(link),
    comm_live_update: () => onComm(link),
  };
  for (const [name, listener] of Object.entries(listeners)) model.on(name, listener);
  // What was measured since the widget was made.
  model.send({ kind: "hello" });
  return () => {
    clearTimeout(link.timer);
    for (const [name, listener] of Object.entries(listeners)) model.off(name, listener);
  };
}

export default { render };
