// Thumbnails that are fetched when they come into view.

import { request } from "./api.js";
import { thumbnailOf } from "./dom.js";

const addresses = new Map(); // of elements that have not been in view yet

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    const path = addresses.get(target);
    forget(target);
    thumbnailOf(path, request)
      .then((image) => target.replaceChildren(image))
      .catch(() => {}); // what is in its place stays
  }
}, { rootMargin: "200px" });

function forget(element) {
  observer.unobserve(element);
  addresses.delete(element);
}

/** Puts the image of a path of the service into an element, once it is in view or nearly so. */
export function loadWhenSeen(element, path) {
  addresses.set(element, path);
  observer.observe(element);
}

/** Those in this element are no longer waited for. */
export function forgetThumbnails(container) {
  [...addresses.keys()].filter((element) => container.contains(element)).forEach(forget);
}
