// What is known of sets, and the set on screen: nothing here draws.

const MOST_UNDONE = 100;

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
