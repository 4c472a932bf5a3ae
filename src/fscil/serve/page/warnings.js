// What the service finds doubtful, with pictures, before anything is learned.

import { request } from "./api.js";
import { $, create, thumbnailOf } from "./dom.js";

/** `pictures(warning)`: promises of images of the photos that it is about; `actions`: learn() anyway, or cancel(). */
export function showWarnings(warnings, pictures, { learn, cancel }) {
  $("warning-list").replaceChildren(...warnings.map((warning) => warningItem(warning, pictures(warning))));
  $("learn-anyway").onclick = learn;
  $("learn-not").onclick = () => {
    hideWarnings();
    cancel();
  };
  $("warnings").hidden = false;
  $("learn-anyway").focus();
}

export const hideWarnings = () => ($("warnings").hidden = true);

/** The photos that a warning is about, and the enrolled one to compare them with. */
function warningItem({ message, thumbnail }, pictures) {
  const shown = create("span", { className: "pictures" });
  const promised = thumbnail ? [...pictures, thumbnailOf(thumbnail, request, "enrolled photo")] : pictures;
  Promise.allSettled(promised).then((images) => shown.append(...images.flatMap(({ value }) => value ?? [])));
  return create("li", {}, shown, create("span", { textContent: message }));
}
