// Terminal text to nodes: colours as classes, cursor codes dropped, control and bidi characters made visible.
// Nothing here ever parses HTML; text goes in as text nodes only.

const SEQUENCE = /\x1b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])/g;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const ADDRESS = /https?:\/\/[^\s<>"'`\u0000-\u001f\ufdd0]+/g;
// Stands for a masked secret between the decoding of a line and its nodes: no character, and in no text that is one.
export const SECRET = "\ufdd0";

export const plain = () => ({ fg: null, bg: null, flags: new Set() });

/**
 * Appends `text` to `parent` in the given style and returns the style that holds after it; `raw` shows every byte.
 * `masked` is what a place says in which a secret stood.
 */
export function write(parent, text, style, masked, raw = false) {
  if (raw) {
    show(parent, text, masked);
    return style;
  }
  const shown = overwritten(text);
  let from = 0;
  for (const match of shown.matchAll(SEQUENCE)) {
    put(parent, shown.slice(from, match.index), style, masked);
    if (match[2] === "m") style = select(style, match[1]);
    from = match.index + match[0].length;
  }
  put(parent, shown.slice(from), style, masked);
  return style;
}

/** A progress bar writes over itself with carriage returns: the last state counts. */
function overwritten(text) {
  const trimmed = text.replace(/\r+$/, "");
  const last = trimmed.lastIndexOf("\r");
  return last < 0 ? trimmed : trimmed.slice(last + 1);
}

/** Text with its hidden characters made visible and its masked places marked. */
function show(parent, text, masked) {
  text.split(SECRET).forEach((part, number) => {
    if (number) {
      const mark = document.createElement("mark");
      mark.className = "ql-masked";
      mark.title = masked;
      mark.textContent = "***";
      parent.append(mark);
    }
    parent.append(visible(part));
  });
}

function put(parent, text, style, masked) {
  if (!text) return;
  const styled = style.fg !== null || style.bg !== null || style.flags.size > 0;
  const target = styled ? dress(document.createElement("span"), style) : parent;
  let from = 0;
  for (const match of text.matchAll(ADDRESS)) {
    const address = match[0].replace(/[).,;:!?\]]+$/, "");
    show(target, text.slice(from, match.index), masked);
    target.append(link(address));
    from = match.index + address.length;
  }
  show(target, text.slice(from), masked);
  if (styled) parent.append(target);
}

function link(address) {
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.rel = "noopener noreferrer nofollow";
  anchor.target = "_blank";
  anchor.textContent = address;
  return anchor;
}

function visible(text) {
  return text.replace(HIDDEN, (mark) => {
    const code = mark.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `\u2039U+${code.toString(16).toUpperCase()}\u203a`;
  });
}

function dress(element, style) {
  let { fg, bg } = style;
  if (style.flags.has("inverse")) [fg, bg] = [bg ?? "inverse", fg ?? "inverse"];
  paint(element, fg, "fg", "color");
  paint(element, bg, "bg", "backgroundColor");
  for (const flag of style.flags) if (flag !== "inverse") element.classList.add(`ql-a-${flag}`);
  return element;
}

function paint(element, colour, kind, property) {
  if (colour === null) return;
  if (typeof colour === "number" || colour === "inverse") element.classList.add(`ql-a-${kind}-${colour}`);
  else element.style[property] = colour;
}

const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const UNSET = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };

function select(style, parameters) {
  const codes = parameters.split(/[;:]/).map((code) => Number(code || 0));
  let next = { fg: style.fg, bg: style.bg, flags: new Set(style.flags) };
  for (let i = 0; i < codes.length; i += 1) {
    const code = codes[i];
    if (code === 0) next = plain();
    else if (FLAGS[code]) next.flags.add(FLAGS[code]);
    else if (UNSET[code]) UNSET[code].forEach((flag) => next.flags.delete(flag));
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 90 && code <= 97) next.fg = code - 82;
    else if (code >= 100 && code <= 107) next.bg = code - 92;
    else if (code === 39) next.fg = null;
    else if (code === 49) next.bg = null;
    else if (code === 38 || code === 48) {
      const [colour, used] = extended(codes, i + 1);
      if (colour !== null) next[code === 38 ? "fg" : "bg"] = colour;
      i += used;
    }
  }
  return next;
}

function extended(codes, at) {
  if (codes[at] === 5) return [indexed(codes[at + 1]), 2];
  if (codes[at] === 2) {
    const rgb = codes.slice(at + 1, at + 4);
    const good = rgb.length === 3 && rgb.every((value) => value >= 0 && value <= 255);
    return [good ? `rgb(${rgb.join(" ")})` : null, 4];
  }
  return [null, 1];
}

function indexed(value) {
  if (!(value >= 0 && value <= 255)) return null;
  if (value < 16) return value;
  if (value >= 232) return `rgb(${Array(3).fill(8 + (value - 232) * 10).join(" ")})`;
  const cube = value - 16;
  const level = (n) => (n === 0 ? 0 : 55 + n * 40);
  return `rgb(${level(Math.floor(cube / 36))} ${level(Math.floor(cube / 6) % 6)} ${level(cube % 6)})`;
}
