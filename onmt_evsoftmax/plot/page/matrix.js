// The matrix of one panel: a canvas of cells with names around it.

function make(tag, options = {}, children = []) {
  const { dataset, ...properties } = options;
  const element = Object.assign(document.createElement(tag), properties);
  Object.assign(element.dataset, dataset);
  element.append(...children);
  return element;
}

// Names of 12 pixels stand beside cells of this size without touching.
const SMALLEST_CELL = 14;

/** Colours of the current theme, read once per drawing. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    ramp: [0, 1, 2, 3, 4].map((i) => read(`--ramp-${i}`)).map(channels),
    frame: read("--frame"), gold: read("--gold"), accent: read("--accent"), thread: read("--thread"),
  };
}

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/** The colour of a share 0–1 of the scale. */
function tint(ramp, share) {
  const at = clamp(share, 0, 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(at), ramp.length - 2);
  return ramp[low].map((value, i) => Math.round(value + (ramp[low + 1][i] - value) * (at - low)));
}

/** A canvas context for a size in CSS pixels, sharp on any screen. */
function surface(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

class Matrix {
  /** `look(row, key)` is called when the pointer is over a cell, `keep(row)` on a click. */
  constructor({ look, leave, keep }) {
    this.keys = make("div", { className: "keys" });
    this.rows = make("div", { className: "rows" });
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.band = make("div", { className: "band", hidden: true });
    this.column = make("div", { className: "band", hidden: true });
    const cells = make("div", { className: "cells" }, [this.canvas, this.band, this.column]);
    const frame = make("div", { className: "frame" }, [this.keys, this.rows, cells]);
    this.element = make("div", { className: "matrix" }, [frame]);
    this.canvas.addEventListener("pointermove", (event) => look(...this.at(event)));
    this.canvas.addEventListener("pointerleave", leave);
    this.canvas.addEventListener("click", (event) => keep(this.at(event)[0]));
    this.rows.addEventListener("pointerover", (event) => {
      if (event.target.dataset.row) look(Number(event.target.dataset.row), null);
    });
    this.rows.addEventListener("pointerleave", leave);
    this.rows.addEventListener("click", (event) => {
      if (event.target.dataset.row) keep(Number(event.target.dataset.row));
    });
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const cell = (offset, count) => clamp(Math.floor(offset / this.cell), 0, count - 1);
    return [
      cell(event.clientY - box.top, this.shown.rows.length),
      cell(event.clientX - box.left, this.shown.keys.length),
    ];
  }

  /** Draw a view; `largest` is the weight with the darkest colour, `gold` 0/1/2 per cell. */
  draw(shown, largest, gold, label, width) {
    this.shown = shown;
    const rows = shown.rows.length, keys = shown.keys.length;
    this.cell = clamp(Math.floor((width - 130) / Math.max(keys, 1)), SMALLEST_CELL, 30);
    this.element.style.setProperty("--name", this.cell < 18 ? "12px" : "13px");
    this.keys.replaceChildren(...shown.keys.map((name) => {
      const span = make("span", { textContent: name, title: name, dir: "auto" });
      span.style.width = `${this.cell}px`;
      return span;
    }));
    this.rows.replaceChildren(...shown.rows.map((name, row) => {
      const span = make("span", { textContent: name, title: name, dir: "auto", dataset: { row } });
      span.style.height = span.style.lineHeight = `${this.cell}px`;
      return span;
    }));
    const context = surface(this.canvas, keys * this.cell, rows * this.cell);
    const colours = palette();
    const side = this.cell - 2;
    for (let row = 0; row < rows; row += 1) {
      for (let key = 0; key < keys; key += 1) {
        const i = row * keys + key, x = key * this.cell + 1, y = row * this.cell + 1;
        if (shown.support[i]) {
          context.fillStyle = `rgb(${tint(colours.ramp, shown.weights[i] / largest)})`;
          context.fillRect(x, y, side, side);
        } else if (shown.available[i]) {
          context.strokeStyle = colours.frame;
          context.lineWidth = 1;
          context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
        }
        if (gold && gold[i]) {
          context.strokeStyle = colours.gold;
          context.lineWidth = 2;
          context.setLineDash(gold[i] === 2 ? [] : [3, 2]);
          context.strokeRect(x + 1, y + 1, side - 2, side - 2);
          context.setLineDash([]);
        }
      }
    }
    this.canvas.setAttribute("aria-label", label);
  }

  /** Frame a row, and a key's column if there is one. */
  mark(row, key) {
    const box = (element, top, left, height, width) => {
      element.hidden = false;
      Object.assign(element.style, {
        top: `${top}px`, left: `${left}px`, height: `${height}px`, width: `${width}px`,
      });
    };
    const { cell } = this;
    box(this.band, row * cell, 0, cell, this.shown.keys.length * cell);
    if (key === null) this.column.hidden = true;
    else box(this.column, 0, key * cell, this.shown.rows.length * cell, cell);
    [...this.rows.children].forEach((span, i) => span.classList.toggle("chosen", i === row));
    [...this.keys.children].forEach((span, i) => span.classList.toggle("chosen", i === key));
  }
}
