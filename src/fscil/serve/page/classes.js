// The list of known classes: search, paging, thumbnails, forget.

import { classPath, request } from "./api.js";
import { confirmDeletion } from "./deletion.js";
import { $, create, photoCount, reportErrors, shortDate, showNotice } from "./dom.js";
import { draw, model, predict, predictedPhotos } from "./photos.js";
import { forgetThumbnails, loadWhenSeen } from "./thumbnails.js";

const PAGE_SIZE = 60; // classes per request
const SEARCH_FROM = 9; // classes: with fewer, the search field is hidden
const SEARCH_DELAY = 200; // milliseconds after the last key

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
    forgetThumbnails($("classes"));
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
  if (info.thumbnail) loadWhenSeen(thumbnail, info.thumbnail);
  const origin = info.origin === "base" ? "from training" : shortDate(info.changed);
  const name = create("b", { textContent: info.name });
  const details = create("span", { textContent: `${photoCount(info.photos)} · ${origin}` });
  const item = create("li", { className: highlighted ? "new" : "" }, thumbnail, create("div", { className: "text" }, name, details));
  if (model.mayEnroll) item.append(forgetButton(info));
  return item;
}

function forgetButton(info) {
  const button = create("button", { type: "button", className: "subtle", textContent: "Forget" });
  button.setAttribute("aria-label", `Forget ${info.name}`);
  button.onclick = () => confirmForget(info);
  return button;
}

function confirmForget({ name, photos: count }) {
  const message = `The class and what was learned from its ${photoCount(count)} will be deleted. This cannot be undone.`;
  confirmDeletion({ title: `Forget “${name}”?`, message, verb: "Forget" }, () =>
    reportErrors(async () => {
      await request(classPath(name), { method: "DELETE" });
      showNotice(`Forgot “${name}”.`);
      await Promise.all([listClasses(), predict(predictedPhotos())]);
      $("choose").focus();
    }),
  );
}

let searchTimer;
$("search").oninput = () => {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => reportErrors(() => listClasses()), SEARCH_DELAY);
};
$("more").onclick = () => reportErrors(() => listClasses({ offset: $("classes").childElementCount }));
