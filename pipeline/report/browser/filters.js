"use strict";
// Filters: a click chooses a value, a second one lets go of it; nothing chosen means all.

const FILTERS = ["topology", "weights", "temperature", "outcome", "model"];

class Filters {
  constructor(contents, changed) {
    this.contents = contents;
    this.changed = changed;
    this.chosen = Object.fromEntries(FILTERS.map((name) => [name, new Set()]));
  }

  valuesOf(name) {
    const { cells, calls } = this.contents;
    return [...new Set(name === "temperature" ? calls.temperature : cells[name])];
  }

  draw(place) {
    for (const name of FILTERS) {
      const values = this.valuesOf(name);
      if (values.length < 2) continue;
      const buttons = values.map((value) =>
        element("button", {
          type: "button",
          "data-filter": name,
          "data-value": value,
          "aria-pressed": "false",
          click: (event) => this.toggle(name, value, event.currentTarget),
        }, value),
      );
      place.append(element("fieldset", {}, element("legend", {}, name), ...buttons));
    }
  }

  toggle(name, value, button) {
    const chosen = this.chosen[name];
    if (!chosen.delete(value)) chosen.add(value);
    button.setAttribute("aria-pressed", String(chosen.has(value)));
    this.changed();
  }

  holds(name, value) {
    return this.chosen[name].size === 0 || this.chosen[name].has(value);
  }

  holdsCell(cell) {
    const { cells } = this.contents;
    return FILTERS.every((name) => name === "temperature" || this.holds(name, cells[name][cell]));
  }

  // Places of the calls, and numbers of the cells, that pass.
  selection() {
    const { cells, calls } = this.contents;
    const kept = cells.key.map((_, cell) => this.holdsCell(cell));
    const places = [];
    calls.cell.forEach((cell, place) => {
      if (kept[cell] && this.holds("temperature", calls.temperature[place])) places.push(place);
    });
    const observed = places.filter((place) => calls.observed[place] !== null && calls.expected[place] !== null);
    return { cells: kept, calls: places, observed };
  }
}
