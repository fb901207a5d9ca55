// The page: what is chosen, where that is written down, and who draws it.

const $ = (id) => document.getElementById(id);
const NAMES = { encoder: "Encoder", decoder: "Decoder", context: "Context" };
const state = { line: 0, kind: "context", layer: 0, head: 0, units: "subword", row: 0 };
let book, panels, hover = null, drawing = 0;

const most = (field) => Math.max(...book.traces.map((t) => t.kinds[state.kind]?.[field] ?? 0));
/** The smallest head: a kind of attention may lack rollout. */
const lowest = () => (book.rollouts.includes(state.kind) ? ROLLOUT : MEAN);

/** Where on this page a line of the source text is, or the next one if it is not. */
function place(line) {
  const wanted = Number.parseInt(line, 10) || 1;
  const found = book.sentences.findIndex((one) => one.line >= wanted);
  return found < 0 ? book.sentences.length - 1 : found;
}

/** Change what is shown; everything that does not fit the new choice is brought into range. */
function choose(change) {
  Object.assign(state, change);
  if ("line" in change && !("row" in change)) state.row = 0;
  if ("kind" in change || "units" in change) state.row = change.row ?? 0;
  state.line = clamp(state.line, 0, book.sentences.length - 1);
  state.layer = clamp(state.layer, 0, most("layers") - 1);
  state.head = clamp(state.head, lowest(), most("heads") - 1);
  hover = null;
  return show();
}

async function show() {
  const ticket = (drawing += 1);
  controls();
  remember();
  const facts = await Promise.all(panels.map((panel) => sentence(panel.trace.id, state.line)));
  if (ticket !== drawing) return; // a later choice is already under way
  $("source").textContent = book.sentences[state.line].text || " ";
  const views = panels.map((panel, i) => panel.look(facts[i], state)).filter(Boolean);
  layout(Math.max(0, ...views.map((shown) => shown.keys.length)));
  const largest = views.reduce((most, shown) => shown.weights.reduce((a, b) => Math.max(a, b), most), 1e-6);
  panels.forEach((panel) => panel.draw(largest));
  legend(largest, state.kind === "context" ? facts.flatMap((one) => one.gold ?? []) : []);
  mark();
  Object.assign(document.body.dataset, { shown: state.line, drawn: ticket });
  const next = Math.min(state.line + 1, book.sentences.length - 1);
  panels.forEach((panel) => sentence(panel.trace.id, next));
}

/** As many panels side by side as can show their whole matrix, as far as that is possible. */
function layout(keys) {
  const need = Math.max(340, keys * SMALLEST_CELL + 110);
  const columns = Math.floor($("panels").clientWidth / need);
  $("panels").style.setProperty("--columns", clamp(columns, 1, Math.min(panels.length, 4)));
}

function mark(speak = false) {
  const [row, key] = hover ?? [state.row, null];
  const spoken = panels.map((panel) => {
    const reading = panel.mark(row, key);
    return reading && `${panel.trace.name}: ${reading}`;
  });
  if (speak) $("spoken").textContent = spoken.filter(Boolean).join(". ");
}

const actions = {
  look: (row, key) => { hover = [row, key]; mark(); },
  leave: () => { hover = null; mark(); },
  keep: (row) => { state.row = row; hover = null; remember(); mark(true); },
  choose,
};

/** Controls show the state; they never hold it. */
function controls() {
  const { length } = book.sentences;
  const whole = book.sentences[length - 1].line === length;
  $("line").value = book.sentences[state.line].line;
  $("lines").textContent = whole ? `of ${length}` : `(${state.line + 1} of ${length})`;
  $("previous").disabled = state.line === 0;
  $("next").disabled = state.line === book.sentences.length - 1;
  options($("layer"), most("layers"), state.layer, []);
  options($("head"), most("heads"), state.head, [...DERIVED].slice(0, -lowest()));
  for (const name of ["kind", "units"]) {
    document.querySelector(`input[name="${name}"][value="${state[name]}"]`).checked = true;
  }
}

function options(select, count, value, before) {
  const wanted = [...before, ...Array.from({ length: count }, (_, i) => [i, String(i + 1)])];
  if (String([...select.children].map((one) => one.value)) !== String(wanted.map(([key]) => key))) {
    select.replaceChildren(...wanted.map(([key, name]) => make("option", { value: key, textContent: name })));
  }
  select.value = value;
}

