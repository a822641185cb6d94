"use strict";
// Main: reads the contents, and draws again whatever a click changes.

async function main() {
  const contents = await readContents();
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const ofCall = Object.keys(specs.charts).filter((name) => specs.of_call.includes(name));
  const ofSweep = Object.keys(specs.charts).filter((name) => !specs.of_call.includes(name));
  for (const place of document.querySelectorAll(".unit")) place.textContent = contents.unit.name;
  let drawn = Promise.resolve();
  const busy = (work) => {
    document.body.dataset.drawn = "no";
    drawn = work;
    work.then(() => {
      if (drawn === work) document.body.dataset.drawn = "yes";
    }, broken);
  };
  const call = new OneCall(contents, (place) => {
    tables.mark(place);
    busy(charts.draw(filters.selection(), ofCall));
  });
  const charts = new Charts(contents, specs, call);
  const tables = new Tables(contents, (place) => {
    call.choose(place);
    document.getElementById("section-call").scrollIntoView();
  });
  const filters = new Filters(contents, () => {
    const selection = filters.selection();
    tables.draw(selection, filters);
    tables.mark(call.place);
    notes(contents, selection);
    busy(charts.draw(selection, ofSweep));
  });
  filters.draw(document.getElementById("filters"));
  if (!contents.cells.key.length) return;
  call.choose(call.first());
  filters.changed();
}

// Sentences that depend on which calls pass.
function notes(contents, { observed }) {
  const { calls, cells, terms } = contents;
  const exact = terms.names.filter((_, term) => observed.every((place) => terms.residual[term][place] === 0));
  say("residuals", exact.length && observed.length ? `Exact to the byte in every call shown: ${exact.join(", ")}.` : "");
  const with_garbage = observed.filter((place) => calls.garbage[place] > 0);
  with_garbage.sort((one, other) => calls.garbage[other] - calls.garbage[one]);
  const named = with_garbage
    .slice(0, 8)
    .map((place) => `${cells.label[calls.cell[place]]} rank ${calls.rank[place]} call ${calls.call[place]} (${shownSize(contents, calls.garbage[place])})`);
  const more = with_garbage.length > named.length ? ", …" : "";
  say("garbage", with_garbage.length ? `${with_garbage.length} of ${observed.length} records contain some: ${named.join(", ")}${more}.` : "");
}

function say(name, words) {
  const place = document.getElementById(`note-${name}`);
  if (place) place.textContent = words;
}

function broken(error) {
  const place = document.getElementById("broken");
  place.hidden = false;
  place.textContent = `The page could not be drawn: ${error.message}`;
  document.body.dataset.drawn = "broken";
  throw error;
}

main().catch(broken);
