// The selected photos and their predictions.

import { formOf, request } from "./api.js";
import { $, clearMessages, create } from "./dom.js";

const MAX_CONCURRENT_REQUESTS = 4;
const INVALID_PHOTO = [413, 415, 422]; // statuses of a photo the service cannot use

export const photos = []; // {file, url, state: "pending" | "predicted" | "invalid" | "failed", prediction, error}
export const model = { mayEnroll: true, calibrated: false }; // from the last list of classes
let selected = null; // the photo whose prediction is shown

export const usablePhotos = () => photos.filter(({ state }) => state !== "invalid");
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
  const queue = [...wanted];
  const worker = async () => {
    for (let photo = queue.shift(); photo; photo = queue.shift()) {
      try {
        const response = await request("predict?top=5", { method: "POST", body: formOf([photo.file]) });
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
  $("read-only").hidden = model.mayEnroll;
  $("learn-button").textContent = usable > 1 ? `Learn from ${usable} photos` : "Learn";
}

function drawStrip() {
  const focused = [...$("strip").children].findIndex((item) => item.contains(document.activeElement));
  $("strip").replaceChildren(...photos.map(stripItem), create("li", {}, addButton()));
  if (focused >= 0) $("strip").children[focused]?.querySelector("button").focus();
}

function stripItem(photo, index) {
  const image = create("img", { src: photo.url, alt: "" });
  image.onerror = () => image.replaceWith("?");
  const tile = create("button", { type: "button", className: `tile ${photo.state}`, title: photo.file.name }, image);
  tile.setAttribute("aria-label", `Photo ${index + 1}${photo.state === "invalid" ? ", not valid" : ""}`);
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

function drawPrediction({ state, prediction, error }) {
  const parts = {
    pending: () => [headline("Classifying…", "muted")],
    invalid: () => [headline("Not a valid photo", "muted", error), create("p", { textContent: error })],
    failed: () => [headline("No prediction", "muted", error), create("p", { textContent: error })],
    predicted: () => predictionParts(prediction),
  }[state]();
  $("prediction").replaceChildren(...parts);
  $("announcement").textContent = parts[0].dataset.announcement;
}

/** The first line of a prediction, and what a screen reader announces. */
function headline(text, className = "", announcement = text) {
  const element = create("p", { className: `headline ${className}`, textContent: text });
  element.dataset.announcement = announcement;
  return element;
}

const percent = (share) => (share > 0.999 && share < 1 ? "> 99.9%" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`);

function predictionParts({ label, score, probability, unknown_probability: unknown, ranking }) {
  const note = (tag, text) => create(tag, { className: "muted", textContent: text });
  if (!ranking.length) return [headline("No classes yet", "muted"), note("p", "Enter a name below to add the first one.")];
  const bars = create("ol", { className: "bars" });
  ranking.forEach((ranked, index) => bars.append(bar(ranked, index === 0 && label !== null)));
  const unlikely = unknown === null ? [] : [note("p", `Unknown: ${percent(unknown)}`)];
  if (label === null)
    return [
      headline("Unknown", "muted", `Unknown. The nearest class is ${ranking[0].label}.`),
      note("p", `Not similar enough to any class${unknown === null ? "" : `: unknown with ${percent(unknown)}`}. The nearest classes:`),
      bars,
    ];
  const sure = probability === null ? `similarity ${score.toFixed(2)}` : `probability ${percent(probability)}`;
  const parts = [headline(label, "", `${label}, ${sure}`), bars, ...unlikely];
  if (!model.calibrated) parts.push(note("small", "The model is not calibrated: it always gives the nearest class, never “unknown”."));
  return parts;
}

function bar({ label, score, probability }, first) {
  const fill = create("i");
  const certain = probability !== null;
  fill.style.setProperty("--width", `${(100 * Math.min(1, Math.max(0, certain ? probability : score))).toFixed(1)}%`);
  const number = certain
    ? { textContent: percent(probability), title: "Probability" }
    : { textContent: score.toFixed(2), title: "Cosine similarity, at most 1" };
  return create(
    "li",
    { className: first ? "first" : "" },
    create("span", { className: "label", textContent: label, title: label }),
    create("span", { className: "number", ...number }),
    create("span", { className: "bar" }, fill),
  );
}

// The service reads formats that some browsers cannot show, such as HEIC.
$("preview").onerror = () => {
  if (selected) selected.noPreview = $("preview").hidden = true;
};
