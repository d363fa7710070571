// Passkeys: a form that is marked gets an answer of the browser before it is sent. Without them it stays hidden.

const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
const text = (buffer) =>
  buffer == null ? undefined
    : btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

function understood(options) {
  const ids = (list) => list?.map((one) => ({ ...one, id: bytes(one.id) }));
  return {
    ...options,
    challenge: bytes(options.challenge),
    ...(options.user && { user: { ...options.user, id: bytes(options.user.id) } }),
    ...(options.allowCredentials && { allowCredentials: ids(options.allowCredentials) }),
    ...(options.excludeCredentials && { excludeCredentials: ids(options.excludeCredentials) }),
  };
}

function written(credential) {
  const { response } = credential;
  return JSON.stringify({
    id: credential.id,
    rawId: text(credential.rawId),
    type: credential.type,
    authenticatorAttachment: credential.authenticatorAttachment ?? undefined,
    clientExtensionResults: credential.getClientExtensionResults(),
    response: {
      clientDataJSON: text(response.clientDataJSON),
      attestationObject: text(response.attestationObject),
      transports: response.getTransports?.(),
      authenticatorData: response.attestationObject ? undefined : text(response.authenticatorData),
      signature: text(response.signature),
      userHandle: text(response.userHandle),
    },
  });
}

async function ask(form) {
  const answer = await fetch(form.dataset.ask, { method: "POST", body: new FormData(form), credentials: "same-origin" });
  if (!answer.ok) throw new Error("refused");
  const publicKey = understood(await answer.json());
  const make = form.dataset.passkey === "make";
  return make ? navigator.credentials.create({ publicKey }) : navigator.credentials.get({ publicKey });
}

for (const form of window.PublicKeyCredential ? document.querySelectorAll("form[data-passkey]") : []) {
  form.hidden = false;
  for (const one of document.querySelectorAll("[data-without-passkeys]")) one.hidden = true;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    const wrong = form.querySelector(".ql-wrong");
    button.disabled = true;
    wrong.hidden = true;
    try {
      form.elements.answer.value = written(await ask(form));
      form.submit();
    } catch {
      wrong.hidden = false;
      button.disabled = false;
    }
  });
}
