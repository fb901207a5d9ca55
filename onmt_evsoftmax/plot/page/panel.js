// One trace: its numbers, matrix, lines, and a small picture of every head.

// From this width on (page.css has the same) the lines stand beside the matrix.
const SIDE_BY_SIDE = 930;
const LINES_WIDTH = 420;

class Panel {
  constructor(trace, actions) {
    this.trace = trace;
    this.actions = actions;
    this.matrix = new Matrix(actions);
    this.lines = new Lines(actions);
    this.target = make("p", { className: "target", dir: "auto" });
    this.numbers = make("dl", { className: "numbers" });
    this.reading = make("p", { className: "reading" });
    this.empty = make("p", { className: "message", textContent: "This line is empty.", hidden: true });
    this.map = make("canvas");
    this.map.setAttribute("aria-hidden", "true");
    this.map.addEventListener("click", (event) => this.pick(event));
    this.mapTitle = make("p", { className: "quiet" });
    this.views = make("div", { className: "views" }, [
      make("div", { className: "cellwise" }, [this.matrix.element, this.reading]),
      this.lines.element,
      make("div", { className: "overview" }, [this.mapTitle, this.map]),
    ]);
    const facts = make("span", { className: "quiet", textContent: trace.model, title: trace.hash });
    this.title = make("h2", { textContent: trace.name });
    this.title.style.setProperty("--series", trace.colour);
    this.element = make("section", { className: "panel" }, [
      make("header", {}, [this.title, facts]),
      this.target, this.numbers, this.empty, this.views,
    ]);
    this.element.setAttribute("aria-label", trace.name);
  }

  /** The view this state asks for, or null for an empty line. */
  look(facts, state) {
    this.facts = facts;
    this.state = state;
    const shape = facts.attention[state.head === ROLLOUT ? `${state.kind} rollout` : state.kind];
    const has = shape && shape[2] > 0 && shape[3] > 0;
    this.shown = has ? view(facts, state.kind, Math.min(state.layer, shape[0] - 1), state.head, state.units) : null;
    return this.shown;
  }

  draw(largest) {
    const { shown, state, facts } = this;
    this.target.textContent = facts.target.texts.join(" ");
    const about = this.trace.kinds[state.kind];
    this.empty.hidden = Boolean(shown);
    this.empty.textContent = about ? "This line is empty." : "This trace has no such attention.";
    this.views.hidden = this.numbers.hidden = !shown;
    if (!shown) return;
    const head = { [MEAN]: "mean of heads", [ROLLOUT]: "rollout" }[state.head] ?? `head ${state.head + 1}`;
    const label = `${this.trace.name}, ${state.kind} attention, layer ${state.layer + 1}, ${head}: `
      + `${shown.rows.length} rows, ${shown.keys.length} keys`;
    const room = this.element.clientWidth - (this.element.clientWidth >= SIDE_BY_SIDE ? LINES_WIDTH : 0);
    this.matrix.draw(shown, largest, this.gold(), label, room);
    this.lines.draw(shown, largest);
    const average = numbers(shown);
    const facing = [
      [`${average.attended.toFixed(1)} of ${average.available.toFixed(1)}`, "attended per row"],
      [`${Math.round(100 * average.density)} %`, "density"],
      [average.entropy.toFixed(2), "nats of entropy"],
    ];
    const alpha = about.alphas?.[state.layer]?.[state.head];
    if (alpha !== undefined) facing.push([alpha.toFixed(3), "learned alpha"]);
    this.numbers.replaceChildren(...facing.map(([value, name]) => (
      make("div", {}, [make("dt", { textContent: name }), make("dd", { textContent: value })])
    )));
    this.drawMap();
  }

  /** Gold alignment of the shown cells: 2 sure, 1 possible, 0 none; only context attention has it. */
  gold() {
    if (!this.facts.gold || this.state.kind !== "context") return null;
    const { rowWords, keyWords } = this.shown;
    const marks = new Map(this.facts.gold.map(([s, t, sure]) => [`${s} ${t}`, sure ? 2 : 1]));
    return rowWords.flatMap((t) => keyWords.map((s) => marks.get(`${s} ${t}`) || 0));
  }

  mark(row, key) {
    if (!this.shown) return "";
    const at = Math.min(row, this.shown.rows.length - 1);
    const keys = this.shown.keys.length;
    const column = key !== null && key < keys ? key : null;
    this.matrix.mark(at, column);
    this.lines.mark(at);
    const { attended, available, entropy } = rowNumbers(this.shown, at);
    // Names may run from right to left; isolated, they do not turn the numbers around.
    const name = make("bdi", { textContent: this.shown.rows[at] });
    if (column === null) {
      this.reading.replaceChildren(name, `: ${attended} of ${available} attended, entropy ${entropy.toFixed(2)}`);
    } else {
      const i = at * keys + column;
      const weight = this.shown.available[i]
        ? weightText(this.shown.weights[i], this.shown.support[i]) : "cannot look there";
      const other = make("bdi", { textContent: this.shown.keys[column] });
      this.reading.replaceChildren(name, " → ", other, `: ${weight}`);
    }
    return this.reading.textContent;
  }

  drawMap() {
    const [layers, heads, rows, keys] = this.facts.attention[this.state.kind];
    const gap = 5;
    const side = clamp(Math.floor((this.element.clientWidth - 36) / heads) - gap, 14, 52);
    this.tile = side + gap;
    const context = surface(this.map, heads * this.tile, layers * this.tile);
    const { ramp, frame, accent } = palette();
    const codes = this.facts.codes[this.state.kind];
    const picture = new OffscreenCanvas(keys, rows);
    const brush = picture.getContext("2d");
    const image = brush.createImageData(keys, rows);
    // One 32-bit write per pixel (alpha, blue, green, red); an exact zero stays transparent.
    const pixels = new Uint32Array(image.data.buffer);
    const colours = Uint32Array.from(WEIGHT, (weight, code) => {
      const [red, green, blue] = tint(ramp, weight);
      return code ? ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0 : 0;
    });
    context.imageSmoothingEnabled = rows > side;
    for (let layer = 0; layer < layers; layer += 1) {
      for (let head = 0; head < heads; head += 1) {
        const start = (layer * heads + head) * rows * keys;
        for (let i = 0; i < rows * keys; i += 1) pixels[i] = colours[codes[start + i]];
        brush.putImageData(image, 0, 0);
        const x = head * this.tile + 2, y = layer * this.tile + 2;
        context.drawImage(picture, x, y, side, side);
        const chosen = layer === this.state.layer && (this.state.head < 0 || head === this.state.head);
        context.strokeStyle = chosen ? accent : frame;
        context.lineWidth = chosen ? 2 : 1;
        context.strokeRect(x - 0.5, y - 0.5, side + 1, side + 1);
      }
    }
    this.mapTitle.textContent = "All heads: layers down, heads across";
  }

  pick(event) {
    const [layers, heads] = this.facts.attention[this.state.kind];
    const box = this.map.getBoundingClientRect();
    const scale = (heads * this.tile) / box.width;
    const head = Math.floor(((event.clientX - box.left) * scale) / this.tile);
    const layer = Math.floor(((event.clientY - box.top) * scale) / this.tile);
    if (layer >= 0 && layer < layers && head >= 0 && head < heads) this.actions.choose({ layer, head });
  }
}
