// The task form: parts by kind, unsaved work, keys, rows of values, Tab in the plain editor.

const form = document.querySelector("form[data-task-form]");
const choose = () => {
  const kind = form.elements.kind.value;
  for (const part of form.querySelectorAll("[data-kind]")) part.hidden = part.dataset.kind !== kind;
};
const overlap = () => {
  const parallel = form.querySelector("[data-parallel]");
  if (parallel) parallel.hidden = form.elements.concurrency.value !== "parallel";
};
choose();
overlap();
let dirty = false;
form.addEventListener("input", () => {
  dirty = true;
  choose();
  overlap();
  form.querySelector("[data-unsaved]").hidden = false;
});
form.addEventListener("submit", () => (dirty = false));
window.addEventListener("beforeunload", (event) => dirty && event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey)) return;
  const name = event.key === "s" ? "save" : event.key === "Enter" ? "save-and-run" : "";
  const button = name && form.querySelector(`button[value="${name}"]`);
  if (!button) return;
  event.preventDefault();
  form.requestSubmit(button);
});
form.addEventListener("click", (event) => {
  const remover = event.target.closest("[data-remove-pair]");
  if (remover) {
    remover.closest(".ql-pair").remove();
    form.dispatchEvent(new Event("input"));
  }
  if (event.target.closest("[data-add-pair]")) {
    const pair = form.querySelector("template").content.cloneNode(true).firstElementChild;
    form.querySelector("[data-pairs]").append(pair);
    pair.querySelector("input").focus();
  }
});
for (const element of form.querySelectorAll("[data-remove-pair], [data-add-pair]")) element.hidden = false;
// Several lines of NAME=value pasted into a name become rows.
form.addEventListener("paste", (event) => {
  const name = event.target.closest(".ql-pair input");
  const lines = event.clipboardData.getData("text").split(/\r?\n/).filter((line) => /^\s*(export\s+)?[A-Za-z_][A-Za-z0-9_]*=/.test(line));
  if (!name || lines.length < 1) return;
  event.preventDefault();
  let row = name.closest(".ql-pair");
  lines.forEach((line, index) => {
    if (index > 0) {
      const next = form.querySelector("template").content.cloneNode(true).firstElementChild;
      row.after(next);
      row = next;
    }
    const at = line.indexOf("=");
    row.querySelector("input").value = line.slice(0, at).replace(/^\s*(export\s+)?/, "");
    row.querySelector("textarea").value = line.slice(at + 1);
  });
  form.dispatchEvent(new Event("input"));
});
// Tab writes a tab; Escape and then Tab leaves the editor.
for (const editor of form.querySelectorAll(".ql-editor")) {
  let leaving = false;
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leaving = true;
    else if (event.key === "Tab" && !leaving && !event.shiftKey) {
      event.preventDefault();
      const python = form.elements.language?.value === "python";
      const text = python ? "    " : "\t";
      if (!document.execCommand("insertText", false, text)) editor.setRangeText(text, editor.selectionStart, editor.selectionEnd, "end");
    } else if (event.key !== "Shift") leaving = false;
  });
  editor.addEventListener("blur", () => (leaving = false));
}
