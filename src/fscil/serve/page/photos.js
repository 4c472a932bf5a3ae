// The selected photos and their predictions.

import { formOf, request } from "./api.js";
import { $, clearMessages, create } from "./dom.js";
import { predictionParts, thresholdText, verdict } from "./verdict.js";

const MAX_CONCURRENT_REQUESTS = 4;
const INVALID_PHOTO = [413, 415, 422]; // statuses of a photo the service cannot use

export const photos = []; // {file, url, state: "pending" | "predicted" | "invalid" | "failed", prediction, error}
// From the last list of classes.
export const model = { mayEnroll: true, calibrated: false, thresholds: null, limits: { photos: 32, bytes: 2 ** 26 } };
let selected = null; // the photo whose prediction is shown

export const usablePhotos = () => photos.filter(({ state }) => state !== "invalid");
/** The photos that a name in the form is given to. */
export const namedPhotos = () => ($("only-shown").checked ? usablePhotos().filter((photo) => photo === selected) : usablePhotos());
export const predictedPhotos = () => photos.filter(({ state }) => state === "predicted");

export function clearPhotos() {
  photos.splice(0).forEach(({ url }) => URL.revokeObjectURL(url));
  selected = null;
}

/** Shows files and their predictions, instead of the photos shown or, with `add`, beside them. */
export async function showPhotos(files, { add = false } = {}) {
  const added = [...files].map((file) => ({ file, url: URL.createObjectURL(file), state: "pending" }));
  if (!added.length) return;
  clearMessages();
  if (!add) clearPhotos();
  photos.push(...added);
  selected = added[0];
  draw();
  await predict(added);
}

export async function predict(wanted) {
  wanted.filter(({ state }) => state === "failed").forEach((photo) => (photo.state = "pending"));
  draw();
  const queue = [...wanted];
  const worker = async () => {
    for (let photo = queue.shift(); photo; photo = queue.shift()) {
      try {
        // Sent again, a photo is not kept again: it may have been deleted from the review since.
        const path = `predict?top=5&keep=${!photo.prediction}`;
        const response = await request(path, { method: "POST", body: formOf([photo.file]) });
        [photo.prediction] = (await response.json()).predictions;
        photo.state = "predicted";
      } catch (error) {
        photo.error = error.message;
        photo.state = INVALID_PHOTO.includes(error.status) ? "invalid" : "failed";
      }
      draw();
    }
  };
  await Promise.all(Array.from({ length: MAX_CONCURRENT_REQUESTS }, worker));
  await reviewing.reload(); // some of the photos may have been kept
}

function removePhoto(photo) {
  const index = photos.indexOf(photo);
  photos.splice(index, 1);
  URL.revokeObjectURL(photo.url);
  if (selected === photo) selected = photos[Math.min(index, photos.length - 1)] ?? null;
  draw();
  ($("strip").children[index] ?? $("strip").lastElementChild)?.querySelector("button").focus();
  if (!photos.length) $("choose").focus();
}

export function draw() {
  $("results").hidden = !photos.length;
  $("drop").classList.toggle("small", photos.length > 0);
  drawStrip();
  if (!selected) return;
  if ($("preview").src !== selected.url) $("preview").src = selected.url;
  $("preview").hidden = Boolean(selected.noPreview);
  $("preview").alt = selected.file.name || "photo";
  drawPrediction(selected);
  const usable = usablePhotos().length;
  $("learn").hidden = !model.mayEnroll || !usable;
  $("which").hidden = photos.length < 2 || selected.state === "invalid";
  if ($("which").hidden) $("only-shown").checked = false;
  $("read-only").hidden = model.mayEnroll;
  $("thresholds").textContent = thresholdText(model);
  const named = namedPhotos().length;
  $("learn-button").textContent = named > 1 ? `Learn from ${named} photos` : "Learn";
}

/** The same elements stay while the prediction does, so that the focus is not lost. */
function drawPrediction(photo) {
  const shown = JSON.stringify([photo.url, photo.state, photo.prediction, photo.error, model]);
  if ($("prediction").dataset.shown === shown) return;
  const parts = predictionParts(photo, model, {
    retry: () => predict(photos.filter(({ state }) => state === "failed")),
    confirm: (name) => learning.confirm(name, [photo]),
    refuse: (name) => learning.refuse(name, photo),
    choose: (name) => {
      $("name").value = name;
      $("name").focus();
    },
  });
  const focused = $("prediction").contains(document.activeElement);
  $("prediction").replaceChildren(...parts);
  if (focused) parts[0].focus({ preventScroll: true });
  $("prediction").dataset.shown = shown;
  $("announcement").textContent = parts[0].dataset.announcement;
}

export const learning = { confirm: async () => {}, refuse: async () => {} }; // set by learn.js, which needs this module

export const reviewing = { reload: async () => {} }; // set by review.js, which needs this module

$("only-shown").onchange = () => draw();

function drawStrip() {
  const focused = [...$("strip").children].findIndex((item) => item.contains(document.activeElement));
  $("strip").replaceChildren(...photos.map(stripItem), create("li", {}, addButton()));
  if (focused >= 0) $("strip").children[focused]?.querySelector("button").focus();
}

function stripItem(photo, index) {
  const image = create("img", { src: photo.url, alt: "" });
  image.onerror = () => image.replaceWith("?");
  const { text, kind } = verdict(photo);
  const caption = create("span", { className: "caption", textContent: text });
  const frame = create("span", { className: "frame" }, image);
  const tile = create("button", { type: "button", className: `tile ${kind}`, title: `${photo.file.name}: ${text}` }, frame, caption);
  tile.setAttribute("aria-label", `Photo ${index + 1}: ${text}`);
  tile.setAttribute("aria-pressed", String(photo === selected));
  tile.onclick = () => {
    selected = photo;
    draw();
  };
  const remove = create("button", { type: "button", className: "remove", textContent: "×" });
  remove.setAttribute("aria-label", `Remove photo ${index + 1}`);
  remove.onclick = () => removePhoto(photo);
  return create("li", {}, tile, remove);
}

function addButton() {
  const text = "Add photos of the same class";
  const button = create("button", { type: "button", className: "add", textContent: "+", title: text });
  button.setAttribute("aria-label", text);
  button.onclick = () => chooseFiles({ add: true });
  return button;
}

let adding = false;

export function chooseFiles({ add }) {
  adding = add;
  $("files").value = "";
  $("files").click();
}

$("files").onchange = () => {
  showPhotos($("files").files, { add: adding });
  adding = false;
};

// The service reads formats that some browsers cannot show, such as HEIC.
$("preview").onerror = () => {
  if (selected) selected.noPreview = $("preview").hidden = true;
};
