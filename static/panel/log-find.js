// Search in what is loaded of a log: hits are painted by the highlight API, so no line is touched.

const MOST = 5000;

export class Finder {
  constructor(log) {
    this.log = log;
    this.bar = log.root.querySelector("[data-find]");
    if (!this.bar) return;
    this.field = this.bar.querySelector("input");
    this.told = this.bar.querySelector("[data-find-told]");
    this.hits = [];
    this.at = -1;
    this.field.addEventListener("input", () => this.search());
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        this.step(event.shiftKey ? -1 : 1);
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

  step(by) {
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
    this.paint();
    const hit = this.hits[this.at];
    if (!hit) return;
    if (this.log.following && this.at < this.hits.length) this.log.follow(false);
    hit.line.scrollIntoView({ block: "center" });
    requestAnimationFrame(() => hit.line.scrollIntoView({ block: "center" }));
  }

  paint() {
    if (!window.Highlight || !CSS.highlights) {
      this.log.mark(this.hits[this.at]?.line);
      return;
    }
    const near = this.hits.slice(Math.max(0, this.at - 500), this.at + 500);
    CSS.highlights.set("ql-find", new Highlight(...near.map(range).filter(Boolean)));
    const chosen = this.hits[this.at] && range(this.hits[this.at]);
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
