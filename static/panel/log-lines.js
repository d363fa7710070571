// Lines of a log: cut from bytes, put into chunks that the browser may skip, long ones folded.

import { SECRET, write } from "./ansi.js";

export const CHUNK_LINES = 500;
const FOLD = 8 * 1024;
const NEWLINE = 10;
const STAR = 42;

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

/** Text of bytes, with every mark that stands for a secret as one character that no output can hold (ansi.js). */
function decoded(bytes, offset, masked, more) {
  const decoder = new TextDecoder("utf-8");
  const decode = (part, stream) => decoder.decode(part, { stream }).replaceAll(SECRET, "\ufffd");
  let [text, from] = ["", 0];
  for (let at = masked.size ? bytes.indexOf(STAR) : -1; at >= 0; at = bytes.indexOf(STAR, at)) {
    if (masked.has(offset + at) && bytes[at + 1] === STAR && bytes[at + 2] === STAR) {
      text += decode(bytes.subarray(from, at), false) + SECRET;
      from = at += 3;
    } else at += 1;
  }
  return text + decode(bytes.subarray(from), more);
}

export function drawLine(chunk, bytes, offset, style, { words, raw, masked }, unfinished = false) {
  const element = document.createElement("div");
  element.className = "ql-line";
  element.offset = offset;
  chunk.bytes += bytes.length;
  const end = bytes[bytes.length - 1] === NEWLINE ? bytes.length - 1 : bytes.length;
  const text = decoded(bytes.subarray(0, Math.min(end, FOLD)), offset, masked, unfinished || end > FOLD);
  const after = write(element, text, style, words.textMasked, raw);
  if (end > FOLD) {
    const whole = bytes.slice(0, end);
    element.append(fold(element, end - FOLD, words, () => write(element, decoded(whole, offset, masked, false), style, words.textMasked, raw)));
  }
  else if (!element.firstChild) element.append("\n");
  chunk.append(element);
  return after;
}

function fold(element, hidden, words, unfold) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "ql-fold-more";
  button.textContent = words.textFold.replace("{size}", hidden >= 1 << 20 ? `${(hidden / (1 << 20)).toFixed(1)} MB` : `${Math.ceil(hidden / 1024)} KB`);
  button.addEventListener("click", () => {
    element.replaceChildren();
    unfold();
  });
  return button;
}
