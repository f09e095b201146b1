// SPDX-License-Identifier: Apache-2.0
"use strict";

const table = document.getElementById("table");
const cases = [...table.tBodies].filter((body) => body.classList.contains("case"));
const filter = document.getElementById("filter");
const status = document.getElementById("status");
const strategy = document.getElementById("strategy");

function showMatches() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const body of cases) {
    const matches = (!status.value || body.dataset.status === status.value) &&
      (!strategy.value || body.dataset.strategy === strategy.value) &&
      words.every((word) => body.dataset.text.includes(word));
    body.hidden = !matches;
    shown += matches ? 1 : 0;
  }
  document.getElementById("shown").textContent = `${shown} of ${cases.length} cases`;
}

function compare(a, b) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const x = Number(a), y = Number(b);
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
}

function sortBy(column, head) {
  const downward = head.classList.contains("up");
  for (const other of table.tHead.rows[0].cells) other.classList.remove("up", "down");
  head.classList.add(downward ? "down" : "up");
  const key = (body) => body.rows[0].cells[column].dataset.sort;
  const ordered = [...cases].sort((a, b) => {
    const order = compare(key(a), key(b));
    return downward && key(a) !== "" && key(b) !== "" ? -order : order;
  });
  table.append(...ordered);
}

function showCase(id) {
  const body = cases.find((candidate) => candidate.dataset.id === id);
  if (!body) return;
  if (body.hidden) {
    filter.value = status.value = strategy.value = "";
    showMatches();
  }
  for (const other of cases) other.classList.remove("marked");
  body.classList.add("marked", "open");
  body.scrollIntoView({ block: "center", behavior: "smooth" });
}

function idOf(point) {
  if (point.data.type === "heatmap") return point.data.meta.id;
  if (Array.isArray(point.customdata)) return point.customdata[1];
  return Array.isArray(point.data.meta) ? point.data.meta[1] : null;
}

[...table.tHead.rows[0].cells].forEach((head, column) => {
  head.firstElementChild.addEventListener("click", () => sortBy(column, head));
});
for (const body of cases) {
  body.rows[0].addEventListener("click", () => body.classList.toggle("open"));
}
for (const control of [filter, status, strategy]) control.addEventListener("input", showMatches);
showMatches();

/** A row's cells of some columns. */
function picked(row, columns) {
  const copy = row.cloneNode();
  copy.append(...columns.map((column) => row.cells[column].cloneNode(true)));
  return copy;
}

/** The table as paper shows it where it is wider than a page: as it is sorted and filtered, in parts. */
function splitTable() {
  const parts = JSON.parse(table.dataset.parts);
  if (parts.length < 2) return;
  table.closest("section").classList.add("split");
  document.getElementById("parts").replaceChildren(...parts.map((columns) => {
    const part = document.createElement("table");
    part.className = table.className;
    part.createTHead().append(picked(table.tHead.rows[0], columns));
    for (const body of table.tBodies) {
      if (body.hidden) continue;
      const shown = body.cloneNode();
      shown.append(picked(body.rows[0], columns));
      part.append(shown);
    }
    return part;
  }));
}

window.addEventListener("beforeprint", splitTable);

for (const piece of document.querySelectorAll(".piece")) {
  for (const part of piece.querySelectorAll(".window")) {
    part.append(document.getElementById(piece.dataset.of).cloneNode());
    part.firstChild.removeAttribute("id");
    part.firstChild.className = "";
  }
}
for (const link of document.querySelectorAll("a[data-static]")) {
  link.href = document.getElementById(link.dataset.static).src;
}
/** What a card of a map of layers says: the layer's name and its value, of which the map has the logarithm. */
function nameLayers(trace) {
  if (trace.type !== "heatmap" || !trace.meta || !trace.meta.layers) return;
  trace.customdata = trace.z.map((row, i) => row.map((z) => [trace.meta.layers[i], z === null ? null : 10 ** z]));
}

/** Puts the panels as there is room for them. */
function arrange(element, { meta }) {
  const form = element.clientWidth < meta.wide_from ? "narrow" : "wide";
  if (!element.clientWidth || form === element.dataset.form) return;      // paper shows none
  element.dataset.form = form;
  Plotly.relayout(element, meta[form]);
}

for (const [name, plot] of Object.entries(PLOTS)) {
  plot.data.forEach(nameLayers);
  const element = document.getElementById(`plot-${name}`);
  Plotly.newPlot(element, plot.data, plot.layout, CONFIG).then(() => {
    element.on("plotly_click", (event) => showCase(idOf(event.points[0])));
    if (!plot.layout.meta) return;
    const { meta } = plot.layout;
    element.dataset.form = "wide";
    arrange(element, { meta });
    window.addEventListener("resize", () => arrange(element, { meta }));
  });
}
