// Pages about tasks: the code editor on demand, the selection in the list, the schedule builder.

import { upgradeBuilders } from "./builder.js";

// The editor is fetched only where there is something to edit or to compare; until then the plain text stands there.
const code = [...document.querySelectorAll("ql-editor, ql-diff")];
if (code.length) {
  import("./editor.js").then(() => {
    for (const editor of document.querySelectorAll("ql-editor")) takeOver(editor);
    for (const diff of document.querySelectorAll("ql-diff")) compare(diff);
  });
}

function takeOver(editor) {
  const field = document.getElementById(editor.getAttribute("for"));
  const plain = document.getElementById(editor.dataset.replaces ?? editor.getAttribute("for"));
  const held = document.activeElement === field;
  editor.hidden = false;
  plain.hidden = true;
  editor.refresh();
  if (held) editor.focus();
  const choice = document.getElementById(editor.getAttribute("language-from"));
  choice?.addEventListener("change", () => editor.speak(choice.value));
  // Labels and the list of faults lead to the field; it is the editor now.
  for (const link of document.querySelectorAll(`label[for="${field.id}"], a[href="#${field.id}"]`)) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      editor.scrollIntoView({ block: "center" });
      editor.focus();
    });
  }
}

function compare(diff) {
  const card = diff.closest("[data-diff]");
  const modes = card.querySelector("[data-diff-modes]");
  const show = (mode) => {
    diff.show(mode);
    for (const button of modes.children) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
  };
  card.querySelector("[data-diff-plain]").hidden = true;
  diff.hidden = false;
  modes.hidden = false;
  modes.addEventListener("click", (event) => event.target.dataset.mode && show(event.target.dataset.mode));
  show(matchMedia("(max-width: 900px)").matches ? "inline" : diff.getAttribute("mode"));
}

// The selection in the list. The bar shows itself by CSS as soon as one box is checked.
const boxes = () => [...document.querySelectorAll('input[form="bulk"][name="task"]')];
function selection() {
  const all = boxes();
  const count = all.filter((box) => box.checked).length;
  const label = document.querySelector("[data-selected]");
  if (label) label.textContent = label.dataset.text.replace("{n}", count);
  const head = document.querySelector("[data-select-all]");
  if (head) {
    head.hidden = false;
    head.checked = count > 0 && count === all.length;
    head.indeterminate = count > 0 && count < all.length;
  }
  const none = document.querySelector("[data-select-none]");
  if (none) none.hidden = false;
}
let from = null;
document.addEventListener("click", (event) => {
  const box = event.target.closest?.('input[form="bulk"][name="task"]');
  if (box && event.shiftKey && from) {
    const all = boxes();
    const [first, last] = [all.indexOf(from), all.indexOf(box)].sort((a, b) => a - b);
    for (const one of all.slice(Math.max(0, first), last + 1)) one.checked = box.checked;
  }
  if (box) from = box;
  if (event.target.matches?.("[data-select-all]")) for (const one of boxes()) one.checked = event.target.checked;
  if (event.target.closest?.("[data-select-none]")) for (const one of boxes()) one.checked = false;
  if (event.target.closest?.("[data-select-mode]")) document.querySelector(".ql-live-tasks").classList.toggle("ql-selecting");
  selection();
});
document.addEventListener("change", selection);
document.addEventListener("ql:part", selection);
selection();

// A row's menu: one template for all rows; without script its button leads to the settings of the task.
function menus() {
  const template = document.getElementById("row-menu");
  for (const link of template ? document.querySelectorAll("a[data-menu]") : []) {
    const slug = link.closest("tr").querySelector("[data-open]").pathname.split("/").at(-2);
    const flags = link.dataset.menu.split(" ").concat(link.dataset.run ? "current" : []);
    const menu = template.content.cloneNode(true).firstElementChild;
    for (const item of menu.querySelectorAll("[data-if]")) if (!flags.includes(item.dataset.if)) item.remove();
    for (const item of menu.querySelectorAll("[href], [formaction]")) {
      const name = item.hasAttribute("href") ? "href" : "formaction";
      item.setAttribute(name, item.getAttribute(name).replace("--slug--", slug).replace(/0{8}-0{4}-0{4}-0{4}-0{12}/, link.dataset.run ?? ""));
    }
    menu.dataset.key = link.dataset.key;
    menu.querySelector("summary").setAttribute("aria-label", link.getAttribute("aria-label"));
    link.replaceWith(menu);
  }
}
document.addEventListener("ql:part", menus);
menus();

upgradeBuilders(document);

// The builder in a dialog: the page's own form, fetched; what is sent goes to the same address as without script.
const dialog = document.querySelector("dialog[data-builder]");
if (dialog?.showModal) {
  const fill = (html) => {
    dialog.innerHTML = html;
    upgradeBuilders(dialog);
    for (const button of dialog.querySelectorAll("[data-copy]")) if (navigator.clipboard) button.hidden = false;
    (dialog.querySelector("[data-errors], [aria-invalid=true]") ?? dialog.querySelector("input:checked, input:not([type=hidden])"))?.focus();
  };
  const failed = (link) => (location.href = link);
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("[data-builder-open]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    try {
      const answer = await fetch(link.href, { headers: { "X-Part": "form" } });
      if (!answer.ok) return failed(link.href);
      fill(await answer.text());
      dialog.showModal();
    } catch {
      failed(link.href);
    }
  });
  dialog.addEventListener("submit", async (event) => {
    event.preventDefault();
    event.stopPropagation();
    const form = event.target;
    // What comes back takes the form's place: nothing is typed into the old one meanwhile.
    const body = new FormData(form, event.submitter);
    form.inert = true;
    const answer = await fetch(form.action, { method: "POST", body, headers: { "X-Part": "form" } }).catch(() => null);
    if (!answer) return form.submit();
    if (answer.status !== 204) return fill(await answer.text());
    dialog.close();
    if (!dialog.dataset.refresh) return location.assign(answer.headers.get("X-Location"));
    const part = await fetch(location.href, { headers: { "X-Part": dialog.dataset.refresh } });
    document.querySelector("[data-when]").outerHTML = await part.text();
  });
  // Once a secret was shown the list behind is old.
  dialog.addEventListener("close", () => dialog.querySelector("#hook") && !dialog.dataset.refresh && location.reload());
}
