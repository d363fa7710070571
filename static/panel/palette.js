// The palette: hits come from the server with the rights of this moment; a choice is a link or a POST button.

const dialog = document.getElementById("palette");
const form = (dialog ?? document).querySelector("[data-palette-form]");

if (form) {
  const field = form.querySelector("input");
  const hits = form.parentElement.querySelector("[data-hits]");
  let asked = null;
  let timer;

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

  const ask = async () => {
    const wanted = field.value.trim();
    if (wanted === asked) return;
    asked = wanted;
    try {
      const answer = await fetch(`${form.action}?q=${encodeURIComponent(wanted)}`, { headers: { "X-Part": "1" }, credentials: "same-origin" });
      if (answer.status === 401) return location.reload();
      const text = await answer.text();
      if (wanted !== asked || !answer.ok) return;
      hits.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
      choose(0);
    } catch {
      asked = null; // The next letter asks again.
    }
  };

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, 120);
  });
  form.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.findIndex((item) => item.classList.contains("ql-at"));
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && all.length) {
      event.preventDefault();
      choose((at + step + all.length) % all.length);
    }
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(timer);
    await ask();
    (hits.querySelector(".ql-at") ?? items()[0])?.click();
  });

  const open = () => {
    if (!dialog || dialog.open) return;
    for (const menu of document.querySelectorAll("details.ql-menu[open]")) menu.open = false;
    document.getElementById("side")?.hidePopover?.();
    asked = null;
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
