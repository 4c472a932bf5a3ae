// Requests to the HTTP API, with the key where one is required.

import { $ } from "./dom.js";

const KEY = "fscil-key"; // in the session storage
const KEY_REQUIRED = "This service requires a key.";
const TOKEN_REQUIRED = "Open the address that the service printed when it was started, or enter the token in it here.";

/** Fetches a path of the service; asks for a key after 401. An error has the message, status and warnings of the response. */
export async function request(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch {
      throw new Error("The service does not respond. Is it still running?");
    }
    if (response.ok) return response;
    const { error = `The service responded with status ${response.status}.`, warnings } = await response.json().catch(() => ({}));
    if (response.status !== 401) throw Object.assign(new Error(error), { status: response.status, warnings });
    // Unless another request has asked for a new key meanwhile.
    const wantsToken = (response.headers.get("WWW-Authenticate") ?? "").includes("token");
    if (sessionStorage.getItem(KEY) === key) await askForKey(key ? error : wantsToken ? TOKEN_REQUIRED : KEY_REQUIRED);
  }
}

/** Browsers take a "." or ".." in a path, however it is encoded, for a folder: the service would not get it as a name. */
export function classPath(name) {
  if (/^\.{1,2}$/.test(name)) throw new Error(`"${name}" means a folder, no class can have this name. Choose another.`);
  return `classes/${encodeURIComponent(name)}`;
}

export function formOf(files) {
  const data = new FormData();
  files.forEach((file) => data.append("files", file, file.name || "photo.jpg"));
  return data;
}

export const jsonOf = (value) => new Blob([JSON.stringify(value)], { type: "application/json" });

let pendingKey = null; // one dialog for all requests that wait for a key

export function askForKey(message) {
  pendingKey ??= new Promise((resolve, reject) => {
    const dialog = $("key-dialog");
    $("key-message").textContent = message;
    $("key").value = "";
    dialog.showModal();
    $("key-form").onsubmit = () => {
      sessionStorage.setItem(KEY, $("key").value.trim());
      $("change-key").hidden = false;
      resolve();
    };
    dialog.onclose = () => {
      pendingKey = null;
      reject(new Error("Without a key this service cannot be used. Reload the page to enter one."));
    };
  });
  return pendingKey;
}

$("key-cancel").onclick = () => $("key-dialog").close();
$("change-key").hidden = !sessionStorage.getItem(KEY);
