// The task form: parts by kind, unsaved work that is never lost, keys, rows of values, Tab in the plain editor.

const form = document.querySelector("form[data-task-form]");
const unsaved = form.querySelector("[data-unsaved]");
// The fields of a row, the first one its name.
const ROWS = { env: ["env_name", "env_value"], secret: ["secret_variable", "secret_name", "secret_way"] };

const choose = () => {
  const kind = form.elements.kind.value;
  for (const part of form.querySelectorAll("[data-kind]")) part.hidden = part.dataset.kind !== kind;
  for (const editor of form.querySelectorAll("ql-editor")) editor.refresh?.();
};
const overlap = () => {
  const parallel = form.querySelector("[data-parallel]");
  if (parallel) parallel.hidden = form.elements.concurrency.value !== "parallel";
};
choose();
overlap();

// Work is kept in this tab until it is saved: a closed page, a lost session or a server that is away cost nothing.
const KEY = `ql-draft:${form.dataset.draft}`;
const NOT_KEPT = new Set(["csrfmiddlewaretoken", "once", "version", "t_viewer"]);
const content = () => JSON.stringify([...new FormData(form)].filter(([name]) => !NOT_KEPT.has(name)));
const first = content();
let dirty = form.dataset.shownAgain === "1";
let timer = 0;

function keep() {
  clearTimeout(timer);
  timer = setTimeout(keepNow, 300);
}
function keepNow() {
  clearTimeout(timer);
  try {
    if (dirty) sessionStorage.setItem(KEY, content());
  } catch {
    // Full or forbidden: the page still warns before it is left.
  }
}
function forget() {
  clearTimeout(timer);
  dirty = false;
  sessionStorage.removeItem(KEY);
}
form.addEventListener("input", (event) => {
  if (event.target.closest("[data-builder-form]") && event.target.dataset.set) return;
  dirty = content() !== first || form.dataset.shownAgain === "1";
  unsaved.hidden = !dirty;
  choose();
  overlap();
  keep();
});
if (dirty) unsaved.hidden = false;
window.addEventListener("beforeunload", (event) => dirty && event.preventDefault());
window.addEventListener("pagehide", keepNow);

const note = document.querySelector("[data-draft-note]");
const kept = sessionStorage.getItem(KEY);
if (kept && kept !== first && form.dataset.shownAgain !== "1") note.hidden = false;
else if (form.dataset.shownAgain !== "1") sessionStorage.removeItem(KEY);
note.querySelector("[data-draft-back]").addEventListener("click", () => {
  putBack(JSON.parse(kept));
  note.hidden = true;
});
note.querySelector("[data-draft-drop]").addEventListener("click", () => {
  forget();
  note.hidden = true;
});
for (const link of document.querySelectorAll("[data-draft-forget]")) link.addEventListener("click", () => form.dataset.shownAgain === "1" && forget());

function putBack(entries) {
  for (const [kind, fields] of Object.entries(ROWS)) {
    const columns = fields.map((field) => entries.filter(([name]) => name === field).map(([, value]) => value));
    const rows = columns[0].map((name, index) => columns.map((column) => column[index] ?? ""));
    const box = form.querySelector(`[data-rows-of="${kind}"]`);
    box.replaceChildren();
    for (const values of [...rows.filter(([name, value]) => name || value), []]) box.append(row(kind, values));
  }
  for (const [name, value] of entries) {
    if (Object.values(ROWS).flat().includes(name)) continue;
    const element = form.elements[name];
    if (!element) continue;
    if (element instanceof RadioNodeList) element.value = value;
    else if (element.type === "checkbox") element.checked = true;
    else element.value = value;
    element.dispatchEvent?.(new Event("ql-set"));
  }
  form.querySelector("[data-builder-form]")?.dispatchEvent(new Event("change"));
  form.dispatchEvent(new Event("input"));
}

