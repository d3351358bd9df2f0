"use strict";
const WORD = /(\/\/[^\n]*|\/\*[^]*?\*\/)|("(?:\\.|[^"\\\n])*"|^[ \t]*#\w+)|\b(alignas|auto|bool|break|char|const|constexpr|continue|double|else|enum|extern|float|for|forall|if|in|inline|int|int(?:8|16|32|64)_t|int(?:8|16|32|64)|float(?:16|32|64)|let|long|namespace|parallel|return|static|struct|template|typename|uint(?:8|16|32|64)_t|unsigned|unroll|using|vector|vectors|void|while|where)\b|\b(\d[\w.]*)/gm;
const TAGS = [, "i", "u", "b", "u"];
function highlight(into, text) {
  let end = 0;
  for (const found of text.length < 400000 ? text.matchAll(WORD) : []) {
    into.append(text.slice(end, found.index));
    const mark = document.createElement(TAGS[found.findIndex((part, at) => at && part !== undefined)]);
    mark.textContent = found[0];
    into.append(mark);
    end = found.index + found[0].length;
  }
  into.append(text.slice(end));
}
function fill(details) {
  const place = details.querySelector("pre");
  if (!place.firstChild) highlight(place, document.getElementById(details.dataset.text).content.textContent);
}
for (const details of document.querySelectorAll("details[data-text]"))
  details.addEventListener("toggle", () => details.open && fill(details));
function choose() {
  const name = decodeURIComponent(location.hash.slice(1));
  const panel = document.getElementById(name) ?? document.querySelector(".panels article");
  if (!panel?.matches(".panels article")) return;
  for (const line of document.querySelectorAll(".graph li"))
    line.classList.toggle("chosen", line.querySelector("a")?.hash === "#" + panel.id);
  const first = panel.querySelector("details.schedule");
  if (first) { first.open = true; fill(first); }
}
for (const pre of document.querySelectorAll(".panels article > pre")) {
  const text = pre.textContent;
  pre.textContent = "";
  highlight(pre, text);
}
addEventListener("hashchange", choose);
choose();
