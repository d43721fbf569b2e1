// The admin key, and asking /admin with it. The key lives as long as the tab does.

import { byId, el, setText } from "./dom.js";

const KEPT_AS = "hexsage-admin-key";
// The page may be served below a prefix: everything is asked for relative to it.
const BASE = new URL("admin/", document.baseURI);

export class Unauthorized extends Error {}
export class Refused extends Error {}

export function key() {
  return sessionStorage.getItem(KEPT_AS);
}

export function forgetKey() {
  sessionStorage.removeItem(KEPT_AS);
}

export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const given = key();
  if (given) headers.authorization = `Bearer ${given}`;
  const response = await fetch(new URL(path, BASE), { cache: "no-store", ...options, headers });
  if (response.status === 401) throw new Unauthorized(given ? "wrong" : "missing");
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    const message = told?.error?.message ?? `The gateway answered ${response.status}.`;
    throw new Refused(message);
  }
  return response;
}

export async function askJson(path, options = {}) {
  return (await ask(path, options)).json();
}

// Asks for the key until one is typed in; resolves when there is something to try.
let prompting = null;

export function askForKey(wasWrong) {
  prompting ??= prompt(wasWrong).finally(() => { prompting = null; });
  return prompting;
}

function prompt(wasWrong) {
  return new Promise((resolve) => {
    const input = el("input", {
      id: "key-input", type: "password", autocomplete: "off", required: true, spellcheck: "false",
      "aria-describedby": "key-wrong",
    });
    const wrong = el("p", { class: "wrong", id: "key-wrong", role: "alert" });
    const form = el("form", { method: "dialog" },
      el("label", { for: "key-input" }, "Admin key"), input, wrong,
      el("div", { class: "dialog-actions" },
        el("button", { class: "primary", type: "submit" }, "Show the dashboard")));
    const dialog = el("dialog", { class: "small", id: "key-prompt", "aria-labelledby": "key-title" },
      el("div", { class: "dialog-body" },
        el("h2", { id: "key-title" }, "This gateway asks for its admin key"),
        el("p", { class: "soft" },
          "It is the gateway's setting admin_key. It stays in this tab and is forgotten with it."),
        form));
    setText(wrong, wasWrong ? "That is not the key." : "");
    form.addEventListener("submit", () => {
      sessionStorage.setItem(KEPT_AS, input.value.trim());
      dialog.remove();
      byId("forget-key").hidden = false;
      resolve();
    });
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}