// Sent by script, so that a server that is away takes nothing with it; its refusals come as the page they always were.
let sending = false;
form.addEventListener("submit", async (event) => {
  if (form.dataset.plain) return;
  event.preventDefault();
  // A second click makes no second task.
  if (sending) return;
  sending = true;
  const button = event.submitter;
  const failure = document.querySelector("[data-send-failed]");
  dirty = true;
  keepNow();
  failure.hidden = true;
  let answer = null;
  try {
    answer = await fetch(form.action, { method: "POST", body: new FormData(form, button), headers: { "X-Form": "1" } });
  } catch {
    answer = null;
  }
  sending = answer?.status === 204;
  delete form.dataset.sent;
  if (answer?.status === 204) {
    forget();
    location.assign(answer.headers.get("X-Location"));
  } else if (!answer || answer.status >= 500) {
    failure.hidden = false;
    failure.scrollIntoView({ block: "center" });
  } else if (answer.redirected) {
    // Signed out meanwhile: back here after signing in, where what was typed is offered again.
    dirty = false;
    location.assign(answer.url);
  } else {
    const chosen = document.createElement("input");
    Object.assign(chosen, { type: "hidden", name: "do", value: button?.value ?? "save" });
    form.append(chosen);
    form.dataset.plain = "1";
    dirty = false;
    form.submit();
  }
});

// Enter in a line of text saves; running is never by accident.
form.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.ctrlKey || event.metaKey || event.isComposing || !event.target.matches("input:not([type=radio], [type=checkbox])")) return;
  event.preventDefault();
  form.requestSubmit(form.querySelector('.ql-save button[value="save"]'));
});
document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || document.querySelector("dialog[open]")) return;
  const name = event.key === "s" ? "save" : event.key === "Enter" ? "save-and-run" : "";
  const button = name && form.querySelector(`button[value="${name}"]`);
  if (!button) return;
  event.preventDefault();
  form.requestSubmit(button);
});

// Rows of values and of secrets.
function row(kind, values) {
  const made = form.querySelector(`template[data-row-of="${kind}"]`).content.cloneNode(true).firstElementChild;
  for (const [index, field] of ROWS[kind].entries()) {
    if (values[index] !== undefined) made.querySelector(`[name="${field}"]`).value = values[index];
  }
  made.querySelector("[data-remove-pair]").hidden = false;
  const area = made.querySelector("textarea");
  if (area) fit(area);
  return made;
}
const pair = (name, value) => row("env", [name, value]);
function fit(area) {
  area.rows = Math.min(12, area.value.split("\n").length);
}
form.addEventListener("click", (event) => {
  const remover = event.target.closest("[data-remove-pair]");
  if (remover) {
    remover.closest(".ql-pair").remove();
    form.dispatchEvent(new Event("input"));
  }
  const adder = event.target.closest("[data-add-row]");
  if (adder) {
    const made = row(adder.dataset.addRow, []);
    form.querySelector(`[data-rows-of="${adder.dataset.addRow}"]`).append(made);
    made.querySelector("input").focus();
  }
});
form.addEventListener("input", (event) => {
  if (event.target.name === "env_value") fit(event.target);
  for (const [kind, [field]] of Object.entries(ROWS)) {
    const named = [...form.querySelectorAll(`[name="${field}"]`)].filter((one) => one.value).length;
    const place = form.querySelector(`[data-count-of="${kind}"]`);
    place.textContent = named ? String(named) : place.dataset.none;
  }
});
for (const area of form.querySelectorAll("[name=env_value]")) fit(area);
for (const element of form.querySelectorAll("[data-remove-pair], [data-add-row]")) element.hidden = false;
// Lines of NAME=value pasted into a name become rows, byte for byte; a line without a name goes on with the value
// above it, empty lines and comments between two names are left out.
const LINE = /^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=/m;
form.addEventListener("paste", (event) => {
  const name = event.target.closest?.(".ql-pair [name=env_name]");
  const text = event.clipboardData.getData("text").replace(/\r\n?/g, "\n");
  if (!name || !LINE.test(text)) return;
  event.preventDefault();
  let row = name.closest(".ql-pair");
  let begun = false;
  for (const [key, value] of assignments(text)) {
    if (begun || row.querySelector("textarea").value) {
      const next = pair("", "");
      row.after(next);
      row = next;
    }
    begun = true;
    row.querySelector("input").value = key;
    row.querySelector("textarea").value = value;
    fit(row.querySelector("textarea"));
  }
  form.dispatchEvent(new Event("input"));
});
function assignments(text) {
  const found = [];
  let between = [];
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (match) found.push([match[1], line.slice(match[0].length)]);
    else if (!line.trim() || line.startsWith("#")) {
      between.push(line);
      continue;
    } else if (found.length) found.at(-1)[1] += ["", ...between, line].join("\n");
    between = [];
  }
  return found;
}

