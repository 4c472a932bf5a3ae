// Ways to select photos: file chooser, drag and drop, paste, camera.

import { $, clearMessages, create, showError } from "./dom.js";
import { chooseFiles, clearPhotos, draw, showPhotos } from "./photos.js";

$("choose").onclick = () => chooseFiles({ add: false });

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
document.addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  $("drop").classList.add("over");
});
document.addEventListener("dragleave", (event) => event.relatedTarget === null && $("drop").classList.remove("over"));
document.addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  $("drop").classList.remove("over");
  showPhotos(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.length) showPhotos(files);
});

const CAMERA_ERRORS = {
  NotAllowedError: "The browser does not allow this page to use the camera. Allow it in the browser's settings, then try again.",
  NotFoundError: "No camera was found on this device.",
  NotReadableError: "The camera is in use by another program.",
};

let stream = null; // of the camera, while it is open

async function openCamera() {
  clearMessages();
  if (!navigator.mediaDevices?.getUserMedia)
    return showError("Browsers allow the camera only over HTTPS or on localhost. Choose a photo instead.");
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
  } catch (error) {
    return showError(CAMERA_ERRORS[error.name] ?? `The camera cannot be used (${error.message || error.name}).`);
  }
  clearPhotos();
  draw();
  $("drop").hidden = true;
  $("camera").hidden = false;
  $("video").srcObject = stream;
  await $("video").play().catch(() => {});
  $("take-photo").focus();
}

export function closeCamera() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  $("video").srcObject = null;
  $("camera").hidden = true;
  $("drop").hidden = false;
}

async function takePhoto() {
  const { videoWidth: width, videoHeight: height } = $("video");
  if (!width) return showError("The camera is not ready yet. Try again in a moment.");
  const canvas = create("canvas", { width, height });
  canvas.getContext("2d").drawImage($("video"), 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  const time = new Date().toISOString().slice(0, 19).replaceAll(":", "-");
  return showPhotos([new File([blob], `camera ${time}.jpg`, { type: "image/jpeg" })], { add: true });
}

$("open-camera").onclick = openCamera;
$("take-photo").onclick = takePhoto;
$("close-camera").onclick = () => {
  closeCamera();
  $("open-camera").focus();
};
addEventListener("pagehide", closeCamera);
