// Search in a log: at once in what is loaded, on demand in all of it, by the server and by byte offset. Hits are
// painted by the highlight API, so no line is touched.

const MOST = 5000;
const MOST_LINES = 1000;

export class Finder {
  constructor(log) {
    this.log = log;
    this.bar = log.root.querySelector("[data-find]");
    if (!this.bar) return;
    this.field = this.bar.querySelector("input");
    this.told = this.bar.querySelector("[data-find-told]");
    this.everywhere = this.bar.querySelector("[data-find-everywhere]");
    this.everywhere.addEventListener("click", () => this.searchEverywhere());
    this.hits = [];
    this.at = -1;
    this.whole = null;
    this.field.addEventListener("input", () => {
      this.whole = null;
      this.search();
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") {
        event.preventDefault();
        if (!this.hits.length && !this.whole && !this.everywhere.hidden) this.searchEverywhere();
        else this.step(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation();
        this.close();
      }
    });
    this.bar.querySelector("[data-find-next]").addEventListener("click", () => this.step(1));
    this.bar.querySelector("[data-find-before]").addEventListener("click", () => this.step(-1));
    this.bar.querySelector("[data-find-close]").addEventListener("click", () => this.close());
  }

  open() {
    if (!this.bar) return false;
    this.bar.hidden = false;
    this.field.focus();
    this.field.select();
    if (this.field.value) this.search();
    return true;
  }

  close() {
    this.bar.hidden = true;
    this.hits = [];
    this.whole = null;
    this.paint();
    this.log.view.focus();
  }

  /** All hits in the loaded lines, newest first chosen: a log is read from its end. */
  search() {
    const wanted = this.field.value.toLocaleLowerCase();
    this.hits = [];
    if (wanted) {
      for (const line of this.log.view.querySelectorAll(".ql-line")) {
        const text = line.textContent.toLocaleLowerCase();
        for (let from = text.indexOf(wanted); from >= 0 && this.hits.length < MOST; from = text.indexOf(wanted, from + wanted.length)) {
          this.hits.push({ line, from, to: from + wanted.length });
        }
      }
    }
    this.at = this.hits.length - 1;
    this.show();
  }

  /** Asks the server until it has looked through everything, then goes to the last line found. */
  async searchEverywhere() {
    const wanted = this.field.value;
    const found = [];
    const asked = (this.asked = Symbol("search"));
    const stale = () => asked !== this.asked || wanted !== this.field.value || this.bar.hidden;
    this.everywhere.hidden = true;
    for (let offset = 0; offset !== null && found.length < MOST_LINES; ) {
      this.told.textContent = this.log.words.textSearching;
      const part = await this.log.searched(wanted, offset).catch(() => null);
      if (stale()) return;
      if (part === null) {
        this.told.textContent = this.log.words.textNotSearched;
        this.everywhere.hidden = false;
        return;
      }
      found.push(...part.items);
      offset = part.next_offset;
    }
    this.whole = { lines: found.slice(0, MOST_LINES), more: found.length >= MOST_LINES };
    this.at = this.whole.lines.length - 1;
    await this.go();
  }

  /** Shows the line that is chosen among all found, loading what stands about it. */
  async go() {
    const { textFound, textNotFound } = this.log.words;
    const { lines, more } = this.whole;
    const count = lines.length.toLocaleString() + (more ? "+" : "");
    this.told.textContent = lines.length ? textFound.replace("{n}", this.at + 1).replace("{m}", count) : textNotFound;
    const wanted = lines[this.at];
    if (!wanted) return;
    const line = await this.log.lineAt(wanted.line_offset);
    if (!line || this.whole?.lines[this.at] !== wanted) return;
    const text = line.textContent.toLocaleLowerCase();
    const from = text.indexOf(this.field.value.toLocaleLowerCase());
    this.hits = from < 0 ? [] : [{ line, from, to: from + this.field.value.length }];
    this.log.follow(false);
    line.scrollIntoView({ block: "center" });
    this.paint(0);
  }

  step(by) {
    if (this.whole) {
      const count = this.whole.lines.length;
      if (count) this.at = (this.at + by + count) % count;
      return this.go();
    }
    const before = this.hits.length;
    if (!before || !this.hits[this.at]?.line.isConnected) return this.search();
    this.at = (this.at + by + this.hits.length) % this.hits.length;
    this.show();
  }

  show() {
    const { textFound, textNotFound, textLoaded } = this.log.words;
    const partly = this.log.start > 0 || !this.log.attached;
    const count = this.hits.length ? textFound.replace("{n}", this.at + 1).replace("{m}", this.hits.length) : this.field.value ? textNotFound : "";
    this.told.textContent = count && partly ? `${count} ${textLoaded}` : count;
    this.everywhere.hidden = !(partly && this.field.value);
    this.paint();
    const hit = this.hits[this.at];
    if (!hit) return;
    if (this.log.following && this.at < this.hits.length) this.log.follow(false);
    hit.line.scrollIntoView({ block: "center" });
    requestAnimationFrame(() => hit.line.scrollIntoView({ block: "center" }));
  }

  paint(at = this.at) {
    if (!window.Highlight || !CSS.highlights) {
      this.log.mark(this.hits[at]?.line);
      return;
    }
    const near = this.hits.slice(Math.max(0, at - 500), at + 500);
    CSS.highlights.set("ql-find", new Highlight(...near.map(range).filter(Boolean)));
    const chosen = this.hits[at] && range(this.hits[at]);
    CSS.highlights.set("ql-find-at", chosen ? new Highlight(chosen) : new Highlight());
  }
}

function range({ line, from, to }) {
  const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  const found = document.createRange();
  let [at, begun] = [0, false];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const next = at + node.length;
    if (!begun && from < next) {
      found.setStart(node, from - at);
      begun = true;
    }
    if (begun && to <= next) {
      found.setEnd(node, to - at);
      return found;
    }
    at = next;
  }
  return null;
}
