// The page: sliders for a row of scores, one panel of bars per normalizer, the simplex if the row has
// three scores. The state is in the address, so a link shows what its sender saw.
"use strict";

(() => {
  const root = document.getElementById("playground");
  const find = (selector) => root.querySelector(selector);
  const STEP = 1 / 8; // sums of eighths are exact, so that a score on the mean is on it
  const MOST = 4;
  const PRESETS = {
    "two modes": [2, 1.75, -1, 0.25, -0.5, -1.5],
    "one clear winner": [3.5, 0.5, 0, -0.5, 0.25, -1],
    "almost flat": [0.25, 0.125, 0, -0.125, 0.125, -0.25],
    "three scores, on the simplex": [0.375, 1.5, -0.75],
  };
  const state = { scores: PRESETS["two modes"], parameters: {} };
  for (const { parameter } of NORMALIZERS) if (parameter) state.parameters[parameter.name] = parameter.value;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElementNS(
      ["svg", "path", "circle", "polygon", "text", "title", "polyline"].includes(tag)
        ? "http://www.w3.org/2000/svg"
        : "http://www.w3.org/1999/xhtml",
      tag,
    );
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // Small weights keep a digit that differs from 0; only an exact zero is written without decimals.
  const written = (p) => (p === 0 ? "0" : p < 0.00005 ? "<.0001" : p.toFixed(4));

  function probabilities(normalizer, scores = state.scores) {
    const { parameter } = normalizer;
    return normalizer.compute(scores, parameter ? { [parameter.name]: state.parameters[parameter.name] } : {});
  }

  // --- scores ------------------------------------------------------------------------------------

  function slider(label, attributes, value, write, act) {
    const input = element("input", { type: "range", "aria-label": label, ...attributes });
    input.value = value;
    const shown = element("output", {}, write(value));
    input.addEventListener("input", () => {
      const chosen = act(Number(input.value));
      shown.textContent = write(chosen);
      show();
    });
    return element("label", { class: "pg-slider" }, element("span", {}, label), input, shown);
  }

  function layOutScores() {
    find(".pg-scores").replaceChildren(
      ...state.scores.map((score, index) =>
        slider(
          `v${"₁₂₃₄₅₆₇₈"[index]}`,
          { min: -MOST, max: MOST, step: "any" },
          score,
          (value) => String(value).replace("-", "−"),
          (value) => {
            const rounded = Math.round(value / STEP) * STEP;
            state.scores = state.scores.with(index, rounded);
            return rounded;
          },
        ),
      ),
    );
    find(".pg-fewer").disabled = state.scores.length <= 2;
    find(".pg-more").disabled = state.scores.length >= 8;
  }

  function choose(scores) {
    state.scores = scores;
    layOutScores();
    show();
  }

  // --- panels ------------------------------------------------------------------------------------

  function panel(normalizer) {
    const { name, title, formula, parameter } = normalizer;
    const made = element(
      "section",
      { class: "pg-panel", "data-name": name },
      element("h3", {}, title),
      element("p", { class: "pg-formula" }, formula),
      element("div", { class: "pg-bars" }),
      element("p", { class: "pg-kept" }),
    );
    made.style.setProperty("--colour", normalizer.colour);
    if (parameter) {
      const { label, value, ...range } = parameter;
      const act = (chosen) => (state.parameters[parameter.name] = chosen);
      made.append(slider(label, { ...range, "data-parameter": parameter.name }, value, String, act));
    }
    return made;
  }

  function fill(normalizer) {
    const p = probabilities(normalizer);
    const made = find(`.pg-panel[data-name="${normalizer.name}"]`);
    made.querySelector(".pg-bars").replaceChildren(
      ...p.map((value, index) => {
        const bar = element("span", { class: "pg-bar" });
        bar.style.width = `${100 * value}%`;
        return element(
          "div",
          { class: value === 0 ? "pg-row pg-zero" : "pg-row", "data-p": value },
          element("span", {}, `p${"₁₂₃₄₅₆₇₈"[index]}`),
          element("span", { class: "pg-track" }, ...(value === 0 ? [] : [bar])),
          element("span", { class: "pg-value" }, written(value)),
        );
      }),
    );
    const kept = p.filter((value) => value !== 0).length;
    made.querySelector(".pg-kept").textContent = `${kept} of ${p.length} kept`;
  }

  // --- the simplex -------------------------------------------------------------------------------

  const SIZE = 100;
  const planar = ([first, second, third]) => [
    (SIZE * (third - second) * Math.sqrt(3)) / 2,
    -SIZE * (first - (second + third) / 2),
  ];
  const point = (p) => planar(p).map((value) => value.toFixed(2)).join(",");

  function drawSimplex() {
    const area = find(".pg-simplex");
    area.hidden = state.scores.length !== 3;
    if (area.hidden) return;
    const corners = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    const drawing = element("svg", { viewBox: "-118 -124 236 196", role: "img" });
    drawing.append(element("title", {}, "The probabilities of every normalizer on the simplex"));
    drawing.append(element("polygon", { class: "pg-outline", points: corners.map(point).join(" ") }));
    const anchors = [["middle", -8], ["start", 16], ["end", 16]];
    corners.forEach((corner, index) => {
      const [x, y] = planar(corner);
      const [anchor, below] = anchors[index];
      drawing.append(element("text", { x, y: y + below, "text-anchor": anchor }, `p${"₁₂₃"[index]} = 1`));
    });
    for (const normalizer of NORMALIZERS) {
      // Its way as the scores grow from 0 (the centre) to four times their size.
      const way = [...Array(81).keys()].map((turn) =>
        point(probabilities(normalizer, state.scores.map((score) => (score * turn) / 20))),
      );
      drawing.append(element("polyline", { points: way.join(" "), stroke: normalizer.colour }));
    }
    NORMALIZERS.forEach((normalizer, index) => {
      const [cx, cy] = planar(probabilities(normalizer));
      const r = 7 - 0.8 * index; // of several in one place, each shows as a ring
      const mark = element("circle", { cx, cy, r, fill: normalizer.colour, "data-name": normalizer.name });
      mark.append(element("title", {}, normalizer.title));
      drawing.append(mark);
    });
    area.querySelector("svg")?.remove();
    area.prepend(drawing);
  }

  // --- address -----------------------------------------------------------------------------------

  function readAddress() {
    const address = new URLSearchParams(location.hash.slice(1));
    const scores = (address.get("v") ?? "").split(",").map(Number);
    if (scores.length >= 2 && scores.length <= 8 && scores.every((v) => Math.abs(v) <= MOST)) state.scores = scores;
    for (const { parameter } of NORMALIZERS) {
      if (!parameter || !address.has(parameter.name)) continue;
      const value = Number(address.get(parameter.name));
      if (value >= parameter.min && value <= parameter.max) {
        state.parameters[parameter.name] = value;
        const input = find(`[data-parameter="${parameter.name}"]`);
        input.value = value;
        input.nextElementSibling.textContent = value;
      }
    }
    layOutScores();
    show();
  }

  function show() {
    NORMALIZERS.forEach(fill);
    drawSimplex();
    const address = new URLSearchParams({ v: state.scores.join(","), ...state.parameters });
    history.replaceState(null, "", `#${address}`.replaceAll("%2C", ","));
    root.dataset.shown = state.scores.join(",");
  }

  find(".pg-panels").append(...NORMALIZERS.map(panel));
  find(".pg-presets").append(
    ...Object.entries(PRESETS).map(([title, scores]) => {
      const button = element("button", { type: "button" }, title);
      button.addEventListener("click", () => choose(scores));
      return button;
    }),
  );
  find(".pg-fewer").addEventListener("click", () => choose(state.scores.slice(0, -1)));
  find(".pg-more").addEventListener("click", () => choose([...state.scores, 0]));
  window.addEventListener("hashchange", readAddress);
  readAddress();
})();
