// Lines of a log: cut from bytes, put into chunks that the browser may skip, long ones folded.

import { write } from "./ansi.js";

export const CHUNK_LINES = 500;
const FOLD = 8 * 1024;
const NEWLINE = 10;

export function join(first, second) {
  if (!first.length) return second;
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

/** Whole lines with their newline, and what comes after the last newline. */
export function cut(bytes) {
  const lines = [];
  let from = 0;
  for (let at = bytes.indexOf(NEWLINE); at >= 0; at = bytes.indexOf(NEWLINE, from)) {
    lines.push(bytes.subarray(from, at + 1));
    from = at + 1;
  }
  return { lines, rest: bytes.slice(from) };
}

export function makeChunk() {
  const chunk = document.createElement("div");
  chunk.className = "ql-chunk";
  chunk.bytes = 0;
  return chunk;
}

export function drawLine(chunk, bytes, offset, style, words, raw, unfinished = false) {
  const element = document.createElement("div");
  element.className = "ql-line";
  element.offset = offset;
  chunk.bytes += bytes.length;
  const end = bytes[bytes.length - 1] === NEWLINE ? bytes.length - 1 : bytes.length;
  const text = new TextDecoder("utf-8").decode(bytes.subarray(0, Math.min(end, FOLD)), { stream: unfinished || end > FOLD });
  const after = write(element, text, style, raw);
  if (end > FOLD) element.append(fold(element, bytes.slice(0, end), style, end - FOLD, words, raw));
  else if (!element.firstChild) element.append("\n");
  chunk.append(element);
  return after;
}

function fold(element, bytes, style, hidden, words, raw) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "ql-fold-more";
  button.textContent = words.textFold.replace("{size}", hidden >= 1 << 20 ? `${(hidden / (1 << 20)).toFixed(1)} MB` : `${Math.ceil(hidden / 1024)} KB`);
  button.addEventListener("click", () => {
    element.replaceChildren();
    write(element, new TextDecoder("utf-8").decode(bytes), style, raw);
  });
  return button;
}
