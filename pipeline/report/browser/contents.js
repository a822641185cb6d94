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

function shownSize(contents, size) {
  if (size === null || size === undefined) return "";
  if (size === 0) return "0";
  const value = size / contents.unit.bytes;
  const digits = Math.abs(value) < 0.01 ? 4 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function shownPercent(value) {
  return value === null ? "" : `${value < 0 ? "" : "+"}${value.toFixed(2)} %`;
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
