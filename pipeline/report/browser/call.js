"use strict";
// One call: its facts, its terms, and the rows of its three charts.

const UNATTRIBUTED = "unattributed";
const WATERFALL_STEPS = 12;

class OneCall {
  constructor(contents, changed) {
    this.contents = contents;
    this.changed = changed;
    this.place = null;
    this.cell = document.getElementById("cell");
    this.call = document.getElementById("call");
    this.cell.append(...contents.cells.label.map((label, cell) => element("option", { value: cell }, label)));
    this.cell.addEventListener("change", () => this.choose(this.callsOf(Number(this.cell.value))[0]));
    this.call.addEventListener("change", () => this.choose(Number(this.call.value)));
  }

  // The call to begin with: the fullest observed one, else the fullest planned.
  first() {
    const { observed, expected } = this.contents.calls;
    let best = 0;
    const size = (place) => [observed[place] ?? 0, expected[place] ?? 0];
    observed.forEach((_, place) => {
      const [seen, planned] = size(place);
      const [most, other] = size(best);
      if (seen > most || (seen === most && planned > other)) best = place;
    });
    return best;
  }

  callsOf(cell) {
    return this.contents.calls.cell.flatMap((one, place) => (one === cell ? [place] : []));
  }

  choose(place) {
    const { calls } = this.contents;
    this.place = place;
    this.cell.value = calls.cell[place];
    this.call.replaceChildren(
      ...this.callsOf(calls.cell[place]).map((one) =>
        element("option", { value: one }, `rank ${calls.rank[one]} call ${calls.call[one]} ${calls.temperature[one]}`),
      ),
    );
    this.call.value = place;
    this.drawFacts();
    this.drawTerms();
    this.drawDevice();
    this.drawLeftovers();
    this.changed(place);
  }

  detail() {
    return this.contents.details.calls[this.place];
  }

  drawFacts() {
    const { calls } = this.contents;
    const size = (name) => this.named(calls[name][this.place]);
    const both = (name) => `${size(`${name}_predicted`)} predicted, ${size(`${name}_observed`)} observed`;
    const facts = [
      ["outcome", calls.outcome[this.place]],
      ["expected", size("expected")],
      ["bound", size("bound")],
      ["observed", this.seen()],
      ["growth", both("growth")],
      ["held over", both("held")],
      ["retained by forward", both("retained")],
      ["garbage", size("garbage")],
      ["routed rows", `${calls.rows_predicted[this.place] ?? "none"} predicted, ${calls.rows_observed[this.place] ?? "none"} observed`],
    ];
    const detail = this.detail();
    if (detail?.moment) {
      facts.push(["expected peak", detail.moment], ["verdict", detail.verdict], ["priced with", detail.table]);
      facts.push(["tokens on the rank", String(detail.tokens)], ["unpriced", detail.unpriced.join("; ") || "nothing"]);
    }
    if (detail?.at) facts.push([calls.reached[this.place] === null ? "observed peak" : "cut short after", detail.at]);
    const { calls: kept, of } = this.contents.details;
    const missing = `Timeline, place of the peak and leftovers are kept of ${Object.keys(kept).length} of ${of} calls, not of this one.`;
    document.getElementById("kept").textContent = detail ? "" : missing;
    document.getElementById("facts").replaceChildren(
      ...facts.map(([name, value]) => element("div", {}, element("b", {}, name), ` ${value}`)),
    );
  }

  // What was observed; of a call that was cut short, that this is not its peak.
  seen() {
    const { calls } = this.contents;
    const reached = calls.reached[this.place];
    if (reached === null) return `${this.named(calls.observed[this.place])} ${shownPercent(calls.error[this.place])}`;
    return `cut short at ${this.named(reached)}; its peak is not known, and what follows is of this moment`;
  }

  // A size with its unit.
  named(size) {
    const shown = shownSize(this.contents, size);
    if (!shown) return "none";
    return /[A-Z]/.test(shown) || shown === "0" ? shown : `${shown} ${this.contents.unit.name}`;
  }

  drawDevice() {
    const figures = this.detail()?.device ?? [];
    document.getElementById("device-part").hidden = figures.length === 0;
    document.querySelector("#device tbody").replaceChildren(
      ...figures.map(([name, value]) => {
        const sized = name.endsWith("_bytes") && typeof value === "number";
        const words = name.replace(/_bytes$/, "").replaceAll("_", " ");
        const shown = sized ? this.named(value) : String(value);
        return element("tr", {}, element("td", {}, words), element("td", {}, shown));
      }),
    );
  }

