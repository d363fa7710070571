// The schedule builder: parts by kind, presets that write the rule, and what it means while it is typed.

const WAIT_MS = 250;

export function upgradeBuilders(root) {
  for (const builder of root.querySelectorAll("[data-builder-form]")) upgrade(builder);
}

function upgrade(builder) {
  const form = builder.closest("form");
  const field = (name) => builder.querySelector(`[name="${name}"]`);
  const kind = () => builder.querySelector('[name="t_kind"]:checked, [type=hidden][name="t_kind"]').value;
  field("t_viewer").value = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";
  zones(builder);

  const parts = () => {
    for (const part of builder.querySelectorAll("[data-for]")) part.hidden = !part.dataset.for.split(" ").includes(kind());
  };

  // What the rule means, asked for a moment after the last key; an older answer never covers a newer one.
  let asked = 0;
  let timer = 0;
  const ask = async () => {
    const number = ++asked;
    const place = builder.querySelector("[data-meaning]");
    const empty = (kind() === "cron" && !field("t_schedule").value.trim()) || (kind() === "once" && !field("t_at").value);
    if (!["cron", "interval", "once"].includes(kind()) || empty) return place.replaceChildren();
    const query = new URLSearchParams([...new FormData(form)].filter(([name]) => name.startsWith("t_") && name !== "t_input"));
    try {
      const answer = await fetch(`${builder.dataset.preview}?${query}`, { headers: { "X-Part": "1" } });
      if (number !== asked || !answer.ok) return;
      place.innerHTML = await answer.text();
      const wrong = place.querySelector(".ql-error");
      if (kind() === "cron") field("t_schedule").toggleAttribute("aria-invalid", false);
      if (wrong && kind() === "cron") field("t_schedule").setAttribute("aria-invalid", "true");
    } catch {
      // The next key asks again.
    }
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(ask, WAIT_MS);
  };
  builder.addEventListener("input", (event) => {
    if (event.target.name === "t_kind") parts();
    if (!event.target.dataset.set && event.target.name !== "t_input") soon();
  });
  builder.addEventListener("change", parts);
  parts();
  if (builder.querySelector("[data-meaning]").textContent.trim() === "" || field("t_viewer").value) ask();

  presets(builder, () => {
    field("t_schedule").dispatchEvent(new Event("input", { bubbles: true }));
    ask();
  });
}

function presets(builder, written) {
  const row = builder.querySelector("[data-presets]");
  if (!row) return;
  const parts = row.querySelector("[data-preset-parts]");
  const value = (name) => row.querySelector(`[data-set="${name}"]`).value;
  let chosen = "";
  const write = () => {
    const [hour, minute] = value("time").split(":").map(Number);
    const rules = {
      minutes: `*/${value("n")} * * * *`.replace("*/1 ", "* "),
      hourly: `${Number(value("minute"))} * * * *`,
      daily: `${minute} ${hour} * * *`,
      weekly: `${minute} ${hour} * * ${value("weekday")}`,
      monthly: `${minute} ${hour} ${Number(value("day"))} * *`,
    };
    builder.querySelector('[name="t_schedule"]').value = rules[chosen];
    written();
  };
  row.hidden = false;
  row.addEventListener("click", (event) => {
    const pill = event.target.closest("[data-preset]");
    if (!pill) return;
    chosen = pill.dataset.preset;
    for (const one of row.querySelectorAll("[data-preset]")) one.setAttribute("aria-pressed", String(one === pill));
    for (const part of parts.querySelectorAll("[data-part]")) part.hidden = !part.dataset.part.split(" ").includes(chosen);
    parts.hidden = false;
    write();
  });
  parts.addEventListener("input", (event) => {
    event.stopPropagation();
    if (chosen) write();
  });
}

// The zones the browser knows, as suggestions: no need to send them.
function zones(builder) {
  if (document.getElementById("zones") || !Intl.supportedValuesOf) return;
  const list = document.createElement("datalist");
  list.id = "zones";
  for (const zone of ["UTC", ...Intl.supportedValuesOf("timeZone")]) list.append(new Option(zone, zone));
  document.body.append(list);
}
