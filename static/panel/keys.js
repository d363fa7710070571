// Single keys (panel.md §6). They never act in a field or behind a dialog, and can be switched off in this browser.

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
for (const chord of document.querySelectorAll("[data-chord]")) if (MAC) chord.textContent = "⌘K";
const label = (root) => {
  if (MAC) for (const key of root.querySelectorAll("kbd[data-mod]")) key.textContent = "⌘";
};
label(document);

export const typing = (event) =>
  event.target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable], dialog[open]") ||
  document.querySelector("dialog[open]") ||
  event.composedPath().some((one) => one.isContentEditable);
export const enabled = () => localStorage.getItem("ql-keys") !== "0";

let waiting = 0; // When `g` was pressed.

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing(event) || !enabled()) return;
  const act = waiting > Date.now() - 1500 ? place(event.key) : ACTS[event.key];
  waiting = event.key === "g" ? Date.now() : 0;
  if (act?.(event)) event.preventDefault();
});

function place(key) {
  return () => press(document.querySelector(`.ql-side [data-go="${CSS.escape(key)}"]`));
}

const ACTS = {
  "?": () => help(),
  "/": () => {
    const field = document.querySelector("[data-search]");
    field?.focus();
    field?.select?.();
    return field;
  },
  n: () => press(document.querySelector('[data-does="new"]')),
  j: () => move(1),
  k: () => move(-1),
  Enter: (event) => event.target === document.body && press(current()?.querySelector("[data-open], .ql-name a")),
  x: () => press(current()?.querySelector("input[type=checkbox]")),
  r: () => does("run"),
  s: () => does("stop"),
  l: () => does("log"),
  e: () => does("edit"),
};

function press(element) {
  if (!element || element.disabled) return false;
  element.click();
  return true;
}

const list = () => [...document.querySelectorAll("main [data-row]")].filter((row) => row.offsetParent !== null);
const current = () => document.querySelector("main [data-row].ql-at");

/** Acts on the chosen row, else on the page. */
function does(what) {
  const row = current();
  const scope = row ?? document.querySelector(".ql-head");
  return press(scope?.querySelector(`[data-does="${what}"]`)) || (row && press(document.querySelector(`.ql-head [data-does="${what}"]`)));
}

function move(step) {
  const rows = list();
  if (!rows.length) return false;
  const at = rows.indexOf(current());
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step))];
  for (const row of rows) row.classList.toggle("ql-at", row === next);
  next.scrollIntoView({ block: "nearest" });
  next.querySelector("[data-open], .ql-name a")?.focus({ preventScroll: true });
  return true;
}

function help() {
  const dialog = document.getElementById("keys");
  if (!dialog) return false;
  open(dialog);
  return true;
}

async function open(dialog) {
  if (!dialog.dataset.ready) {
    try {
      const answer = await fetch(dialog.dataset.url, { headers: { "X-Part": "1" }, credentials: "same-origin" });
      if (!answer.ok) return location.assign(dialog.dataset.url);
      dialog.replaceChildren(...new DOMParser().parseFromString(await answer.text(), "text/html").body.childNodes);
    } catch {
      return location.assign(dialog.dataset.url);
    }
    dialog.dataset.ready = "1";
    label(dialog);
    wire(dialog);
  }
  dialog.showModal();
}

function wire(root) {
  const holder = root.querySelector("[data-single-keys]");
  if (!holder) return;
  const box = holder.querySelector("input");
  holder.hidden = false;
  box.checked = enabled();
  box.addEventListener("change", () => localStorage.setItem("ql-keys", box.checked ? "1" : "0"));
}
wire(document);

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-keys]")) {
    event.preventDefault();
    help();
  }
});
