// Lines from every query to what it attends to, and the chosen query's weights beside the keys.

const STEP = 24;

class Lines {
  constructor({ look, leave, keep }) {
    this.rows = make("div", { className: "queries" });
    this.rows.setAttribute("role", "group");
    this.rows.setAttribute("aria-label", "Queries");
    this.canvas = make("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.keys = make("div", { className: "answers" });
    this.element = make("div", { className: "lines" }, [this.rows, this.canvas, this.keys]);
    const row = (event) => event.target.closest("button")?.dataset.row;
    this.rows.addEventListener("pointerover", (event) => row(event) && look(Number(row(event)), null));
    this.rows.addEventListener("pointerleave", leave);
    this.rows.addEventListener("click", (event) => row(event) && keep(Number(row(event))));
    this.rows.addEventListener("focusin", (event) => row(event) && keep(Number(row(event))));
    this.rows.addEventListener("keydown", (event) => {
      const last = this.shown.rows.length - 1, now = Number(row(event));
      const to = { ArrowUp: now - 1, ArrowDown: now + 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      keep(clamp(to, 0, last));
      this.rows.children[this.row]?.focus();
    });
  }

  draw(shown, largest) {
    this.shown = shown;
    this.largest = largest;
    this.rows.replaceChildren(...shown.rows.map((name, row) => (
      make("button", { type: "button", textContent: name, title: name, dir: "auto", tabIndex: -1, dataset: { row } })
    )));
    this.keys.replaceChildren(...shown.keys.map((name) => {
      const bar = make("span", { className: "bar" }, [make("i")]);
      return make("div", { className: "key" }, [
        make("span", { className: "name", textContent: name, title: name, dir: "auto" }), bar, make("output"),
      ]);
    }));
  }

  mark(row) {
    this.row = row;
    [...this.rows.children].forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === row));
      button.tabIndex = i === row ? 0 : -1;
    });
    const keys = this.shown.keys.length;
    [...this.keys.children].forEach((line, key) => {
      const i = row * keys + key, attended = Boolean(this.shown.support[i]);
      const [, bar, output] = line.children;
      line.className = "key" + (attended ? "" : this.shown.available[i] ? " zero" : " unseen");
      bar.firstChild.style.width = `${(100 * this.shown.weights[i]) / this.largest}%`;
      bar.firstChild.hidden = !attended;
      output.textContent = this.shown.available[i] ? weightText(this.shown.weights[i], attended) : "";
    });
    this.paint();
  }

  paint() {
    const rows = this.shown.rows.length, keys = this.shown.keys.length;
    const height = Math.max(rows, keys) * STEP;
    this.canvas.style.width = "";
    const width = this.canvas.clientWidth;
    if (!width) return;
    const context = surface(this.canvas, width, height);
    this.canvas.style.width = "";
    const { ramp, thread } = palette();
    const stroke = (row, strong) => {
      for (let key = 0; key < keys; key += 1) {
        const i = row * keys + key;
        if (!this.shown.support[i]) continue;
        const share = this.shown.weights[i] / this.largest;
        context.globalAlpha = strong ? 1 : 0.08 + 0.24 * share;
        context.strokeStyle = strong ? `rgb(${tint(ramp, 0.4 + 0.6 * share)})` : thread;
        context.lineWidth = strong ? 1 + 4 * share : 0.6 + 1.6 * share;
        const from = (row + 0.5) * STEP, to = (key + 0.5) * STEP;
        context.beginPath();
        context.moveTo(2, from);
        context.bezierCurveTo(width * 0.45, from, width * 0.55, to, width - 2, to);
        context.stroke();
      }
    };
    context.lineCap = "round";
    for (let row = 0; row < rows; row += 1) if (row !== this.row) stroke(row, false);
    stroke(this.row, true);
    context.globalAlpha = 1;
  }
}
