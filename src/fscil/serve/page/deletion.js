// The dialog before something is deleted for good.

import { $ } from "./dom.js";

/** `action` is called if it is confirmed by the button with this verb. */
export function confirmDeletion({ title, message, verb }, action) {
  $("forget-title").textContent = title;
  $("forget-message").textContent = message;
  $("forget-confirm").textContent = verb;
  $("forget-dialog").showModal();
  $("forget-form").onsubmit = action;
}

$("forget-cancel").onclick = () => $("forget-dialog").close();
