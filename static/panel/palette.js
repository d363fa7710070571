// The palette: hits come from the server with the rights of this moment; a choice is a link or a POST button.

const dialog = document.getElementById("palette");
const form = (dialog ?? document).querySelector("[data-palette-form]");

if (form) {
  const field = form.querySelector("input");
  const hits = form.parentElement.querySelector("[data-hits]");
  let asked = null;
  let answered = Promise.resolve(false);
  let timer;

  const question = () => field.value.trim();
  const items = () => [...hits.querySelectorAll("li > :is(a, button)")];
  const choose = (at) => {
    const all = items();
    all.forEach((item, index) => {
      item.classList.toggle("ql-at", index === at);
      item.id = `hit-${index}`;
    });
    if (all[at]) field.setAttribute("aria-activedescendant", `hit-${at}`);
    else field.removeAttribute("aria-activedescendant");
    all[at]?.scrollIntoView({ block: "nearest" });
  };

  // Answers whether the hits shown are those of what stands in the field.
  const ask = () => {
    clearTimeout(timer);
    if (question() !== asked) {
      asked = question();
      answered = answer(asked);
    }
    return answered;
  };
  const answer = async (wanted) => {
    try {
      const found = await fetch(`${form.action}?q=${encodeURIComponent(wanted)}`, { headers: { "X-Part": "1" }, credentials: "same-origin" });
      if (found.status === 401) location.reload();
      const text = await found.text();
      if (wanted !== asked) return answered;
      if (!found.ok) throw new Error(found.statusText);
      hits.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
      choose(0);
      return true;
    } catch {
      if (wanted === asked) asked = null; // The next letter or key asks again.
      return false;
    }
  };

  // A key waits for the answer to what it was pressed for; who typed on or closed meanwhile wants nothing of it.
  const act = async (key) => {
    const wanted = question();
    const fits = await ask();
    if (wanted !== question() || (dialog && !dialog.open)) return;
    const all = items();
    const at = all.findIndex((item) => item.classList.contains("ql-at"));
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (step && fits && all.length) choose((at + step + all.length) % all.length);
    else if (!step && fits) all[at]?.click();
    else if (!step) form.submit(); // Without an answer its page says why.
  };

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, 120);
  });
  form.addEventListener("keydown", (event) => {
    const closes = event.key === "Escape" && dialog; // A search field would only be emptied by it.
    if (event.isComposing || (!closes && !["ArrowDown", "ArrowUp"].includes(event.key))) return;
    event.preventDefault();
    if (closes) dialog.close();
    else act(event.key);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act("Enter");
  });

  const open = () => {
    if (!dialog || dialog.open) return;
    for (const menu of document.querySelectorAll("details.ql-menu[open]")) menu.open = false;
    document.getElementById("side")?.hidePopover?.();
    asked = null; // Who opens it sees the rights and runs of this moment.
    dialog.showModal();
    field.select();
    ask();
  };
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-palette]") && dialog) {
      event.preventDefault();
      open();
    }
  });
  if (!dialog) choose(0);
}
