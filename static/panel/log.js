// The live log: bytes from the API, opened at the end, followed while the run goes on, read backwards on demand.
// Lines are cut from bytes and decoded one by one, so a page edge never splits a character.

import { plain, write } from "./ansi.js";

const TAIL = 64 * 1024;
const PAGE = 256 * 1024;
const LIVE_MS = 700;
const HIDDEN_MS = 10_000;
const CHUNK_LINES = 500;
const FOLD = 8 * 1024;
const KEEP = 8 * 1024 * 1024;
const KEEP_CHUNKS = 100;
const FAR_BEHIND = 4 * 1024 * 1024;
const NEWLINE = 10;

class LogView {
  constructor(root) {
    this.root = root;
    this.view = root.querySelector("[data-log-view]");
    this.note = root.querySelector("[data-log-note]");
    this.more = root.querySelector("[data-log-more]");
    this.url = root.dataset.url;
    this.words = root.dataset;
    this.following = true;
    this.unseen = 0;
    this.wire();
    this.open();
  }

  wire() {
    this.button("follow", () => this.follow(!this.following));
    this.button("wrap", () => this.wrap(!this.root.classList.contains("ql-wrap"), true));
    this.button("more", () => this.follow(true));
    const narrow = window.matchMedia("(max-width: 639px)").matches;
    const chosen = localStorage.getItem("ql-wrap");
    this.wrap(chosen === null ? narrow : chosen === "1", false);
    this.view.addEventListener("scroll", () => this.scrolled(), { passive: true });
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.wake) this.wake();
    });
    document.addEventListener("keydown", (event) => {
      if (event.target.closest("input, textarea, select, dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "f") this.follow(!this.following);
      else if (event.key === "w") this.wrap(!this.root.classList.contains("ql-wrap"), true);
      else if (event.key === "End" && this.view.contains(event.target)) this.follow(true);
    });
  }

  button(name, act) {
    const button = this.root.querySelector(`[data-log-${name}]`);
    button.addEventListener("click", act);
    if (name !== "more") button.hidden = false;
    this[`${name}Button`] = button;
  }

  wrap(on, remember) {
    this.root.classList.toggle("ql-wrap", on);
    this.wrapButton.setAttribute("aria-pressed", String(on));
    if (remember) localStorage.setItem("ql-wrap", on ? "1" : "0");
    if (this.following) this.toEnd();
  }

  follow(on) {
    this.following = on;
    this.followButton.setAttribute("aria-pressed", String(on));
    if (on) {
      this.unseen = 0;
      if (this.cutBelow) this.restart();
      this.toEnd();
    }
    this.tellUnseen();
  }

  /** What stood below was let go while reading backwards: open at the end again. */
  restart() {
    this.reset();
    if (this.finished) this.open();
    else this.wake?.();
  }

  toEnd() {
    this.view.scrollTop = this.view.scrollHeight;
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.view;
    const atEnd = !this.cutBelow && scrollHeight - scrollTop - clientHeight < 32;
    if (atEnd !== this.following && (atEnd || scrollTop < (this.lastTop ?? 0))) this.follow(atEnd);
    this.lastTop = scrollTop;
    if (scrollTop < 300 && this.start > 0 && !this.loadingEarlier && this.ready) this.earlier();
  }

  tellUnseen() {
    this.more.hidden = this.following || this.unseen === 0;
    this.more.textContent = this.words.textMore.replace("{n}", this.unseen);
  }

  async ask(offset, limit) {
    const answer = await fetch(`${this.url}${this.url.includes("?") ? "&" : "?"}offset=${offset}&limit=${limit}`, {
      credentials: "same-origin",
      headers: { Accept: "application/octet-stream, application/problem+json" },
    });
    if (answer.status >= 500 || answer.status === 429) throw new Error("later");
    if (!answer.ok) {
      const refusal = new Error("refused");
      refusal.code = (await answer.json().catch(() => ({}))).code;
      refusal.refused = true;
      throw refusal;
    }
    return {
      bytes: new Uint8Array(await answer.arrayBuffer()),
      size: Number(answer.headers.get("X-Log-Size") ?? 0),
      complete: answer.headers.get("X-Log-Complete") === "true",
      truncated: answer.headers.get("X-Log-Truncated") === "true",
    };
  }

  async open() {
    this.reset();
    this.finished = false;
    for (;;) {
      try {
        await this.step();
        this.say("");
        if (!this.ready) continue;
        if (this.complete && this.end >= this.size) return this.finish();
        if (this.end >= this.size) await this.pause(document.hidden ? HIDDEN_MS : LIVE_MS);
      } catch (error) {
        if (error.refused) return this.say(this.words.textMissing);
        this.say(this.words.textReconnecting);
        await this.pause(2000);
      }
    }
  }

  reset() {
    this.view.replaceChildren();
    this.epoch = (this.epoch ?? 0) + 1;
    this.ready = this.cutBelow = false;
    this.start = this.end = this.size = 0;
    this.openBytes = new Uint8Array(0);
    this.style = plain();
    this.openLine = null;
  }

  async step() {
    if (!this.ready) {
      const first = await this.ask(-TAIL, TAIL);
      this.take(first);
      this.start = Math.max(0, first.size - first.bytes.length);
      const bytes = this.aligned(first.bytes);
      this.end = this.start;
      this.ready = true;
      this.append(bytes);
      return;
    }
    const epoch = this.epoch;
    const next = await this.ask(this.end, PAGE);
    if (epoch !== this.epoch) return;
    this.take(next);
    if (next.size - this.end > FAR_BEHIND) {
      this.reset();
      return;
    }
    this.append(next.bytes);
  }

  take(answer) {
    this.size = answer.size;
    this.complete = answer.complete;
    this.truncated = answer.truncated;
  }

  /** Without the broken line at the front, which belongs to the page before; `start` moves along. */
  aligned(bytes) {
    if (this.start === 0) return bytes;
    const at = bytes.indexOf(NEWLINE);
    if (at < 0 || at === bytes.length - 1) return bytes;
    this.start += at + 1;
    return bytes.subarray(at + 1);
  }

  append(bytes) {
    if (!bytes.length) return;
    this.end += bytes.length;
    const { lines, rest } = cut(join(this.openBytes, bytes));
    this.openBytes = rest;
    if (!this.cutBelow) {
      this.openLine?.remove();
      this.openLine = null;
      for (const line of lines) this.style = draw(this.place(), line, this.style, this.words);
      this.drawOpen();
      this.letGo();
    }
    if (this.following) this.toEnd();
    else {
      this.unseen += lines.length;
      this.tellUnseen();
    }
  }

  /** The last line while it has no end yet; half a character waits for its other half. */
  drawOpen() {
    this.openLine?.remove();
    this.openLine = null;
    if (!this.openBytes.length) return;
    const chunk = this.place();
    draw(chunk, this.openBytes, this.style, this.words, !this.complete);
    this.openLine = chunk.lastElementChild;
  }

  place() {
    let chunk = this.view.lastElementChild;
    if (!chunk || chunk.childElementCount >= CHUNK_LINES) {
      chunk = document.createElement("div");
      chunk.className = "ql-chunk";
      this.view.append(chunk);
    }
    return chunk;
  }

  letGo() {
    const { view } = this;
    while (this.following && view.childElementCount > 1 && (this.end - this.start > KEEP || view.childElementCount > KEEP_CHUNKS)) {
      const oldest = view.firstElementChild;
      for (const line of oldest.children) this.start += line.size;
      oldest.remove();
    }
  }

  async earlier() {
    this.loadingEarlier = true;
    try {
      const [epoch, until] = [this.epoch, this.start];
      const from = Math.max(0, until - PAGE);
      const page = await this.ask(from, until - from);
      if (epoch !== this.epoch || until !== this.start) return;
      this.start = from;
      const { lines, rest } = cut(this.aligned(page.bytes));
      if (rest.length) lines.push(rest);
      const anchor = this.view.firstElementChild;
      const top = anchor?.getBoundingClientRect().top;
      this.prepend(lines);
      if (anchor) this.view.scrollTop += anchor.getBoundingClientRect().top - top;
    } catch (error) {
      this.say(error.refused ? this.words.textMissing : this.words.textReconnecting);
    } finally {
      this.loadingEarlier = false;
    }
  }

  prepend(lines) {
    const chunks = document.createDocumentFragment();
    let style = plain();
    let chunk = null;
    for (const line of lines) {
      if (!chunk || chunk.childElementCount >= CHUNK_LINES) {
        chunk = document.createElement("div");
        chunk.className = "ql-chunk";
        chunks.append(chunk);
      }
      style = draw(chunk, line, style, this.words);
    }
    this.view.prepend(chunks);
    while (this.view.childElementCount > 2 * KEEP_CHUNKS) {
      this.view.lastElementChild.remove();
      this.cutBelow = true;
    }
  }

  finish() {
    this.finished = true;
    if (!this.cutBelow) this.drawOpen();
    this.root.removeAttribute("data-live");
    this.say(this.size === 0 ? this.words.textEmpty : this.truncated ? this.words.textCut : this.words.textEnd);
    if (this.following) this.toEnd();
  }

  say(sentence) {
    const shown = sentence || (this.size === 0 ? this.words.textWaiting : "");
    if (this.note.textContent !== shown) this.note.textContent = shown;
    this.note.hidden = !shown;
  }

  pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

function join(first, second) {
  if (!first.length) return second;
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

/** Whole lines with their newline, and what comes after the last newline. */
function cut(bytes) {
  const lines = [];
  let from = 0;
  for (let at = bytes.indexOf(NEWLINE); at >= 0; at = bytes.indexOf(NEWLINE, from)) {
    lines.push(bytes.subarray(from, at + 1));
    from = at + 1;
  }
  return { lines, rest: bytes.slice(from) };
}

function draw(chunk, bytes, style, words, unfinished = false) {
  const element = document.createElement("div");
  element.size = bytes.length;
  const end = bytes[bytes.length - 1] === NEWLINE ? bytes.length - 1 : bytes.length;
  const shown = bytes.subarray(0, Math.min(end, FOLD));
  const text = new TextDecoder("utf-8").decode(shown, { stream: unfinished || end > FOLD });
  const after = write(element, text, style);
  if (end > FOLD) element.append(fold(element, bytes.slice(0, end), style, end - FOLD, words));
  else if (!element.firstChild) element.append("\n");
  chunk.append(element);
  return after;
}

function fold(element, bytes, style, hidden, words) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "ql-fold-more";
  button.textContent = words.textFold.replace("{size}", hidden >= 1 << 20 ? `${(hidden / (1 << 20)).toFixed(1)} MB` : `${Math.ceil(hidden / 1024)} KB`);
  button.addEventListener("click", () => {
    element.replaceChildren();
    write(element, new TextDecoder("utf-8").decode(bytes), style);
  });
  return button;
}

for (const root of document.querySelectorAll("[data-log]")) new LogView(root);
