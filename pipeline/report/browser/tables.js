"use strict";
// Tables: headline figures, cells, what went wrong, savings and files of the calls that pass.

const MOST_ROWS = 200;
const MOST_TROUBLES = 40;

class Tables {
  constructor(contents, show) {
    this.contents = contents;
    this.show = show;
    this.all = { cells: false, files: false };
    document.getElementById("more").addEventListener("click", () => this.showAll("cells"));
    document.getElementById("more-files").addEventListener("click", () => this.showAll("files"));
  }

  showAll(name) {
    this.all[name] = true;
    this.draw(this.selection, this.filters);
  }

  draw(selection, filters) {
    this.selection = selection;
    this.filters = filters;
    this.drawFigures(selection);
    this.drawCells(selection, filters);
    this.drawTroubles(selection);
    this.drawSavings(selection, filters);
    this.drawFiles(selection);
  }

  drawFigures({ cells, calls, observed }) {
    const { cells: columns, calls: seen } = this.contents;
    const outcomes = columns.outcome.filter((_, cell) => cells[cell]);
    const errors = observed.map((place) => seen.error[place]).filter((error) => error !== null);
    const worst = errors.reduce((one, other) => (Math.abs(other) > Math.abs(one) ? other : one), 0);
    const within = observed.filter((place) => seen.observed[place] <= seen.bound[place]).length;
    const exact = observed.filter((place) => seen.growth_predicted[place] === seen.growth_observed[place]).length;
    const count = (...names) => outcomes.filter((outcome) => names.includes(outcome)).length;
    const figures = [
      ["cells", outcomes.length],
      ["failed", count("failed", "incomplete")],
      ["refused", count("refused")],
      ["calls observed", observed.length],
      ["largest error", errors.length ? shownPercent(worst) : "none"],
      ["within the bound", `${within} of ${observed.length}`],
      ["growth exact", `${exact} of ${observed.length}`],
    ];
    document.getElementById("figures").replaceChildren(
      ...figures.map(([name, value]) => element("div", {}, element("b", {}, String(value)), name)),
    );
    document.getElementById("shown").textContent =
      `${calls.length} of ${seen.cell.length} recorded calls shown (one call is one rank's)`;
  }

  drawCells({ cells }, filters) {
    const { groups, cells: columns, calls } = this.contents;
    const rows = [];
    const planned = new Set(groups.cell);
    groups.cell.forEach((cell, group) => {
      if (cells[cell] && filters.holds("temperature", groups.temperature[group])) rows.push(this.groupRow(group));
    });
    columns.key.forEach((_, cell) => {
      if (cells[cell] && !planned.has(cell)) rows.push(this.emptyRow(cell));
    });
    this.fill("cells", rows, "more");
  }

  groupRow(group) {
    const { groups, cells, calls } = this.contents;
    const place = groups.fullest[group];
    const size = (name) => shownSize(this.contents, calls[name][place]);
    const split = calls.children[place] > 1 ? ` in ${calls.children[place]}` : "";
    const observed = groups.observed[group];
    const failed = observed && groups.failed[group] ? `, ${groups.failed[group]} failed` : "";
    const values = [
      groups.temperature[group] + split + failed,
      size("expected"),
      size("bound"),
      size("observed") || calls.outcome[place],
      shownPercent(calls.error[place]),
      shownPercent(groups.worst[group]),
      observed ? `${groups.covered[group]}/${observed}` : "",
      ...["growth_predicted", "growth_observed", "held_predicted", "held_observed", "garbage"].map(size),
    ];
    const button = element("button", { type: "button", click: () => this.show(place) }, cells.label[groups.cell[group]]);
    return element(
      "tr",
      { "data-call": place, class: groups.covered[group] < observed ? "bad" : "" },
      element("td", {}, button),
      ...values.map((value) => element("td", {}, value)),
    );
  }

  emptyRow(cell) {
    const { cells } = this.contents;
    return element("tr", {}, element("td", {}, cells.label[cell]), element("td", { colspan: 12 }, cells.outcome[cell]));
  }

  fill(name, rows, more) {
    const shown = this.all[name] ? rows : rows.slice(0, MOST_ROWS);
    document.querySelector(`#${name} tbody`).replaceChildren(...shown);
    const button = document.getElementById(more);
    button.hidden = shown.length === rows.length;
    button.textContent = `show all ${rows.length} rows`;
  }

  drawTroubles({ cells }) {
    const { cells: columns } = this.contents;
    const troubled = [...columns.outcome.keys()].filter((cell) => cells[cell] && columns.outcome[cell] !== "ok");
    const lines = troubled.slice(0, MOST_TROUBLES).map((cell) => {
      const outcome = columns.outcome[cell];
      const words = ` ${columns.label[cell]}: ${columns.error[cell] || "no reason was recorded"} `;
      return element("li", { class: outcome }, element("b", {}, outcome), words, ...this.logs(cell));
    });
    const more = troubled.length - lines.length;
    if (more) lines.push(element("li", {}, `and ${more} more: choose an outcome above, or see the files below`));
    document.getElementById("troubles").replaceChildren(...lines);
  }

  logs(cell) {
    return Object.entries(this.contents.cells.logs[cell]).flatMap(([rank, path]) => [
      element("a", { href: path.split("/").map(encodeURIComponent).join("/") }, `log of rank ${rank}`),
      " ",
    ]);
  }

  drawSavings({ cells }, filters) {
    const rows = [];
    for (const { cell, temperature, expected, observed } of this.contents.savings) {
      if (!cells[cell] || !filters.holds("temperature", temperature)) continue;
      const figures = [expected, observed].flatMap(([kept, released]) => [
        kept,
        released,
        kept === null || released === null ? null : kept - released,
      ]);
      const values = [this.contents.cells.label[cell], temperature, ...figures.map((size) => shownSize(this.contents, size))];
      rows.push(element("tr", {}, ...values.map((value) => element("td", {}, value))));
    }
    document.getElementById("section-savings").hidden = rows.length === 0;
    document.querySelector("#savings tbody").replaceChildren(...rows);
  }

  drawFiles({ cells }) {
    const { cells: columns } = this.contents;
    const rows = [];
    columns.key.forEach((key, cell) => {
      if (!cells[cell]) return;
      const spec = columns.spec[cell] ? element("a", { href: `specs/${key}.json` }, key) : key;
      const parts = [columns.label[cell], columns.outcome[cell], String(columns.attempts[cell]), spec];
      rows.push(element("tr", {}, ...parts.map((part) => element("td", {}, part)), element("td", {}, ...this.logs(cell))));
    });
    this.fill("files", rows, "more-files");
  }

  mark(place) {
    for (const row of document.querySelectorAll("#cells tbody tr")) {
      row.classList.toggle("chosen", row.dataset.call === String(place));
    }
  }
}
