// Find a sentence by its words or its number.

const SHOWN = 60;

function finder(sentences, go) {
  const input = $("find"), list = $("found");
  const folded = sentences.map(({ text, line }) => `${line} ${text}`.toLocaleLowerCase());
  let active = -1;

  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); active = -1; };

  const activate = (index) => {
    active = index;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
    const item = list.children[active];
    if (!item) return;
    input.setAttribute("aria-activedescendant", item.id);
    item.scrollIntoView({ block: "nearest" });
  };

  const search = () => {
    const words = input.value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { close(); return; }
    const hits = [];
    for (let i = 0; i < folded.length && hits.length < SHOWN; i += 1) {
      if (words.every((word) => folded[i].includes(word))) hits.push(i);
    }
    list.replaceChildren(...hits.map((index) => {
      const number = make("b", { textContent: String(sentences[index].line) });
      const item = make("li", { id: `found-${index}`, dir: "auto", dataset: { index } }, [number, sentences[index].text]);
      item.setAttribute("role", "option");
      return item;
    }));
    if (!hits.length) list.append(make("li", { className: "quiet", textContent: "No sentence matches." }));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    activate(hits.length ? 0 : -1);
  };

  const take = (item) => {
    if (!item?.dataset.index) return;
    go(Number(item.dataset.index));
    input.value = "";
    close();
    input.blur();
  };

  input.addEventListener("input", search);
  input.addEventListener("keydown", (event) => {
    const count = list.querySelectorAll("[data-index]").length;
    if (event.key === "Escape") { input.value = ""; close(); input.blur(); }
    else if (event.key === "Enter") take(list.children[active]);
    else if (event.key === "ArrowDown" && count) activate((active + 1) % count);
    else if (event.key === "ArrowUp" && count) activate((active - 1 + count) % count);
    else return;
    event.preventDefault();
  });
  list.addEventListener("pointerdown", (event) => { event.preventDefault(); take(event.target.closest("li")); });
  input.addEventListener("blur", close);
}