function segments(name, choices) {
  $(name).append(...choices.map(([value, text]) => {
    const input = make("input", { type: "radio", name, value });
    input.addEventListener("change", () => choose({ [name]: value }));
    return make("label", {}, [input, make("span", { textContent: text })]);
  }));
}

function legend(largest, gold) {
  const item = (className, text) => make("span", {}, [make("i", { className }), text]);
  $("legend").replaceChildren(
    item("nothing", "exactly 0"), item("small", "small, but not 0"), item("ramp", `up to ${largest.toFixed(2)}`),
    ...(gold.some(([, , sure]) => sure) ? [item("sure", "gold alignment")] : []),
    ...(gold.some(([, , sure]) => !sure) ? [item("possible", "gold, possible")] : []),
  );
}

/** The address holds the view, so that a link or a reload shows the same. */
function remember() {
  const { line, kind, layer, head, units, row } = state;
  const parts = { line: book.sentences[line].line, kind, layer: layer + 1, head: DERIVED.get(head) ?? head + 1, units, row: row + 1 };
  history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
}

function recall() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name) => (Number.parseInt(given.get(name), 10) || 1) - 1;
  const change = {};
  if (given.has("line")) change.line = place(given.get("line"));
  if (book.kinds.includes(given.get("kind"))) change.kind = given.get("kind");
  if (given.has("layer")) change.layer = number("layer");
  const derived = [...DERIVED.keys()].find((head) => DERIVED.get(head) === given.get("head"));
  if (given.has("head")) change.head = derived ?? number("head");
  if (["subword", "word"].includes(given.get("units"))) change.units = given.get("units");
  if (given.has("row")) change.row = Math.max(number("row"), 0);
  return change;
}

function shortcuts(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
  const rows = Math.max(...panels.map((panel) => panel.shown?.rows.length ?? 0));
  const kinds = book.kinds;
  const does = {
    ArrowLeft: () => choose({ line: state.line - 1 }),
    ArrowRight: () => choose({ line: state.line + 1 }),
    ArrowUp: () => actions.keep(clamp(state.row - 1, 0, rows - 1)),
    ArrowDown: () => actions.keep(clamp(state.row + 1, 0, rows - 1)),
    "[": () => choose({ layer: state.layer - 1 }),
    "]": () => choose({ layer: state.layer + 1 }),
    ",": () => choose({ head: state.head - 1 }),
    ".": () => choose({ head: state.head + 1 }),
    k: () => choose({ kind: kinds[(kinds.indexOf(state.kind) + 1) % kinds.length] }),
    w: () => choose({ units: state.units === "word" ? "subword" : "word" }),
    "/": () => $("find").focus(),
  }[event.key];
  if (does) { event.preventDefault(); does(); }
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

async function start() {
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  theme(prefersDark.matches);
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old: it has no DecompressionStream");
  book = parse(await unpack("book"));
  const count = book.sentences.length;
  $("about").textContent = [book.about, `${count} sentence${count === 1 ? "" : "s"}`].filter(Boolean).join(" · ");
  $("line").min = book.sentences[0].line;
  $("line").max = book.sentences[count - 1].line;
  panels = book.traces.map((trace, id) => new Panel({ ...trace, id }, actions));
  $("panels").append(...panels.map((panel) => panel.element));
  segments("kind", book.kinds.map((kind) => [kind, NAMES[kind] ?? kind]));
  segments("units", [["subword", "Subwords"], ["word", "Words"]]);
  finder(book.sentences, (line) => choose({ line }));
  $("previous").addEventListener("click", () => choose({ line: state.line - 1 }));
  $("next").addEventListener("click", () => choose({ line: state.line + 1 }));
  $("line").addEventListener("change", (event) => choose({ line: place(event.target.value) }));
  $("layer").addEventListener("change", (event) => choose({ layer: Number(event.target.value) }));
  $("head").addEventListener("change", (event) => choose({ head: Number(event.target.value) }));
  $("theme").addEventListener("click", () => { theme(document.documentElement.dataset.theme !== "dark"); show(); });
  prefersDark.addEventListener("change", (event) => { theme(event.matches); show(); });
  document.addEventListener("keydown", shortcuts);
  addEventListener("hashchange", () => choose(recall()));
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(show, 120); });
  state.kind = book.kinds.includes("context") ? "context" : book.kinds[0];
  state.layer = most("layers") - 1;
  state.units = book.units;
  await choose({ ...recall() });
}

start().catch((error) => {
  $("message").hidden = false;
  $("message").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
