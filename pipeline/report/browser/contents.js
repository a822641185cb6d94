"use strict";
// Contents: the columns that the page carries, read once. A call is known by its place in them.

async function readContents() {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser cannot unpack the page's data (DecompressionStream); use a newer one");
  }
  const packed = document.getElementById("contents").textContent;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function inUnit(contents, size) {
  return size === null ? null : size / contents.unit.bytes;
}

// Bytes in the page's unit; what would read as zero in it, in a smaller one, named.
function shownSize(contents, size) {
  if (size === null || size === undefined) return "";
  if (size === 0) return "0";
  const value = size / contents.unit.bytes;
  if (Math.abs(value) >= 0.01) return digits(value, 2);
  const [name, bytes] = [["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]].find(([, one]) => Math.abs(size) >= one);
  return `${digits(size / bytes, name === "B" ? 0 : 1)} ${name}`;
}

function digits(value, count) {
  return value.toLocaleString("en", { minimumFractionDigits: count, maximumFractionDigits: count });
}

function shownPercent(value) {
  return value === null ? "" : `${value < 0 ? "" : "+"}${value.toFixed(2)} %`;
}

// Rows of a chart that are to keep their order, whichever of them a filter takes and gives back.
function inOrder(rows) {
  return rows.map((row, order) => ({ order, ...row }));
}

// An element with attributes and children; what comes from records is only ever text.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== false) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}
