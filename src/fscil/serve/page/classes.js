// The list of known classes: search, paging, thumbnails, forget.

import { classPath, request } from "./api.js";
import { $, create, photoCount, reportErrors, showNotice, thumbnailOf } from "./dom.js";
import { draw, model, predict, predictedPhotos } from "./photos.js";

const PAGE_SIZE = 60; // classes per request
const SEARCH_FROM = 9; // classes: with fewer, the search field is hidden
const SEARCH_DELAY = 200; // milliseconds after the last key

const thumbnails = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    thumbnails.unobserve(target);
    thumbnailOf(target.dataset.url, request)
      .then((image) => target.replaceChildren(image))
      .catch(() => {}); // the first letter stays
  }
}, { rootMargin: "200px" });

let latestRequest = 0; // responses to older requests are ignored

/** Fetches the classes from `offset` on; `highlighted` is the name of one that was just learned. */
export async function listClasses({ offset = 0, highlighted = null } = {}) {
  const number = ++latestRequest;
  const search = $("search").value.trim();
  const query = new URLSearchParams({ limit: PAGE_SIZE, offset, search, order: "name" });
  const found = await (await request(`classes?${query}`)).json();
  if (number !== latestRequest) return;
  model.mayEnroll = found.may_enroll;
  model.calibrated = found.calibrated;
  model.thresholds = found.thresholds;
  model.limits = found.limits;
  if (!offset) {
    thumbnails.disconnect();
    $("classes").replaceChildren();
    $("known-names").replaceChildren();
  }
  found.classes.forEach((info) => {
    $("classes").append(classItem(info, info.name === highlighted));
    $("known-names").append(create("option", { value: info.name }));
  });
  $("total").textContent = found.total || "";
  $("search").hidden = found.total < SEARCH_FROM && !search;
  $("empty").hidden = found.total > 0 || Boolean(search);
  $("none-found").hidden = found.total > 0 || !search;
  $("more").hidden = $("classes").childElementCount >= found.total;
  draw();
}

function classItem(info, highlighted) {
  const thumbnail = create("div", { className: "thumbnail", textContent: [...info.name][0] });
  if (info.thumbnail) {
    thumbnail.dataset.url = info.thumbnail;
    thumbnails.observe(thumbnail);
  }
  const origin = info.origin === "base" ? "from training" : shortDate(info.changed);
  const name = create("b", { textContent: info.name });
  const details = create("span", { textContent: `${photoCount(info.photos)} · ${origin}` });
  const item = create("li", { className: highlighted ? "new" : "" }, thumbnail, create("div", { className: "text" }, name, details));
  if (model.mayEnroll) item.append(forgetButton(info));
  return item;
}

function shortDate(text) {
  const date = new Date(text);
  const thisYear = date.getFullYear() === new Date().getFullYear();
  return date.toLocaleDateString(undefined, { day: "numeric", month: "short", ...(thisYear ? {} : { year: "numeric" }) });
}

function forgetButton(info) {
  const button = create("button", { type: "button", className: "subtle", textContent: "Forget" });
  button.setAttribute("aria-label", `Forget ${info.name}`);
  button.onclick = () => confirmForget(info);
  return button;
}

function confirmForget({ name, photos: count }) {
  $("forget-title").textContent = `Forget “${name}”?`;
  $("forget-message").textContent = `The class and what was learned from its ${photoCount(count)} will be deleted. This cannot be undone.`;
  $("forget-dialog").showModal();
  $("forget-form").onsubmit = () =>
    reportErrors(async () => {
      await request(classPath(name), { method: "DELETE" });
      showNotice(`Forgot “${name}”.`);
      await Promise.all([listClasses(), predict(predictedPhotos())]);
      $("choose").focus();
    });
}

$("forget-cancel").onclick = () => $("forget-dialog").close();

let searchTimer;
$("search").oninput = () => {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => reportErrors(() => listClasses()), SEARCH_DELAY);
};
$("more").onclick = () => reportErrors(() => listClasses({ offset: $("classes").childElementCount }));
