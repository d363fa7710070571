// Small upgrades of pages that work without them: menus, live parts, counting times, dialogs, the task form.

const pad = (n) => String(n).padStart(2, "0");

function closeMenus(except) {
  for (const menu of document.querySelectorAll("details.ql-menu[open]")) if (menu !== except) menu.open = false;
}
document.addEventListener("click", (event) => closeMenus(event.target.closest("details.ql-menu")));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = document.querySelector("details.ql-menu[open]");
  closeMenus(null);
  menu?.querySelector("summary").focus();
});

// Counting times: 00:41, 1:02:03.
function count() {
  for (const element of document.querySelectorAll("[data-since]")) {
    const seconds = Math.max(0, Math.floor((Date.now() - Number(element.dataset.since)) / 1000));
    const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
    element.textContent = h ? `${h}:${pad(m)}:${pad(s)}` : `${pad(m)}:${pad(s)}`;
  }
}
count();
setInterval(count, 1000);

// Live parts: ask the same address for the part, keep it when nothing changed.
for (const part of document.querySelectorAll("[data-live]")) {
  let tag = "";
  const tick = async () => {
    const wait = Number(part.dataset.live);
    if (!wait) return;
    const busy = document.hidden || part.querySelector("details[open], input:focus, textarea:focus") || document.querySelector("dialog[open]");
    if (!busy) {
      try {
        const answer = await fetch(location.href, { headers: { "X-Part": "1", ...(tag && { "If-None-Match": tag }) }, credentials: "same-origin" });
        if (answer.status === 401) location.reload();
        away(answer.status >= 500);
        if (answer.status === 200) {
          tag = answer.headers.get("ETag") ?? "";
          replace(part, await answer.text());
        }
      } catch {
        away(true); // The next tick asks again.
      }
    }
    setTimeout(tick, wait * 1000);
  };
  setTimeout(tick, Number(part.dataset.live) * 1000);
}

// A page that cannot ask must not go on looking as if it knew.
function away(gone) {
  document.getElementById("away").hidden = !gone;
}

function replace(part, html) {
  const held = document.activeElement && part.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const root = fresh.querySelector("[data-state-of-part]");
  if (root) {
    part.dataset.live = root.dataset.stateOfPart;
    if (root.dataset.title) document.title = root.dataset.title;
  }
  part.replaceChildren(...fresh.body.childNodes);
  if (held) part.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus();
  count();
  if (root?.dataset.stateOfPart !== "0") return;
  for (const element of document.querySelectorAll("[data-only-live]")) element.hidden = true;
  for (const element of document.querySelectorAll("[data-after-end]")) {
    element.disabled = false;
    element.removeAttribute("title");
  }
}

// Toasts leave after six seconds unless they are looked at.
for (const toast of document.querySelectorAll("#toasts > li")) {
  const leave = () => (toast.matches(":hover, :focus-within") ? setTimeout(leave, 2000) : toast.remove());
  setTimeout(leave, 6000);
}

// A page that comes back from the cache must be able to start anew.
window.addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  const once = document.querySelector("#act [name=once]");
  if (once) once.value = crypto.getRandomValues(new Uint32Array(3)).join("-");
  for (const form of document.forms) delete form.dataset.sent;
});
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post" || form.dataset.sent) {
    if (form.dataset.sent) event.preventDefault();
    return;
  }
  form.dataset.sent = "1";
  setTimeout(() => delete form.dataset.sent, 4000);
});

document.addEventListener("click", async (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (opener) {
    const dialog = document.getElementById(opener.dataset.dialog);
    if (dialog?.showModal) {
      event.preventDefault();
      dialog.showModal();
    }
    return;
  }
  const closer = event.target.closest("[data-close]");
  if (closer) {
    event.preventDefault();
    closer.closest("dialog").close();
    return;
  }
  const copier = event.target.closest("[data-copy]");
  if (copier) {
    await navigator.clipboard.writeText(document.getElementById(copier.dataset.copy).textContent.trim());
    copier.textContent = copier.dataset.done;
  }
});
for (const button of document.querySelectorAll("[data-copy]")) if (navigator.clipboard) button.hidden = false;
for (const box of document.querySelectorAll("[data-reveal]")) {
  box.hidden = false;
  box.addEventListener("click", () => {
    const field = document.getElementById(box.dataset.reveal);
    field.type = field.type === "password" ? "text" : "password";
    box.setAttribute("aria-pressed", String(field.type === "text"));
  });
}
for (const select of document.querySelectorAll("select[data-submit]")) select.addEventListener("change", () => select.form.requestSubmit());

// The task form.
const form = document.querySelector("form[data-task-form]");
if (form) {
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
}
const errors = document.querySelector("[data-errors]");
if (errors) {
  errors.focus();
  for (const wrong of document.querySelectorAll('[aria-invalid="true"]')) wrong.closest("details")?.setAttribute("open", "");
}
