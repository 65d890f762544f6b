"use strict";
// Sorting of tables, finding of utterances, audio in its place. The page is complete without it.

function valueOf(row, column) {
  const text = row.cells[column].textContent.replace(/(\d),(?=\d)/g, "$1");
  const clock = text.match(/^(\d+):(\d\d):(\d\d)$/);
  if (clock) return 3600 * clock[1] + 60 * clock[2] + +clock[3];
  return parseFloat(text);
}

function sortTable(table, column, header) {
  const ascending = header.getAttribute("aria-sort") === "descending";
  const numeric = column >= +table.dataset.left;
  const rows = [...table.tBodies[0].rows];
  const order = (a, b) => {
    if (!numeric) {
      return a.cells[column].textContent.localeCompare(b.cells[column].textContent, undefined, {numeric: true});
    }
    const x = valueOf(a, column), y = valueOf(b, column);
    return (isNaN(x) ? -Infinity : x) - (isNaN(y) ? -Infinity : y);
  };
  rows.sort((a, b) => ascending ? order(a, b) : order(b, a));
  table.tBodies[0].append(...rows);
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    if (column >= +table.dataset.left) header.classList.add("n");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener("click", () => sortTable(table, column, header));
  });
}

document.documentElement.classList.add("scripted");
const form = document.getElementById("find");
const list = document.getElementById("list");
const systems = JSON.parse(form.dataset.systems), sets = JSON.parse(form.dataset.sets);
const utterances = [...list.children].map((item, place) => ({
  item, place,
  errors: item.dataset.e.split(",").map(Number),
  words: +item.dataset.w,
  set: item.dataset.set,
  text: null,
}));
for (const utterance of utterances) {
  utterance.total = utterance.errors.reduce((a, b) => a + b, 0);
}

function field(name, label, control) {
  const wrapper = document.createElement("label");
  wrapper.append(label, control);
  control.name = name;
  form.append(wrapper);
  return wrapper;
}

function choice(name, label, options) {
  const select = document.createElement("select");
  for (const [value, text] of options) select.add(new Option(text, value));
  field(name, label, select);
}

const search = document.createElement("input");
search.type = "search";
field("words", "Words, id or speaker", search).classList.add("grow");
if (sets.length > 1) choice("set", "Test set", [["", "all"], ...sets.map(s => [s, s])]);
const shown = [["", "all"], ["any", "with errors"], ["none", "without errors"]];
systems.forEach((a, i) => systems.forEach((b, j) => {
  if (i !== j) shown.push([`${i},${j}`, `${a} right, ${b} wrong`]);
}));
choice("show", "Show", shown);
const orders = [["total", "most errors"], ["rate", "highest error rate"], ["id", "id"], ["words", "longest"]];
systems.forEach((a, i) => orders.push([`e${i}`, `errors of ${a}`]));
systems.forEach((a, i) => systems.forEach((b, j) => {
  if (i !== j) orders.push([`d${i},${j}`, `${a} worse than ${b}`]);
}));
choice("order", "Order by", orders);
const count = document.createElement("output");
form.append(count);
form.hidden = false;

function keyOf(order) {
  if (order === "total") return u => u.total;
  if (order === "rate") return u => u.total / Math.max(1, u.words);
  if (order === "words") return u => u.words;
  if (order[0] === "e") return u => u.errors[order.slice(1)];
  const [i, j] = order.slice(1).split(",");
  return u => u.errors[i] - u.errors[j];
}

function fits(utterance, words, set, show) {
  if (set && utterance.set !== set) return false;
  if (show === "any" && !utterance.total) return false;
  if (show === "none" && utterance.total) return false;
  if (show.includes(",")) {
    const [right, wrong] = show.split(",");
    if (utterance.errors[right] || !utterance.errors[wrong]) return false;
  }
  if (!words.length) return true;
  utterance.text ??= utterance.item.textContent.toLowerCase();
  return words.every(word => utterance.text.includes(word));
}

function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const set = form.elements.set ? form.elements.set.value : "";
  let number = 0;
  for (const utterance of utterances) {
    const fit = fits(utterance, words, set, form.elements.show.value);
    utterance.item.hidden = !fit;
    number += fit;
  }
  count.value = `${number} of ${utterances.length}`;
}

function sort() {
  const order = form.elements.order.value;
  const sorted = [...utterances];
  if (order === "id") {
    const id = u => u.item.querySelector("code").textContent;
    sorted.sort((a, b) => id(a) < id(b) ? -1 : id(a) > id(b) ? 1 : 0);
  } else {
    const key = keyOf(order);
    sorted.sort((a, b) => key(b) - key(a) || a.place - b.place);
  }
  list.append(...sorted.map(u => u.item));
}

form.addEventListener("submit", event => event.preventDefault());
form.addEventListener("input", event => event.target.name === "order" ? sort() : find());
find();

list.addEventListener("toggle", event => {
  const link = event.target.querySelector("a.audio");
  if (!event.target.open || !link) return;
  const player = document.createElement("audio");
  player.controls = true;
  player.preload = "metadata";
  player.src = link.getAttribute("href");
  player.addEventListener("error", () => player.replaceWith(link));
  link.replaceWith(player);
}, true);
