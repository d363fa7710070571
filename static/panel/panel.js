// Small upgrades of pages that work without them: menus, live parts, counting times, dialogs.

import "./keys.js";
import "./palette.js";

// The server shows times in this browser's zone.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && !document.cookie.split("; ").includes(`ql_zone=${zone}`)) {
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `ql_zone=${zone}; path=${document.body.dataset.base}; max-age=31536000; samesite=lax${secure}`;
}

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

// Counting times: 00:41, 1:02:03. A wide bar beside one grows with it.
function count() {
  for (const element of document.querySelectorAll("[data-since]")) {
    const ms = Math.max(0, Date.now() - Number(element.dataset.since));
    const seconds = Math.floor(ms / 1000);
    const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
    element.textContent = h ? `${h}:${pad(m)}:${pad(s)}` : `${pad(m)}:${pad(s)}`;
    const fill = element.dataset.usual && element.closest("[data-pace]")?.querySelector(".ql-fill");
    if (fill) fill.setAttribute("width", String(Math.max(2, Math.min(100, (100 * ms) / Number(element.dataset.usual)))));
  }
}
// Time that is left: the same, backwards; at the end it stays at nothing.
function countDown() {
  for (const element of document.querySelectorAll("[data-left]")) {
    const seconds = Math.max(0, Math.ceil((Number(element.dataset.left) - Date.now()) / 1000));
    const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
    const clock = h ? `${h}:${pad(m)}:${pad(s)}` : `${pad(m)}:${pad(s)}`;
    element.textContent = element.dataset.words.replace("*", clock);
  }
}
const tickTock = () => (count(), countDown());
tickTock();
setInterval(tickTock, 1000);

