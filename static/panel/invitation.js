// The secret of an invitation stands behind the # of its address: into the form with it, and out of the address.

const PLACE = "ql-invitation";
const form = document.querySelector("[data-invitation]");
const shown = document.querySelector("input[name=secret]");
const secret = location.hash.slice(1) || sessionStorage.getItem(PLACE) || shown?.value || "";
sessionStorage.removeItem(PLACE);
if (location.hash) history.replaceState(null, "", location.pathname);
if (form && secret) {
  form.elements.secret.value = secret;
  form.requestSubmit();
}

// Another language leads back here.
document.querySelector(".ql-languages")?.addEventListener("submit", () => {
  if (secret) sessionStorage.setItem(PLACE, secret);
});
// A second link in the same tab.
window.addEventListener("hashchange", () => {
  if (!location.hash) return;
  sessionStorage.setItem(PLACE, location.hash.slice(1));
  location.assign(location.pathname);
});
