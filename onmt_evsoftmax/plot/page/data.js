// Blocks of the file → sentences → what one head attends to. Nothing here touches the page.

const NO_WORD = -1;
// Heads below 0 are rows derived from all heads of a layer.
const MEAN = -1, ROLLOUT = -2;
const DERIVED = new Map([[MEAN, "mean"], [ROLLOUT, "rollout"]]);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const cache = new Map();
const CACHED = 24;

/** The bytes of one embedded block, decompressed. */
async function unpack(id) {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const parse = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

/** One sentence of one trace: its facts, and one byte per weight for each kind of attention. */
function sentence(trace, index) {
  const id = `s${trace}.${index}`;
  if (!cache.has(id)) {
    if (cache.size >= CACHED) cache.delete(cache.keys().next().value);
    cache.set(id, unpack(id).then(split));
  }
  return cache.get(id);
}

function split(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const facts = parse(bytes.subarray(4, 4 + length));
  let at = 4 + length;
  facts.codes = {};
  for (const [kind, shape] of Object.entries(facts.attention)) {
    const size = shape.reduce((a, b) => a * b, 1);
    facts.codes[kind] = bytes.subarray(at, at + size);
    at += size;
  }
  return facts;
}

// Byte 0 is exactly zero; the others are the square root of the weight in 254 steps, so that small
// weights keep their precision.
const WEIGHT = Float64Array.from({ length: 256 }, (_, code) => (code ? ((code - 1) / 254) ** 2 : 0));

/** The tokens along rows and keys of one kind of attention. */
function axes(facts, kind) {
  const prefix = {
    names: [facts.start, ...facts.target.names.slice(0, -1)],
    words: [NO_WORD, ...facts.target.words.slice(0, -1)],
    texts: facts.target.texts,
  };
  const rows = kind === "encoder" ? facts.source : facts.target;
  const keys = kind === "decoder" ? (facts.target.names.length ? prefix : facts.target) : facts.source;
  return [rows, keys];
}

/**
 * What one head, the mean of a layer's heads, or rollout up to a layer attends to:
 * weights, and support, available as 0/1, all rows × keys.
 */
function view(facts, kind, layer, head, units) {
  const block = head === ROLLOUT ? `${kind} rollout` : kind;
  const [, heads, rows, keys] = facts.attention[block];
  const chosen = head < 0 ? [...Array(heads).keys()] : [Math.min(head, heads - 1)];
  const weights = new Float64Array(rows * keys);
  const support = new Uint8Array(rows * keys);
  const available = new Uint8Array(rows * keys);
  const codes = facts.codes[block];
  for (const one of chosen) {
    const start = (layer * heads + one) * rows * keys;
    for (let i = 0; i < rows * keys; i += 1) {
      weights[i] += WEIGHT[codes[start + i]] / chosen.length;
      support[i] |= codes[start + i] ? 1 : 0;
    }
  }
  const past = keys - rows;
  for (let r = 0; r < rows; r += 1) {
    available.fill(1, r * keys, kind === "decoder" ? r * keys + r + past + 1 : (r + 1) * keys);
  }
  const [rowSide, keySide] = axes(facts, kind);
  const tokens = {
    rows: rowSide.names, keys: keySide.names, weights, support, available,
    rowWords: rowSide.words, keyWords: keySide.words,
  };
  return units === "word" ? byWords(tokens, rowSide, keySide) : tokens;
}

/** Units of a side: words and single special tokens, in order. */
function unitsOf(side) {
  const unit = [], names = [], words = [];
  let last = null;
  side.words.forEach((word, position) => {
    if (word === NO_WORD || word !== last) {
      names.push(word === NO_WORD ? side.names[position] : side.texts[word]);
      words.push(word);
    }
    unit.push(names.length - 1);
    last = word;
  });
  const sizes = new Array(names.length).fill(0);
  unit.forEach((u) => { sizes[u] += 1; });
  return { unit, names, words, sizes };
}

/** To a word: the sum over its subwords; from a word: the mean over its subwords. */
function byWords(tokens, rowSide, keySide) {
  const row = unitsOf(rowSide), key = unitsOf(keySide);
  const size = row.names.length * key.names.length;
  const weights = new Float64Array(size), support = new Uint8Array(size), available = new Uint8Array(size);
  row.unit.forEach((r, i) => key.unit.forEach((k, j) => {
    const from = i * key.unit.length + j, to = r * key.names.length + k;
    weights[to] += tokens.weights[from] / row.sizes[r];
    support[to] |= tokens.support[from];
    available[to] |= tokens.available[from];
  }));
  return {
    rows: row.names, keys: key.names, weights, support, available,
    rowWords: row.words, keyWords: key.words,
  };
}

/** Attended and available keys and entropy (nats) of one row. */
function rowNumbers(shown, row) {
  const keys = shown.keys.length;
  let attended = 0, available = 0, total = 0;
  for (let i = row * keys; i < (row + 1) * keys; i += 1) {
    attended += shown.support[i];
    available += shown.available[i];
    total += shown.weights[i];
  }
  let entropy = 0;
  for (let i = row * keys; i < (row + 1) * keys; i += 1) {
    const p = shown.weights[i] / total;
    if (p > 0) entropy -= p * Math.log(p);
  }
  return { attended, available, entropy };
}

/** The averages of a matrix over its rows that are text. */
function numbers(shown) {
  const rows = shown.rows.map((_, row) => row).filter((row) => shown.rowWords[row] !== NO_WORD);
  const all = rows.map((row) => rowNumbers(shown, row));
  const mean = (of) => (all.length ? all.reduce((sum, one) => sum + of(one), 0) / all.length : NaN);
  return {
    attended: mean((one) => one.attended),
    available: mean((one) => one.available),
    density: mean((one) => one.attended / one.available),
    entropy: mean((one) => one.entropy),
  };
}

/** A weight in words: exact zeros are "0", never a rounded 0.00. */
function weightText(weight, attended) {
  if (!attended) return "0";
  return weight < 0.005 ? "<0.01" : weight.toFixed(2);
}
