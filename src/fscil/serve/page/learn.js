// Teach a name to photos: in several requests if there are many, and with the service's warnings before anything is learned.

import { classPath, formOf, request } from "./api.js";
import { listClasses } from "./classes.js";
import { $, create, photoCount, reportErrors, showNotice } from "./dom.js";
import { closeCamera } from "./input.js";
import { learning, model, namedPhotos, predict, reviewing, usablePhotos } from "./photos.js";
import { hideWarnings, showWarnings } from "./warnings.js";

const FORM_OVERHEAD = 2 ** 10; // bytes of a form per file, at most

$("learn").onsubmit = async (event) => {
  event.preventDefault();
  const name = $("name").value.trim();
  if (name) await learn(name, namedPhotos());
};

/** Parts of the photos, each as large as a request may be. */
function* requestsOf(photos) {
  const { photos: most, bytes } = model.limits;
  let part = [];
  let size = FORM_OVERHEAD;
  for (const photo of photos) {
    const more = photo.file.size + FORM_OVERHEAD;
    if (part.length && (part.length === most || size + more > bytes)) {
      yield part;
      part = [];
      size = FORM_OVERHEAD;
    }
    part.push(photo);
    size += more;
  }
  if (part.length) yield part;
}

/** With `strict`, asks before photos are learned that the service has doubts about. */
async function learn(name, photos, strict = true) {
  if (!photos.length) return;
  hideWarnings();
  $("learn-button").disabled = true;
  await reportErrors(async () => {
    let added = 0;
    let enrolled;
    for (const part of requestsOf(photos)) {
      if (photos.length > part.length) showNotice(`Learning “${name}”: ${added} of ${photos.length} photos…`);
      try {
        const form = formOf(part.map(({ file }) => file));
        const response = await request(`${classPath(name)}?strict=${strict}`, { method: "POST", body: form });
        enrolled = await response.json();
        added += enrolled.added;
      } catch (error) {
        if (!error.warnings) throw error;
        showNotice(added ? `Learned “${name}” from ${photoCount(added)} so far.` : "");
        showWarnings(error.warnings, (warning) => picturesOf(warning, photos), {
          learn: () => learn(name, photos, false),
          cancel: () => $("name").focus(),
        });
        return;
      }
    }
    $("name").value = "";
    closeCamera();
    showNotice(enrolledText({ ...enrolled, added }, photos.length));
    await modelChanged(enrolled.name);
  });
  $("learn-button").disabled = false;
}

/** The review does not wait for the predictions, which take a while for many photos: nobody shall answer to old ones. */
const modelChanged = (name) =>
  Promise.all([listClasses({ highlighted: name }), reviewing.reload(), predict(usablePhotos())]);

learning.confirm = learn;

let refusing = false; // a second click is none

/** A negative example: the next answer to this photo is another one. */
learning.refuse = async (name, photo) => {
  if (refusing) return;
  refusing = true;
  hideWarnings();
  await reportErrors(async () => {
    await request(`negatives?name=${encodeURIComponent(name)}`, { method: "POST", body: formOf([photo.file]) });
    showNotice(refusedText(photo.file.name, name));
    await modelChanged();
  });
  refusing = false;
};

export const refusedText = (file, name) => `Remembered: ${file} does not show “${name}”. To take it back, teach it this name.`;

export function enrolledText({ name, added, photos }, sent) {
  if (!added) return `“${name}” already has ${sent > 1 ? "these photos" : "this photo"}. Nothing changed.`;
  const total = photos > added ? `; it now has ${photos}` : "";
  return `Learned “${name}” from ${photoCount(added)}${total}.`;
}

/** Of a warning about the whole class, the first photo. */
function picturesOf({ file, other_file: other }, photos) {
  const named = [file, other].map((name) => name && photos.find((each) => each.file.name === name)).filter(Boolean);
  const shown = named.length ? named : photos.slice(0, 1);
  return shown.map((photo) => create("img", { src: photo.url, alt: photo.file.name || "photo" }));
}
