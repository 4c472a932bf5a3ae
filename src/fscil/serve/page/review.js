// The review: photos that the service did not know and has kept, to be named, refused or deleted.

import { jsonOf, request } from "./api.js";
import { listClasses } from "./classes.js";
import { confirmDeletion } from "./deletion.js";
import { $, photoCount, reportErrors, showNotice, thumbnailOf } from "./dom.js";
import { groupItem, keptItem } from "./kept.js";
import { enrolledText, refusedText } from "./learn.js";
import { model, predict, predictedPhotos, reviewing } from "./photos.js";
import { forgetThumbnails } from "./thumbnails.js";
import { hideWarnings, showWarnings } from "./warnings.js";

const PAGE_SIZE = 6; // photos that are shown at first, and then more at each click: answered ones make room for others
const GROUPS = 3; // that are shown at a time

let limit = PAGE_SIZE;
let latestRequest = 0; // responses to older requests are ignored
const drawn = { groups: new Map(), queue: new Map() }; // elements by what they show

/** Shows the section where the service keeps photos, or has kept some, and the client may use them. */
export async function openReview() {
  limit = PAGE_SIZE;
  $("review").hidden = true;
  if (model.mayEnroll) await load();
}

reviewing.reload = async () => {
  if (!$("review").hidden) await reportErrors(load, $("messages").parentElement);
};

async function load() {
  const number = ++latestRequest;
  const read = async (path) => (await request(path)).json();
  const [queue, { groups }] = await Promise.all([read(`review?limit=${limit}`), read("review/groups")]);
  if (number !== latestRequest) return;
  $("review").hidden = !queue.keeping && !queue.total;
  $("review-total").textContent = queue.total || "";
  $("review-about").textContent = aboutText(queue);
  $("delete-kept").hidden = !queue.total;
  drawList("groups", groups.slice(0, GROUPS), groupItem, ({ photos }) => JSON.stringify(photos.map(({ id }) => id)));
  $("more-groups").textContent = `${groups.length - GROUPS} more groups of similar photos follow when these are named or deleted.`;
  $("more-groups").hidden = groups.length <= GROUPS;
  drawList("queue", queue.photos, keptItem, JSON.stringify);
  $("more-kept").hidden = queue.photos.length >= queue.total;
}

function aboutText({ keeping, total, at_most: most }) {
  if (!keeping) return "These photos were kept earlier; further ones are not.";
  const bound = `at most ${photoCount(most)}, then the oldest are dropped`;
  if (!total) return `Nothing to review. Photos that are not known will wait here for a name (${bound}).`;
  return `Photos that were not known wait here for a name, the least certain first (${bound}).`;
}

/** Elements that show the same stay, with the text that somebody is typing and the focus. */
function drawList(id, items, element, keyOf) {
  const before = drawn[id];
  drawn[id] = new Map(items.map((item) => [keyOf(item), before.get(keyOf(item)) ?? element(item, actions)]));
  const wanted = [...drawn[id].values()];
  const shown = [...$(id).children];
  if (wanted.length === shown.length && wanted.every((each, index) => each === shown[index])) return;
  shown.filter((each) => !wanted.includes(each)).forEach(forgetThumbnails);
  const focused = document.activeElement;
  $(id).replaceChildren(...wanted);
  if ($(id).contains(focused)) focused.focus();
}

const actions = {
  name: (item, name, photos) => act(() => teach(name, photos), item),
  refuse: (item, name, photo) =>
    act(async () => {
      await request("review/not", { method: "POST", body: jsonOf({ name, photos: [photo.id] }) });
      showNotice(refusedText(photo.file, name));
      await modelChanged();
    }, item),
  remove: (item, photo) =>
    act(async () => {
      await request(`review/photos/${photo.id}`, { method: "DELETE" });
      showNotice(`Deleted ${photo.file}.`);
    }, item),
};

const modelChanged = (name) => Promise.all([listClasses({ highlighted: name }), load(), predict(predictedPhotos())]);

/** With `strict`, asks before photos are learned that the service has doubts about. */
async function teach(name, photos, strict = true) {
  hideWarnings();
  const body = jsonOf({ name, photos: photos.map(({ id }) => id) });
  try {
    const enrolled = await (await request(`review/name?strict=${strict}`, { method: "POST", body })).json();
    showNotice(enrolledText(enrolled, photos.length));
    await modelChanged(enrolled.name);
  } catch (error) {
    if (!error.warnings) throw error;
    showNotice("");
    showWarnings(error.warnings, (warning) => picturesOf(warning, photos), {
      learn: () => act(() => teach(name, photos, false)),
      cancel: () => $("review-title").focus(),
    });
  }
}

/** Of a warning about the whole class, the first photo. */
function picturesOf({ id, other_id: other }, photos) {
  const named = photos.filter((photo) => photo.id === id || photo.id === other);
  const shown = named.length ? named : photos.slice(0, 1);
  return shown.map((photo) => thumbnailOf(photo.thumbnail, request, photo.file));
}

let last = Promise.resolve(); // one action after the other, so that nobody has to wait before the next click

/** An item cannot be used while its action runs. Also after an error the list is read again: somebody else may have
 * named or deleted the photo. */
function act(action, item = null) {
  const list = item?.parentElement;
  if (item) item.inert = true;
  last = last.then(async () => {
    const place = list ? [...list.children].indexOf(item) : 0;
    await reportErrors(action, $("review"));
    await reportErrors(load, $("review"));
    if (item) item.inert = false;
    if (document.activeElement !== document.body) return;
    // Where the item was that may no longer be there.
    const next = list?.children[Math.min(place, list.children.length - 1)];
    (next ?? $("review-title")).focus();
  });
  return last;
}

$("more-kept").onclick = () => {
  limit += PAGE_SIZE;
  reportErrors(load, $("review"));
};

$("delete-kept").onclick = () => {
  const message = "The thumbnails, features, hashes and file names of all photos that wait here will be deleted. This cannot be undone.";
  confirmDeletion({ title: "Delete all kept photos?", message, verb: "Delete all" }, () =>
    act(async () => {
      const { forgotten } = await (await request("review", { method: "DELETE" })).json();
      showNotice(`Deleted ${photoCount(forgotten)}.`);
    }),
  );
};