// Values that look like secrets: one press keeps them in the vault, and the row becomes a reference.
const WORDS = /(^|_)(PASS|PASSWD|PASSWORD|PASSPHRASE|PWD|SECRETS?|TOKENS?|APIKEY|KEY|CREDENTIALS?|COOKIES?|AUTH)(_?\d+)?$/i;
const SHAPES = /-----BEGIN [A-Z ]*PRIVATE KEY-----|^gh[opsu]_\w{20}|^xox[abp]-|^AKIA[A-Z0-9]{12}|^eyJ[\w-]+\.[\w-]+\.|:\/\/[^/\s:@]+:[^/\s@]+@/;
const keepable = (name, value) => value !== "" && name !== "" && (WORDS.test(name) || SHAPES.test(value));
const hint = form.querySelector("template[data-keep-hint]").content.firstElementChild;
function hints() {
  for (const one of form.querySelectorAll('[data-rows-of="env"] .ql-pair')) {
    const [name, value] = ROWS.env.map((field) => one.querySelector(`[name="${field}"]`).value);
    const shown = one.querySelector(".ql-keep");
    if (!keepable(name, value)) shown?.remove();
    else if (!shown) one.append(hint.cloneNode(true));
  }
}
hints();
form.addEventListener("input", hints);
form.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-keep]");
  if (!button || button.disabled) return;
  const one = button.closest(".ql-pair");
  const [variable, value] = ROWS.env.map((field) => one.querySelector(`[name="${field}"]`).value);
  const sent = new FormData();
  for (const [name, text] of Object.entries({ variable, value, task: form.dataset.task, csrfmiddlewaretoken: form.elements.csrfmiddlewaretoken.value })) sent.set(name, text);
  button.disabled = true;
  let answer = null;
  let told = {};
  try {
    answer = await fetch(form.dataset.keepAt, { method: "POST", body: sent });
    told = await answer.json();
  } catch {
    told = {};
  }
  button.disabled = false;
  if (!answer?.ok || !told.name) {
    let said = one.querySelector(".ql-wrong");
    if (!said) one.querySelector(".ql-keep").append((said = Object.assign(document.createElement("span"), { className: "ql-wrong" })));
    said.textContent = told.detail ?? form.dataset.keepFailed;
    return;
  }
  one.remove();
  const made = row("secret", [variable, told.name, "env"]);
  const box = form.querySelector('[data-rows-of="secret"]');
  const empty = [...box.children].find((other) => !other.querySelector("[name=secret_variable]").value && !other.querySelector("[name=secret_name]").value);
  box.insertBefore(made, empty ?? null);
  box.closest("details").open = true;
  form.querySelector("[data-kept]").hidden = false;
  form.dispatchEvent(new Event("input"));
  made.querySelector("[name=secret_name]").focus();
});

// Starter texts.
const starters = form.querySelector("[data-starters]");
starters?.addEventListener("click", (event) => {
  const link = event.target.closest("[data-starter]");
  if (!link) return;
  event.preventDefault();
  const set = (field, value) => {
    field.value = value;
    field.dispatchEvent(new Event("ql-set"));
    field.dispatchEvent(new Event("change"));
  };
  set(form.elements.language, link.dataset.starter);
  set(form.elements.source, JSON.parse(starters.dataset.starters)[link.dataset.starter]);
  form.dispatchEvent(new Event("input"));
});

// The editor over the whole page.
const full = form.querySelector("[data-full-page]");
if (full) {
  full.hidden = false;
  full.addEventListener("click", () => {
    const on = form.querySelector(".ql-body-part").classList.toggle("ql-full-page");
    full.setAttribute("aria-pressed", String(on));
    full.querySelector("[data-open-text]").hidden = on;
    full.querySelector("[data-close-text]").hidden = !on;
    document.documentElement.classList.toggle("ql-still", on);
    const editor = [...form.querySelectorAll("ql-editor")].find((one) => one.offsetParent);
    editor?.refresh();
    editor?.focus();
  });
}

// Tab writes a tab in the plain text box; Escape and then Tab leaves it.
for (const editor of form.querySelectorAll("textarea.ql-editor")) {
  let leaving = false;
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leaving = true;
    else if (event.key === "Tab" && !leaving && !event.shiftKey) {
      event.preventDefault();
      const text = form.elements.language?.value === "python" ? "    " : "\t";
      if (!document.execCommand("insertText", false, text)) editor.setRangeText(text, editor.selectionStart, editor.selectionEnd, "end");
    } else if (event.key !== "Shift") leaving = false;
  });
  editor.addEventListener("blur", () => (leaving = false));
}