  // Terms of the call with any bytes, in the order of the catalogue.
  terms() {
    const { names, planned, residual, copies } = this.contents.terms;
    return names.flatMap((name, term) => {
      const expected = planned[term][this.place];
      const observed = expected + residual[term][this.place];
      if (!expected && !observed && name !== UNATTRIBUTED) return [];
      return [{ name, expected, observed, copies: copies[term][this.place] }];
    });
  }

  drawTerms() {
    const { calls } = this.contents;
    const rows = this.terms().map(({ name, expected, observed, copies }) => {
      const seen = copies && expected ? (observed / (expected / copies)).toFixed(2) : "";
      return this.termRow(name, expected, observed, copies ? copies.toFixed(2) : "", seen);
    });
    const [expected, observed] = [calls.expected[this.place], calls.observed[this.place]];
    if (expected !== null && observed !== null) rows.push(this.termRow("in all", expected, observed, "", "", "total"));
    document.querySelector("#terms tbody").replaceChildren(...rows);
  }

  termRow(name, expected, observed, copies, seen, kind = "") {
    const sizes = [expected, observed].map((size) => shownSize(this.contents, size));
    const values = [name, ...sizes, copies, seen, shownSize(this.contents, observed - expected)];
    return element("tr", { class: kind }, ...values.map((value) => element("td", {}, value)));
  }

  drawLeftovers() {
    const detail = this.detail();
    const left = detail?.leftovers ?? [];
    const { names, residual } = this.contents.terms;
    const bytes = residual[names.indexOf(UNATTRIBUTED)]?.[this.place] ?? 0;
    const words = bytes ? `${shownSize(this.contents, bytes)} at the peak; the largest storages:` : "Nothing: every storage at the peak matched a term.";
    const none = this.contents.calls.observed[this.place] === null ? "Nothing was observed." : words;
    const lost = bytes && !left.length ? " not kept for this call." : "";
    document.getElementById("leftovers-note").textContent = none + lost;
    const table = document.getElementById("leftovers");
    table.hidden = left.length === 0;
    table.tBodies[0].replaceChildren(
      ...left.map(([size, shape, module, op]) =>
        element("tr", {}, ...[module, shape, op, size].map((value) => element("td", {}, String(value)))),
      ),
    );
  }

  // Rows of the stacked bars.
  stack(families) {
    return this.terms().flatMap(({ name, expected, observed }) => {
      const own = name.split(".")[0];
      const family = families.includes(own) ? own : "other";
      const order = families.indexOf(family);
      return [["expected", expected], ["observed", observed]]
        .filter(([, size]) => size > 0)
        .map(([side, size]) => ({ term: name, family, order, side, size: inUnit(this.contents, size) }));
    });
  }

  // Rows from expected to observed: the largest residuals one by one, the rest together.
  waterfall() {
    const { calls } = this.contents;
    const [expected, observed] = [calls.expected[this.place], calls.observed[this.place]];
    if (expected === null || observed === null) return [];
    const steps = this.terms()
      .map((term) => [term.name, term.observed - term.expected])
      .filter(([, size]) => size !== 0)
      .sort(([, one], [, other]) => Math.abs(other) - Math.abs(one));
    const shown = steps.slice(0, WATERFALL_STEPS);
    const named = shown.reduce((sum, [, size]) => sum + size, 0);
    const others = observed - expected - named;
    if (others) shown.push([steps.length > WATERFALL_STEPS ? "all other terms" : "between the sums", others]);
    let level = expected;
    const row = (step, from, to, kind) => ({
      step,
      from: inUnit(this.contents, from),
      to: inUnit(this.contents, to),
      size: inUnit(this.contents, to - from),
      kind,
    });
    const rows = [row("expected", expected, expected, "total")];
    for (const [name, size] of shown) {
      rows.push(row(name, level, level + size, size > 0 ? "more" : "less"));
      level += size;
    }
    rows.push(row("observed", observed, observed, "total"));
    return inOrder(rows);
  }

  timeline(phases) {
    const { live = [], where = [] } = this.detail() ?? {};
    const { names } = this.contents.details;
    return live.map((size, at) => {
      const [phase] = names[where[at]].split(" ");
      return {
        at,
        until: at + 1,
        live: inUnit(this.contents, size),
        where: names[where[at]],
        phase: phases.includes(phase) ? phase : "other",
      };
    });
  }

  levels() {
    const { calls } = this.contents;
    return ["expected", "bound"]
      .filter((name) => calls[name][this.place] !== null)
      .map((name) => ({ name, live: inUnit(this.contents, calls[name][this.place]) }));
  }

  peak(rows) {
    if (!rows.length) return [];
    const top = rows.reduce((one, other) => (other.live > one.live ? other : one));
    return [{ at: top.at + 0.5, half: rows.length / 2, live: top.live, name: `peak: ${top.where}` }];
  }
}
