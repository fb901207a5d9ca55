// The normalizers of onmt_evsoftmax in plain JavaScript, for the playground. Every function takes an
// array of scores and returns an array of probabilities in which a zero is exact. A test compares
// names, titles, colours, parameters and values with the Python package.
"use strict";

const sum = (values) => values.reduce((total, value) => total + value, 0);
const shifted = (scores) => {
  const top = Math.max(...scores);
  return scores.map((score) => score - top);
};
const scaled = (weights) => {
  const total = sum(weights);
  return weights.map((weight) => weight / total);
};

function softmax(scores) {
  return scaled(shifted(scores).map(Math.exp));
}

function evsoftmax(scores, { eps = 0 } = {}) {
  const v = shifted(scores);
  const mean = sum(v) / v.length;
  return scaled(v.map((score) => ((score >= mean ? 1 : 0) + eps) * Math.exp(score)));
}

function sparsemax(scores) {
  const v = shifted(scores);
  const sorted = [...v].sort((a, b) => b - a);
  let total = 0;
  let threshold = 0;
  sorted.forEach((score, index) => {
    total += score;
    if (1 + (index + 1) * score > total) threshold = (total - 1) / (index + 1);
  });
  return v.map((score) => Math.max(score - threshold, 0));
}

// Entries are max(0, 1 + (alpha - 1)(v - offset))^(1 / (alpha - 1)); the offset makes them sum to 1.
function entmax(scores, { alpha = 1.5 } = {}) {
  if (alpha === 1) return softmax(scores);
  if (alpha === 2) return sparsemax(scores);
  const v = shifted(scores);
  const delta = alpha - 1;
  const at = (offset) => v.map((score) => Math.max(1 + delta * (score - offset), 0) ** (1 / delta));
  let low = 0; // here the largest entry alone is 1
  let high = (1 - v.length ** -delta) / delta; // here the entries sum to 1 if all are equal
  for (;;) {
    const middle = (low + high) / 2;
    if (middle === low || middle === high) break;
    if (sum(at(middle)) >= 1) low = middle;
    else high = middle;
  }
  return scaled(at(low));
}

function entmax15(scores) {
  return entmax(scores, { alpha: 1.5 });
}

function sparsehourglass(scores, { q = 1 } = {}) {
  const mass = q * scores.length;
  const factor = (1 + mass) / (Math.abs(sum(scores)) + mass);
  return sparsemax(scores.map((score) => score * factor));
}

const NORMALIZERS = [
  { name: "softmax", title: "softmax", colour: "#e69f00", formula: "p ∝ exp(v)", compute: softmax },
  {
    name: "evsoftmax",
    title: "ev-softmax",
    colour: "#009e73",
    formula: "p ∝ 1{v ≥ mean(v)} · exp(v)",
    compute: evsoftmax,
    parameter: { name: "eps", label: "ε, of the training form", min: 0, max: 0.5, step: 0.01, value: 0 },
  },
  { name: "sparsemax", title: "sparsemax", colour: "#d55e00", formula: "p = (v − τ)₊", compute: sparsemax },
  { name: "entmax15", title: "entmax-1.5", colour: "#56b4e9", formula: "p = (v / 2 − τ)₊²", compute: entmax15 },
  {
    name: "entmax",
    title: "entmax",
    colour: "#0072b2",
    formula: "p = (1 + (α − 1)(v − λ))₊^(1 / (α − 1))",
    compute: entmax,
    parameter: { name: "alpha", label: "α", min: 1, max: 3, step: 0.05, value: 1.25 },
  },
  {
    name: "sparsehourglass",
    title: "sparsehourglass",
    colour: "#8c564b",
    formula: "p = sparsemax(v (1 + Kq) / (|Σv| + Kq))",
    compute: sparsehourglass,
    parameter: { name: "q", label: "q", min: 0.05, max: 4, step: 0.05, value: 1 },
  },
];