// Live parts: ask the same address for the part, keep it when nothing changed.
for (const part of document.querySelectorAll("[data-live]")) {
  let tag = "";
  const tick = async () => {
    const wait = Number(part.dataset.live);
    if (!wait) return;
    const busy = document.hidden || part.querySelector("details.ql-menu[open], input:focus, textarea:focus, input:checked") || document.querySelector("dialog[open]");
    if (!busy) {
      try {
        const name = part.dataset.part || "1";
        const answer = await fetch(location.href, { headers: { "X-Part": name, ...(tag && { "If-None-Match": tag }) }, credentials: "same-origin" });
        if (answer.status === 401) location.reload();
        away(answer.status >= 500);
        badge(answer.headers.get("X-Running"));
        if (answer.status === 200 && replace(part, await answer.text())) tag = answer.headers.get("ETag") ?? "";
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

function badge(text) {
  if (text === null) return;
  for (const element of document.querySelectorAll('[data-badge="runs"]')) {
    element.hidden = !text;
    element.querySelector("[data-count]").textContent = text;
  }
}

const rows = (root) => [...root.querySelectorAll("[data-row]")].map((row) => row.dataset.row).join(" ");

/** Puts the fresh part in place; false where it waits a while, since rows would move under the pointer. */
function replace(part, html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const moves = part.querySelector("[data-row]:hover") && rows(part) !== rows(fresh);
  part.waited = moves ? (part.waited ?? 0) + 1 : 0;
  if (moves && part.waited < 3) return false;
  const root = fresh.querySelector("[data-state-of-part]");
  if (root) {
    part.dataset.live = root.dataset.stateOfPart;
    if (root.dataset.title) document.title = root.dataset.title;
    if (root.dataset.say) say(root.dataset.say);
  }
  for (const piece of fresh.querySelectorAll("[data-into]")) {
    const target = document.getElementById(piece.dataset.into);
    if (target) swap(target, piece.childNodes);
    piece.remove();
  }
  swap(part, fresh.body.childNodes);
  tickTock();
  if (root?.dataset.stateOfPart === "0") over();
  document.dispatchEvent(new CustomEvent("ql:part", { detail: part }));
  return true;
}

/** New content in place of the old; what was open, chosen or held by the keyboard stays so. */
function swap(target, nodes) {
  const held = document.activeElement && target.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  const at = target.querySelector(".ql-at")?.dataset.row;
  const opened = [...target.querySelectorAll("details[open][data-key]")].map((one) => one.dataset.key);
  target.replaceChildren(...nodes);
  for (const key of opened) target.querySelector(`details[data-key="${CSS.escape(key)}"]`)?.setAttribute("open", "");
  if (at) target.querySelector(`[data-row="${CSS.escape(at)}"]`)?.classList.add("ql-at");
  if (!held) return;
  const again = target.querySelector(`[data-key="${CSS.escape(held)}"]`);
  (again?.matches("details") ? again.querySelector("summary") : again)?.focus();
}

const keyOf = (element) => element.dataset.key ?? (element.matches("summary") ? element.parentElement.dataset.key : null);

function over() {
  for (const element of document.querySelectorAll("[data-only-live]")) element.hidden = true;
  for (const element of document.querySelectorAll("[data-after-end]")) {
    element.disabled = false;
    element.hidden = false;
    element.removeAttribute("title");
  }
}

// State changes are told once, and at most every five seconds.
let told = "";
let tellAt = 0;
function say(sentence) {
  const region = document.getElementById("announcer");
  if (!region || sentence === told) return;
  told = sentence;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => {
    tellAt = Date.now();
    region.textContent = told;
  }, Math.max(0, tellAt + 5000 - Date.now()));
}

// Confirmations leave after six seconds unless they are looked at; refusals stay until they are closed.
for (const button of document.querySelectorAll("#toasts [data-dismiss]")) {
  button.hidden = false;
  button.addEventListener("click", () => button.closest("li").remove());
}
for (const toast of document.querySelectorAll("#toasts > li:not(.ql-error)")) {
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
      closeMenus(null);
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
  if (event.target.matches("dialog[open]") && outside(event)) {
    event.target.close();
    return;
  }
  const copier = event.target.closest("[data-copy]");
  if (copier) {
    await navigator.clipboard.writeText(document.getElementById(copier.dataset.copy).textContent.trim());
    copier.textContent = copier.dataset.done;
  }
});

/** Whether a click on a dialog hit the ground around it. */
function outside(event) {
  const box = event.target.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
}

for (const button of document.querySelectorAll("[data-copy]")) if (navigator.clipboard) button.hidden = false;
for (const box of document.querySelectorAll("[data-reveal]")) {
  box.hidden = false;
  box.addEventListener("click", () => {
    const field = document.getElementById(box.dataset.reveal);
    field.type = field.type === "password" ? "text" : "password";
    box.setAttribute("aria-pressed", String(field.type === "text"));
  });
}
for (const select of document.querySelectorAll("select[data-submit], input[data-submit]")) select.addEventListener("change", () => select.form.requestSubmit());

// On a phone the open tab may lie outside its strip.
for (const open of document.querySelectorAll(":is(.ql-tabs, .ql-filters) [aria-current]")) {
  const strip = open.closest(".ql-tabs, .ql-filters");
  const [inner, outer] = [open.getBoundingClientRect(), strip.getBoundingClientRect()];
  strip.scrollLeft += inner.left + inner.width / 2 - (outer.left + outer.width / 2);
}

// Tabs that show one of several parts of the page; without script all parts stand one below the other.
for (const list of document.querySelectorAll("[data-tabs]")) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const show = (chosen, focus) => {
    for (const tab of tabs) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls"))?.toggleAttribute("data-tab-off", !on);
    }
    if (focus) chosen.focus();
  };
  list.hidden = false;
  window.matchMedia("(min-width: 1280px)").addEventListener("change", () => {
    if (tabs.find((tab) => tab.getAttribute("aria-selected") === "true")?.offsetParent === null) show(tabs[0]);
  });
  show(tabs.find((tab) => tab.getAttribute("aria-selected") === "true") ?? tabs[0]);
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) show(tab);
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const open = tabs.filter((tab) => tab.offsetParent !== null);
    show(open[(open.indexOf(document.activeElement) + step + open.length) % open.length], true);
  });
}

if (document.querySelector("form[data-task-form]")) import("./form.js");

const errors = document.querySelector("[data-errors]");
if (errors) {
  errors.focus();
  for (const wrong of document.querySelectorAll('[aria-invalid="true"]')) wrong.closest("details")?.setAttribute("open", "");
}
