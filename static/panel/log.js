// The live log: bytes from the API, opened at the end, followed while the run goes on, read both ways on demand.
// Lines are cut from bytes and decoded one by one, so a page edge never splits a character. What is in the page is
// the range [start, end) in whole lines; while `attached`, the unfinished line behind it (`rest`) is shown too.

import { plain } from "./ansi.js";
import { Finder } from "./log-find.js";
import { CHUNK_LINES, cut, drawLine, join, makeChunk } from "./log-lines.js";
import { enabled, typing } from "./keys.js";

const TAIL = 64 * 1024;
const PAGE = 256 * 1024;
const LIVE_MS = 700;
const HIDDEN_MS = 10_000;
const KEEP = 8 * 1024 * 1024;
const KEEP_CHUNKS = 200;
const FAR_BEHIND = 4 * 1024 * 1024;
const COPY_LINES = 200;
const NEWLINE = 10;
const NOTHING = new Uint8Array(0);

class LogView {
  constructor(root) {
    this.root = root;
    this.view = root.querySelector("[data-log-view]");
    this.note = root.querySelector("[data-log-note]");
    this.more = root.querySelector("[data-log-more]");
    this.sizeField = root.querySelector("[data-log-size]");
    this.words = root.dataset;
    this.buttons = {};
    this.following = true;
    this.unseen = 0;
    this.raw = false;
    this.finder = new Finder(this);
    this.wire();
    this.open(/^#log-b(\d{1,15})$/.exec(location.hash)?.[1]);
  }

  wire() {
    this.button("follow", () => this.follow(!this.following));
    this.button("wrap", () => this.wrap(!this.root.classList.contains("ql-wrap"), true));
    this.button("raw", () => this.showRaw(!this.raw));
    this.button("read", () => this.readAloud());
    this.button("copy", () => this.copy());
    this.button("find", () => this.finder.open());
    this.more.addEventListener("click", () => this.follow(true));
    const narrow = window.matchMedia("(max-width: 639px)").matches;
    const chosen = localStorage.getItem("ql-wrap");
    this.wrap(chosen === null ? narrow : chosen === "1", false);
    this.view.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.view.addEventListener("click", (event) => this.linkTo(event));
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.wake?.();
    });
    document.addEventListener("ql:part", () => {
      if (this.finished) this.sayEnd();
    });
    document.addEventListener("keydown", (event) => this.key(event), true);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event) || !enabled() || this.root.offsetParent === null) return;
    const act = {
      f: () => this.follow(!this.following),
      w: () => this.wrap(!this.root.classList.contains("ql-wrap"), true),
      "/": () => this.finder.open(),
      End: () => this.view.contains(event.target) && this.follow(true),
      Home: () => this.view.contains(event.target) && this.toStart(),
    }[event.key];
    if (!act || act() === false) return;
    event.preventDefault();
    event.stopPropagation();
  }

  button(name, act) {
    const button = this.root.querySelector(`[data-log-${name}]`);
    if (!button) return;
    button.addEventListener("click", act);
    button.hidden = false;
    this.buttons[name] = button;
  }

  press(name, on) {
    this.buttons[name]?.setAttribute("aria-pressed", String(on));
  }

  wrap(on, remember) {
    this.root.classList.toggle("ql-wrap", on);
    this.press("wrap", on);
    if (remember) localStorage.setItem("ql-wrap", on ? "1" : "0");
    if (this.following) this.toEnd();
  }

  showRaw(on) {
    this.raw = on;
    this.press("raw", on);
    this.open(this.attached && this.following ? undefined : this.start);
  }

  readAloud() {
    const on = this.view.getAttribute("aria-live") === "off";
    this.view.setAttribute("aria-live", on ? "polite" : "off");
    this.press("read", on);
  }

  async copy() {
    const chosen = String(getSelection());
    const inside = chosen && this.view.contains(getSelection().anchorNode);
    const lines = inside ? chosen : [...this.view.querySelectorAll(".ql-line")].slice(-COPY_LINES).map((line) => line.textContent.replace(/\n$/, "")).join("\n");
    await navigator.clipboard?.writeText(lines);
    this.flash(this.words.textCopied);
  }

  /** The margin of a line copies a link to its first byte, which works however long the log is. */
  async linkTo(event) {
    const line = event.target.closest(".ql-line");
    if (!line || event.clientX - line.getBoundingClientRect().left > parseFloat(getComputedStyle(line).paddingLeft) || String(getSelection())) return;
    history.replaceState(null, "", `#log-b${line.offset}`);
    this.mark(line);
    await navigator.clipboard?.writeText(location.href);
    this.flash(this.words.textLinked);
  }

  mark(line) {
    this.view.querySelector(".ql-marked")?.classList.remove("ql-marked");
    line?.classList.add("ql-marked");
  }

  follow(on) {
    this.following = on;
    this.press("follow", on);
    if (on) {
      this.unseen = 0;
      if (this.attached) this.toEnd();
      else this.open();
    }
    this.tellUnseen();
  }

  toEnd() {
    this.view.scrollTop = this.view.scrollHeight;
  }

  toStart() {
    this.following = false;
    this.press("follow", false);
    if (this.start > 0) this.open(0);
    else this.view.scrollTop = 0;
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.view;
    const below = scrollHeight - scrollTop - clientHeight;
    const atEnd = this.attached && below < 32;
    if (atEnd !== this.following && (atEnd || scrollTop < (this.lastTop ?? 0))) this.follow(atEnd);
    this.lastTop = scrollTop;
    if (!this.ready || this.loading) return;
    if (scrollTop < 600 && this.start > 0) this.load(() => this.earlier());
    else if (below < 600 && !this.attached) this.load(() => this.later());
  }

  tellUnseen() {
    this.more.hidden = this.following || this.unseen === 0;
    this.more.textContent = this.words.textMore.replace("{n}", this.unseen.toLocaleString());
  }

  async ask(offset, limit) {
    const url = this.words.url;
    const answer = await fetch(`${url}${url.includes("?") ? "&" : "?"}offset=${offset}&limit=${limit}`, {
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
    this.size = Number(answer.headers.get("X-Log-Size") ?? 0);
    this.complete = answer.headers.get("X-Log-Complete") === "true";
    this.truncated = answer.headers.get("X-Log-Truncated") === "true";
    this.learnMasked(Number(answer.headers.get("X-Log-Offset") ?? 0), answer.headers.get("X-Log-Masked"));
    if (this.sizeField) this.sizeField.textContent = this.size ? inWords(this.size) : "";
    return new Uint8Array(await answer.arrayBuffer());
  }

  /** Where marks for secrets stand, as the server knows it: what looks like one in the text is only text. */
  learnMasked(at, steps) {
    for (const step of steps ? steps.split(",") : []) this.masked.add((at += Number(step)));
  }

  /** What the server finds from `offset` on: `items` and `next_offset`. */
  async searched(wanted, offset) {
    const [path, query] = this.words.url.split("?");
    const answer = await fetch(`${path}/search?${new URLSearchParams([["q", wanted], ["offset", offset], ["limit", 200], ...new URLSearchParams(query)])}`, { credentials: "same-origin" });
    if (!answer.ok) throw new Error("refused");
    return answer.json();
  }

  /** The line that begins at a byte, loaded where it is not there yet. */
  async lineAt(offset) {
    const find = () => [...this.view.querySelectorAll(".ql-line")].find((line) => line.offset === offset);
    const there = find();
    if (there) return there;
    this.open(offset);
    const epoch = this.epoch;
    for (let tries = 0; tries < 200 && epoch === this.epoch && !(this.ready && !this.loading); tries += 1) {
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
    return epoch === this.epoch ? find() : undefined;
  }

  reset() {
    this.view.replaceChildren();
    this.epoch = (this.epoch ?? 0) + 1;
    this.ready = this.finished = false;
    this.start = this.end = this.size = 0;
    this.rest = NOTHING;
    this.masked = new Set();
    this.attached = true;
    this.style = plain();
    this.openLine = null;
    this.numbered = false;
  }

  /** Shows the end, or what begins at `offset`, and keeps asking while more may come. */
  async open(offset) {
    this.reset();
    const epoch = this.epoch;
    const at = offset === undefined ? undefined : Number(offset);
    while (epoch === this.epoch) {
      try {
        if (!this.ready) await this.begin(at);
        else if (this.attached) await this.grow();
        else await this.listen();
        if (epoch !== this.epoch) return;
        this.say("");
        const known = this.attached ? this.end + this.rest.length : this.tail;
        if (this.complete && known >= this.size) return this.finish();
        if (known >= this.size) await this.pause(document.hidden ? HIDDEN_MS : LIVE_MS);
      } catch (error) {
        if (epoch !== this.epoch) return;
        if (error.refused) return this.say(error.code === "log_retained" ? this.words.textRetained : this.words.textMissing);
        this.say(this.words.textReconnecting);
        await this.pause(2000);
      }
    }
  }

  async begin(at) {
    const epoch = this.epoch;
    const bytes = await this.ask(at ?? -TAIL, at === undefined ? TAIL : PAGE);
    if (epoch !== this.epoch) return;
    this.start = this.end = Math.min(at ?? Math.max(0, this.size - bytes.length), this.size);
    const shown = at === undefined ? this.aligned(bytes) : bytes;
    this.end = this.start;
    this.ready = true;
    this.attached = this.end + shown.length >= this.size;
    this.tail = this.size;
    this.number();
    if (this.attached) this.append(shown);
    else this.appendWhole(shown);
    if (at === undefined) return;
    this.follow(false);
    this.view.scrollTop = 0;
    if (this.start === 0) return;
    this.mark(this.view.querySelector(".ql-line"));
    // Something must stand above, or nobody can scroll there.
    await this.load(() => this.earlier());
  }

  async grow() {
    const epoch = this.epoch;
    const bytes = await this.ask(this.end + this.rest.length, PAGE);
    if (epoch !== this.epoch || !this.attached) return;
    if (this.following && this.size - this.end > FAR_BEHIND) this.open();
    else this.append(bytes);
  }

  /** While something else is being read, only how much has come is counted. */
  async listen() {
    const epoch = this.epoch;
    if (this.size - this.tail > FAR_BEHIND) this.tail = this.size - PAGE;
    const bytes = await this.ask(this.tail, PAGE);
    if (epoch !== this.epoch || this.attached) return;
    this.tail += bytes.length;
    for (const byte of bytes) if (byte === NEWLINE) this.unseen += 1;
    this.tellUnseen();
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
    const { lines, rest } = cut(join(this.rest, bytes));
    this.openLine?.remove();
    this.openLine = null;
    for (const line of lines) this.draw(this.place(), line);
    this.rest = rest;
    this.drawRest();
    if (this.following) {
      this.letGoAbove();
      this.toEnd();
    } else {
      this.unseen += lines.length;
      this.tellUnseen();
    }
  }

  /** Whole lines only; what follows the last newline is asked for again. */
  appendWhole(bytes) {
    const { lines, rest } = cut(bytes);
    if (!lines.length && rest.length >= PAGE) lines.push(rest);
    for (const line of lines) this.draw(this.place(), line);
  }

  /** The last line while it has no end yet; half a character waits for its other half. */
  drawRest() {
    this.openLine?.remove();
    this.openLine = null;
    if (!this.rest.length) return;
    const chunk = this.place();
    const [end, style, bytes] = [this.end, this.style, chunk.bytes];
    this.draw(chunk, this.rest, !this.complete);
    [this.end, this.style, chunk.bytes] = [end, style, bytes];
    this.openLine = chunk.lastElementChild;
  }

  place() {
    const last = this.view.lastElementChild;
    if (last && last.childElementCount < CHUNK_LINES) return last;
    const chunk = makeChunk();
    this.view.append(chunk);
    if (this.numbered) this.count(chunk, last ? last.firstLine + last.childElementCount : 0);
    return chunk;
  }

  draw(chunk, bytes, unfinished = false) {
    this.style = drawLine(chunk, bytes, this.end, this.style, this, unfinished);
    this.end += bytes.length;
  }

  /** Many short lines weigh as much as a few long ones. */
  tooMuch() {
    const chunks = this.view.childElementCount;
    return chunks > 1 && (this.end - this.start > KEEP || chunks > KEEP_CHUNKS);
  }

  letGoAbove() {
    while (this.tooMuch()) {
      this.start += this.view.firstElementChild.bytes;
      this.view.firstElementChild.remove();
    }
  }

  letGoBelow() {
    while (this.tooMuch()) {
      const last = this.view.lastElementChild;
      if (this.attached) {
        this.tail = this.end + this.rest.length;
        this.attached = false;
        this.openLine?.remove();
        this.openLine = null;
        this.rest = NOTHING;
      }
      this.end -= last.bytes;
      last.remove();
    }
  }

  async load(work) {
    this.loading = true;
    try {
      await work();
    } catch (error) {
      this.say(error.refused ? this.words.textMissing : this.words.textReconnecting);
    } finally {
      this.loading = false;
    }
  }

  async earlier() {
    const [epoch, until] = [this.epoch, this.start];
    const from = Math.max(0, until - PAGE);
    const bytes = await this.ask(from, until - from);
    if (epoch !== this.epoch || until !== this.start) return;
    this.start = from;
    const { lines, rest } = cut(this.aligned(bytes));
    if (rest.length) lines.push(rest);
    const anchor = this.view.firstElementChild;
    const top = anchor?.getBoundingClientRect().top;
    this.prepend(lines);
    if (anchor) this.view.scrollTop += anchor.getBoundingClientRect().top - top;
    this.letGoBelow();
    this.number();
  }

  prepend(lines) {
    const chunks = document.createDocumentFragment();
    let [style, chunk, offset] = [plain(), null, this.start];
    for (const line of lines) {
      if (!chunk || chunk.childElementCount >= CHUNK_LINES) chunks.append((chunk = makeChunk()));
      style = drawLine(chunk, line, offset, style, this);
      offset += line.length;
    }
    this.view.prepend(chunks);
  }

  async later() {
    const [epoch, from] = [this.epoch, this.end];
    const bytes = await this.ask(from, PAGE);
    if (epoch !== this.epoch || from !== this.end) return;
    if (from + bytes.length >= this.size) {
      this.attached = true;
      this.append(bytes);
      if (this.finished) this.drawRest();
    } else this.appendWhole(bytes);
    const anchor = this.view.lastElementChild;
    const top = anchor.getBoundingClientRect().top;
    this.letGoAbove();
    this.view.scrollTop += anchor.getBoundingClientRect().top - top;
  }

  /** Lines have numbers only when they were counted from the first one. */
  number() {
    if (this.start !== 0) return;
    this.numbered = true;
    this.view.classList.add("ql-numbered");
    let before = 0;
    for (const chunk of this.view.children) {
      this.count(chunk, before);
      before += chunk.childElementCount;
    }
  }

  count(chunk, before) {
    chunk.firstLine = before;
    chunk.style.counterReset = `line ${before}`;
  }

  finish() {
    this.finished = true;
    if (this.attached) this.drawRest();
    this.root.classList.add("ql-over");
    const label = this.buttons.follow?.querySelector("span");
    if (label) label.textContent = this.words.textToEnd;
    this.sayEnd();
    if (this.following) this.toEnd();
  }

  sayEnd() {
    const outcome = document.querySelector("[data-outcome]")?.dataset.outcome;
    const how = this.size === 0 ? this.words.textEmpty : this.truncated ? this.words.textCut : "";
    this.say([how, outcome].filter(Boolean).join(" ") || this.words.textEnd);
  }

  say(sentence) {
    const shown = sentence || (this.size === 0 ? this.words.textWaiting : "");
    if (this.flashing || this.note.textContent === shown) return;
    this.note.textContent = shown;
  }

  flash(sentence) {
    clearTimeout(this.flashing);
    const before = this.note.textContent;
    this.note.textContent = sentence;
    this.flashing = setTimeout(() => {
      this.flashing = 0;
      this.note.textContent = before;
    }, 2500);
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

function inWords(bytes) {
  const step = bytes < 1024 ? 0 : bytes < 1 << 20 ? 1 : bytes < 1 << 30 ? 2 : 3;
  const value = bytes / 1024 ** step;
  return `${step && value < 10 ? value.toFixed(1) : Math.round(value)} ${["B", "KB", "MB", "GB"][step]}`;
}

for (const root of document.querySelectorAll("[data-log]")) new LogView(root);
