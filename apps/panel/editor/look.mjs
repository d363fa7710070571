// How code looks: the panel's own tokens come in through custom properties, so both themes follow by themselves.
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { EditorView } from "@codemirror/view";
import { tags as t } from "@lezer/highlight";

const ink = {
  keyword: "light-dark(#8a1c6b, #f29fd2)",
  string: "light-dark(#00614a, #8fe0b4)",
  number: "light-dark(#1747b0, #9cc0ff)",
  comment: "var(--quiet)",
  name: "light-dark(#0a5a80, #7fd0f0)",
  type: "light-dark(#7a4300, #f0c07a)",
  wrong: "var(--danger)",
};

const colours = HighlightStyle.define([
  { tag: [t.keyword, t.operatorKeyword, t.modifier, t.controlKeyword], color: ink.keyword },
  { tag: [t.string, t.special(t.string), t.regexp, t.character], color: ink.string },
  { tag: [t.number, t.bool, t.null, t.atom], color: ink.number },
  { tag: [t.comment, t.meta], color: ink.comment, fontStyle: "italic" },
  { tag: [t.function(t.variableName), t.function(t.propertyName), t.function(t.definition(t.variableName))], color: ink.name },
  { tag: [t.standard(t.variableName), t.className, t.typeName, t.namespace], color: ink.type },
  { tag: t.invalid, color: ink.wrong },
]);

const chrome = EditorView.theme({
  "&": { color: "var(--strong)", backgroundColor: "var(--page)", height: "100%" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", fontSize: "13px", lineHeight: "20px", overflow: "auto" },
  ".cm-content": { padding: "8px 0", caretColor: "var(--strong)" },
  ".cm-line": { padding: "0 12px 0 8px" },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--quiet)", border: "0", borderInlineEnd: "1px solid var(--line)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "light-dark(rgb(15 118 110 / 6%), rgb(45 212 191 / 8%))" },
  ".cm-activeLineGutter": { color: "var(--strong)" },
  ".cm-cursor, .cm-dropCursor": { borderLeftColor: "var(--strong)", borderLeftWidth: "2px" },
  "& .cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": {
    backgroundColor: "light-dark(#bfe3de, #1c4a48)",
  },
  ".cm-selectionMatch": { backgroundColor: "light-dark(#e6f4f2, #123534)" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "light-dark(#d3ece8, #1c4a48)", outline: "1px solid var(--brand)" },
  ".cm-searchMatch": { backgroundColor: "light-dark(#ffe9a8, #54420b)" },
  ".cm-searchMatch-selected": { backgroundColor: "light-dark(#ffc94d, #8a6a00)" },
  ".cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)", borderColor: "var(--line)" },
  ".cm-panels button": { backgroundImage: "none", backgroundColor: "var(--page)", color: "var(--strong)", border: "1px solid var(--control-line)", borderRadius: "6px" },
  ".cm-textfield": { backgroundColor: "var(--page)", color: "var(--strong)", border: "1px solid var(--control-line)", borderRadius: "6px" },
  ".cm-panel.cm-search": { fontFamily: "var(--sans)", padding: "8px 28px 8px 8px" },
  ".cm-panel.cm-search [name=close]": { border: "0", fontSize: "18px", background: "none" },
  ".cm-tooltip": { backgroundColor: "var(--page)", color: "var(--text)", border: "1px solid var(--line)" },
  ".cm-placeholder": { color: "var(--quiet)" },
  ".cm-specialChar": { color: "var(--danger)" },
  ".cm-trailingSpace": { backgroundColor: "light-dark(rgb(161 15 40 / 12%), rgb(255 152 163 / 18%))" },
  ".cm-foldPlaceholder": { backgroundColor: "var(--raised)", color: "var(--quiet)", borderColor: "var(--line)" },
  ".cm-changedLine, &.cm-merge-b .cm-changedLine, .cm-insertedLine": { backgroundColor: "light-dark(#e1f7ec, #0a2c22)" },
  "&.cm-merge-a .cm-changedLine, .cm-deletedChunk, .cm-deletedLine": { backgroundColor: "light-dark(#ffeaec, #34141a)" },
  "& .cm-changedText, &.cm-merge-b .cm-changedText": { background: "light-dark(#c2efdc, #0f402c)" },
  "&.cm-merge-a .cm-changedText, .cm-deletedChunk .cm-deletedText": { background: "light-dark(#ffd3d7, #571a24)" },
  ".cm-deletedChunk": { paddingLeft: "8px" },
  ".cm-changeGutter": { width: "4px", paddingLeft: "1px" },
  ".cm-changedLineGutter": { background: "light-dark(#109b74, #7be8c6)" },
  ".cm-deletedLineGutter, &.cm-merge-a .cm-changedLineGutter": { background: "light-dark(#a80f2a, #f0526a)" },
  ".cm-collapsedLines": { background: "var(--raised)", color: "var(--quiet)", padding: "4px 12px", fontFamily: "var(--sans)" },
  "@media (max-width: 639px)": { ".cm-scroller": { fontSize: "16px", lineHeight: "23px" } },
  "@media (forced-colors: active)": { ".cm-cursor": { borderLeftColor: "CanvasText" } },
});

export const look = [chrome, syntaxHighlighting(colours)];

// The element's own frame inside its shadow root.
export const frame = new CSSStyleSheet();
frame.replaceSync(`
  :host { display: block; border: 1px solid var(--control-line); border-radius: 8px; overflow: hidden; background: var(--page); }
  :host(:focus-within) { outline: 2px solid var(--brand); outline-offset: 2px; }
  :host([invalid]) { border-color: var(--danger); }
  .box { height: 100%; display: flex; flex-direction: column; }
  .view { flex: 1; min-height: 0; }
  .keys { display: none; gap: 4px; padding: 4px; overflow-x: auto; border-top: 1px solid var(--line); background: var(--raised); }
  .keys button { flex: 1 0 40px; min-height: 40px; border: 1px solid var(--control-line); border-radius: 6px; background: var(--page); color: var(--strong); font: 15px var(--mono); }
  @media (pointer: coarse) { .keys { display: flex; } }
  .cm-mergeView { height: auto; max-height: 100%; overflow: auto; }
`);
