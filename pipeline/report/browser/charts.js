"use strict";
// Charts: what each shows of the calls that pass. The charts' form is Vega-Lite's, made in Python.

class Charts {
  constructor(contents, specs, call) {
    this.contents = contents;
    this.specs = specs;
    this.call = call;
    this.views = new Map();
    this.drawing = Promise.resolve();
    this.dark = window.matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", () => this.again());
    window.addEventListener("resize", () => this.widen());
  }

  // Draw the charts named, one after another; a draw asked for meanwhile comes after it.
  draw(selection, names) {
    this.selection = selection;
    this.drawing = this.drawing.then(async () => {
      const rows = new Rows(this.contents, selection);
      for (const name of names) await this.drawOne(name, this.data(name, rows));
    });
    return this.drawing;
  }

  again() {
    for (const view of this.views.values()) view.finalize();
    this.views.clear();
    this.draw(this.selection, Object.keys(this.specs.charts));
  }

  // Quiet colours of the light or the dark page; names take a third of the width at most.
  theme(width) {
    const theme = this.specs.themes[this.dark.matches ? "dark" : "light"];
    const axis = { ...theme.axis, labelLimit: Math.min(360, width / 3) };
    return { ...theme, axis, legend: { ...theme.legend, columns: Math.max(2, Math.floor(width / 125)) } };
  }

  // As wide as the page has become.
  widen() {
    for (const [name, view] of this.views) {
      view.width(document.getElementById(`chart-${name}`).clientWidth).resize().runAsync();
    }
  }

  async drawOne(name, data) {
    const section = document.getElementById(`section-${name}`);
    section.hidden = Object.values(data).every((rows) => rows.length === 0);
    if (section.hidden) return;
    const view = this.views.get(name);
    if (view) {
      for (const [dataset, rows] of Object.entries(data)) view.data(dataset, rows);
      await view.runAsync();
      return;
    }
    const form = this.specs.charts[name];
    const spec = { ...form, datasets: { ...form.datasets, ...data } };
    const place = document.getElementById(`chart-${name}`);
    const made = await vegaEmbed(place, spec, {
      actions: false,
      renderer: this.contents.calls.cell.length > 2000 ? "canvas" : "svg",
      config: this.theme(place.clientWidth),
      patch: (vega) => ({ ...vega, width: place.clientWidth, autosize: { type: "fit-x", contains: "padding" } }),
    });
    made.view.addEventListener("click", (_, item) => {
      if (item?.datum?.place !== undefined) this.call.choose(item.datum.place);
    });
    this.views.set(name, made.view);
  }

  data(name, rows) {
    const { families, phases } = this.specs;
    const timeline = name === "timeline" ? this.call.timeline(phases) : [];
    const makers = {
      scatter: () => ({ calls: rows.calls(), diagonal: rows.diagonal() }),
      errors: () => ({ calls: rows.calls() }),
      residuals: () => ({ residuals: rows.residuals() }),
      growth: () => ({ growth: rows.sides("growth") }),
      held: () => ({ held: rows.sides("held") }),
      garbage: () => ({ garbage: rows.garbage() }),
      temperature: () => ({ temperature: rows.pairs("temperature") }),
      weights: () => ({ weights: rows.pairs("weights") }),
      ledger: () => ({ ledger: rows.ledger() }),
      fits: () => ({ fits: this.contents.trends.fits }),
      coverage: () => ({ coverage: this.contents.trends.coverage }),
      sweeps: () => ({ sweeps: this.contents.trends.sweeps }),
      stack: () => ({ stack: this.call.stack(families) }),
      waterfall: () => ({ waterfall: this.call.waterfall() }),
      timeline: () => ({
        timeline,
        levels: timeline.length ? this.call.levels() : [],
        peak: this.call.peak(timeline),
      }),
    };
    return makers[name]();
  }
}
