// <ql-editor for="id"> puts a code editor over a text box of a form; <ql-diff before="id" after="id"> compares two
// texts. Both live in a shadow root: there CodeMirror uses adopted style sheets, which `style-src 'self'` allows.
// The text box stays the form's field, so what is sent, and the page without script, are the same.
import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentLess, indentMore } from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import { StreamLanguage, bracketMatching, foldGutter, indentOnInput, indentUnit } from "@codemirror/language";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { MergeView, unifiedMergeView } from "@codemirror/merge";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState } from "@codemirror/state";
import {
  EditorView, drawSelection, dropCursor, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars,
  highlightTrailingWhitespace, keymap, lineNumbers, rectangularSelection,
} from "@codemirror/view";
import { frame, look } from "./look.mjs";

// Time to press Tab after Esc, for slow hands too.
const LEAVE_MS = 10_000;
// Keys of ours or of the browser that the editor must not take: save-and-run, bookmark.
const NOT_OURS = new Set(["Mod-Enter", "Mod-d"]);

function language(name) {
  if (name === "python") return python();
  if (name === "node") return javascript();
  if (name === "typescript") return javascript({ typescript: true });
  return StreamLanguage.define(shell);
}

// What Tab writes: as the text does already, else the habit of its language.
function unit(name, text) {
  if (/^\t/m.test(text)) return "\t";
  if (/^ {2}\S/m.test(text)) return "  ";
  return name === "python" || /^ {4}\S/m.test(text) ? "    " : "  ";
}

const ours = (bindings) => bindings.filter((binding) => !NOT_OURS.has(binding.key));

function writing() {
  return [
    history(), foldGutter(), dropCursor(), rectangularSelection(), indentOnInput(), closeBrackets(),
    highlightActiveLine(), highlightActiveLineGutter(), highlightTrailingWhitespace(),
    keymap.of([
      { key: "Escape", run: (view) => (view.setTabFocusMode(LEAVE_MS), false) },
      { key: "Tab", run: tab, shift: indentLess },
      ...closeBracketsKeymap, ...ours(searchKeymap), ...historyKeymap, ...ours(defaultKeymap),
    ]),
  ];
}

function tab(view) {
  if (view.state.selection.ranges.some((range) => !range.empty)) return indentMore(view);
  view.dispatch(view.state.replaceSelection(view.state.facet(indentUnit)), { userEvent: "input" });
  return true;
}

function reading() {
  return [EditorState.readOnly.of(true), EditorView.editable.of(false), EditorView.contentAttributes.of({ tabindex: "0" })];
}

function common(element, name, text) {
  const phrases = JSON.parse(element.dataset.phrases || "{}");
  return [
    lineNumbers(), highlightSpecialChars(), drawSelection(), bracketMatching(), highlightSelectionMatches(), search({ top: true }),
    EditorState.phrases.of(phrases), EditorState.allowMultipleSelections.of(true), EditorState.tabSize.of(4),
    indentUnit.of(unit(name, text)), look,
  ];
}

class Framed extends HTMLElement {
  root() {
    const root = this.shadowRoot ?? this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [frame];
    root.innerHTML = '<div class="box"><div class="view"></div></div>';
    return root;
  }
}

class Editor extends Framed {
  #view;
  #language = new Compartment();
  #wrap = new Compartment();

  connectedCallback() {
    if (this.#view) return;
    const field = (this.field = document.getElementById(this.getAttribute("for")));
    const name = this.getAttribute("language");
    const root = this.root();
    // Single keys of the page must not act on what is typed in here.
    this.addEventListener("keydown", (event) => !event.ctrlKey && !event.metaKey && event.key !== "Escape" && event.stopPropagation());
    const changed = (update) => {
      if (!update.docChanged) return;
      field.value = update.state.doc.toString();
      field.dispatchEvent(new Event("input", { bubbles: true }));
    };
    this.#view = new EditorView({
      root,
      parent: root.querySelector(".view"),
      state: EditorState.create({
        doc: field.value,
        extensions: [
          this.readOnly ? reading() : writing(),
          common(this, name, field.value),
          this.#language.of(language(name)),
          this.#wrap.of(matchMedia("(max-width: 639px)").matches ? EditorView.lineWrapping : []),
          EditorView.contentAttributes.of({
            "aria-label": this.getAttribute("aria-label") ?? "", spellcheck: "false", autocapitalize: "none", autocorrect: "off",
            ...(this.getAttribute("aria-describedby") && { "aria-description": document.getElementById(this.getAttribute("aria-describedby"))?.textContent ?? "" }),
          }),
          EditorView.updateListener.of(changed),
        ],
      }),
    });
    if (!this.readOnly) root.querySelector(".box").append(this.#keys());
    // Whoever writes into the field from outside (a template, undoing a draft) is followed.
    field.addEventListener("ql-set", () => this.set(field.value));
  }

  get readOnly() {
    return this.hasAttribute("readonly");
  }

  set(text) {
    this.#view.dispatch({ changes: { from: 0, to: this.#view.state.doc.length, insert: text } });
  }

  speak(name) {
    this.#view.dispatch({ effects: this.#language.reconfigure([language(name), indentUnit.of(unit(name, this.#view.state.doc.toString()))]) });
  }

  focus() {
    this.#view.focus();
  }

  refresh() {
    this.#view.requestMeasure();
  }

  // For thumbs: what phone keyboards hide.
  #keys() {
    const row = document.createElement("div");
    row.className = "keys";
    for (const text of ["Tab", "(", ")", ":", "=", '"', "'"]) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: text, tabIndex: -1 });
      button.addEventListener("pointerdown", (event) => event.preventDefault());
      button.addEventListener("click", () => {
        if (text === "Tab") tab(this.#view);
        else this.#view.dispatch(this.#view.state.replaceSelection(text), { userEvent: "input.type" });
        this.#view.focus();
      });
      row.append(button);
    }
    return row;
  }
}

class Diff extends Framed {
  #merge;

  connectedCallback() {
    this.show(this.getAttribute("mode") ?? "side");
  }

  // "side" by side, or "inline".
  show(mode) {
    this.#merge?.destroy();
    const [before, after] = ["before", "after"].map((side) => document.getElementById(this.getAttribute(side)).value);
    const name = this.getAttribute("language");
    const root = this.root();
    const extensions = [reading(), common(this, name, after), language(name), keymap.of([...ours(searchKeymap), ...ours(defaultKeymap)])];
    const parent = root.querySelector(".view");
    const options = { collapseUnchanged: { margin: 3, minSize: 6 }, highlightChanges: true, gutter: true };
    const labels = ["before", "after"].map((side) => EditorView.contentAttributes.of({ "aria-label": this.dataset[side] ?? "" }));
    if (mode === "side") {
      const sides = [before, after].map((doc, index) => ({ doc, extensions: [...extensions, labels[index], EditorView.lineWrapping] }));
      this.#merge = new MergeView({ a: sides[0], b: sides[1], root, parent, ...options });
    } else {
      this.#merge = new EditorView({
        doc: after, root, parent,
        extensions: [...extensions, labels[1], unifiedMergeView({ original: before, mergeControls: false, ...options })],
      });
    }
    this.setAttribute("mode", mode);
  }
}

customElements.define("ql-editor", Editor);
customElements.define("ql-diff", Diff);
