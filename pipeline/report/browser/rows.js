"use strict";
// Rows: the calls that pass, as the charts take them. Sizes in the page's unit.

class Rows {
  constructor(contents, { observed }) {
    this.contents = contents;
    this.observed = observed;
  }

  size(name, place) {
    return inUnit(this.contents, this.contents.calls[name][place]);
  }

  fact(name, place) {
    return this.contents.cells[name][this.contents.calls.cell[place]];
  }

  calls() {
    if (this.made) return this.made;
    const { calls } = this.contents;
    this.made = this.observed.map((place) => ({
      place,
      order: place,
      label: this.fact("label", place),
      line: this.fact("line", place),
      topology: this.fact("topology", place),
      weights: this.fact("weights", place),
      temperature: calls.temperature[place],
      rank: calls.rank[place],
      call: calls.call[place],
      expected: this.size("expected", place),
      bound: this.size("bound", place),
      observed: this.size("observed", place),
      error: calls.error[place],
      bound_percent: (100 * (calls.bound[place] - calls.expected[place])) / calls.expected[place],
    }));
    return this.made;
  }

  diagonal() {
    const rows = this.calls().filter(({ expected, observed }) => expected > 0 && observed > 0);
    if (!rows.length) return [];
    let [low, high] = [Infinity, -Infinity];
    for (const { expected, observed } of rows) {
      low = Math.min(low, expected, observed);
      high = Math.max(high, expected, observed);
    }
    return [{ x: low }, { x: high }];
  }

  // Range and median of each inexact term's residual, largest first.
  residuals() {
    const { names, residual } = this.contents.terms;
    const { calls, cells } = this.contents;
    const ranges = [];
    names.forEach((term, number) => {
      for (const temperature of ["cold", "warm"]) {
        const places = this.observed.filter((place) => calls.temperature[place] === temperature);
        if (!places.length) continue;
        const sorted = [...places].sort((one, other) => residual[number][one] - residual[number][other]);
        const at = (place) => inUnit(this.contents, residual[number][place]);
        const [low, high] = [at(sorted[0]), at(sorted.at(-1))];
        const far = Math.abs(low) > Math.abs(high) ? sorted[0] : sorted.at(-1);
        const farthest = `${cells.label[calls.cell[far]]} rank ${calls.rank[far]} call ${calls.call[far]}`;
        const median = at(sorted[Math.floor(sorted.length / 2)]);
        ranges.push({ term, temperature, low, high, median, calls: places.length, farthest });
      }
    });
    const largest = {};
    for (const { term, low, high } of ranges) largest[term] = Math.max(largest[term] ?? 0, -low, high);
    const inexact = ranges.filter(({ term }) => largest[term] > 0);
    return inOrder(inexact.sort((one, other) => largest[other.term] - largest[one.term]));
  }

  lineOf(place) {
    return `${this.fact("line", place)} ${this.contents.calls.temperature[place]}`;
  }

  // The largest of a column for each line, in order.
  fullest(column) {
    const found = new Map();
    for (const place of this.observed) {
      const line = this.lineOf(place);
      found.set(line, Math.max(found.get(line) ?? 0, this.size(column, place)));
    }
    return found;
  }

  sides(what) {
    const [predicted, observed] = [`${what}_predicted`, `${what}_observed`].map((name) => this.fullest(name));
    const rows = [...predicted].flatMap(([line, size]) =>
      size || observed.get(line)
        ? [{ line, side: "predicted", size }, { line, side: "observed", size: observed.get(line) }]
        : [],
    );
    return inOrder(rows);
  }

  garbage() {
    return inOrder([...this.fullest("garbage")].flatMap(([line, size]) => (size ? [{ line, size }] : [])));
  }

  // Kinds of call (cold and warm, or random and pretrained) on one line: the fullest of each.
  pairs(across) {
    const other = across === "temperature" ? "weights" : "temperature";
    const { calls } = this.contents;
    const fact = (name, place) => (name === "temperature" ? calls.temperature[place] : this.fact(name, place));
    const found = new Map();
    for (const place of this.observed) {
      const [kind, line] = [fact(across, place), `${this.fact("topology", place)} ${fact(other, place)}`];
      const key = `${line} ${kind}`;
      const before = found.get(key);
      if (before && before.observed >= this.size("observed", place)) continue;
      const rows = { rows_predicted: calls.rows_predicted[place], rows_observed: calls.rows_observed[place] };
      const sizes = { expected: this.size("expected", place), observed: this.size("observed", place) };
      found.set(key, { place, line, kind, ...sizes, ...rows });
    }
    const kinds = new Set([...found.values()].map((row) => row.kind));
    return kinds.size > 1 ? inOrder([...found.values()]) : [];
  }

  ledger() {
    const sums = new Map();
    for (const place of this.observed) {
      const percent = this.contents.calls.ledger_percent[place];
      if (percent === null) continue;
      const sum = sums.get(this.fact("line", place)) ?? { total: 0, count: 0 };
      sums.set(this.fact("line", place), { total: sum.total + percent, count: sum.count + 1 });
    }
    const rows = [...sums].map(([line, { total, count }]) => ({ line, percent: total / count }));
    return inOrder(rows.filter(({ percent }) => percent));
  }
}
