// Entry point of the page: learn a class from the selected photos. All requests go to the page's own service.

import { askForKey, classPath, formOf, request } from "./api.js";
import { listClasses } from "./classes.js";
import { $, photoCount, reportErrors, showNotice } from "./dom.js";
import { closeCamera } from "./input.js";
import { predict, usablePhotos } from "./photos.js";

$("learn").onsubmit = async (event) => {
  event.preventDefault();
  const name = $("name").value.trim();
  const usable = usablePhotos();
  if (!name || !usable.length) return;
  $("learn-button").disabled = true;
  await reportErrors(async () => {
    const response = await request(classPath(name), { method: "POST", body: formOf(usable.map(({ file }) => file)) });
    const enrolled = await response.json();
    $("name").value = "";
    closeCamera();
    showNotice(enrolledText(enrolled, usable.length));
    await Promise.all([listClasses({ highlighted: enrolled.name }), predict(usable)]);
  });
  $("learn-button").disabled = false;
};

function enrolledText({ name, added, photos }, sent) {
  if (!added) return `“${name}” already has ${sent > 1 ? "these photos" : "this photo"}. Nothing changed.`;
  const total = photos > added ? `; it now has ${photos}` : "";
  return `Learned “${name}” from ${photoCount(added)}${total}.`;
}

$("change-key").onclick = () =>
  reportErrors(async () => {
    await askForKey("Enter another key.");
    await listClasses();
  });

reportErrors(() => listClasses());
