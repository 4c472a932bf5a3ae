// The page: photos in, ranked answers out; what it gets wrong, it is taught on the spot. Talks to its own service only.

const $ = (id) => document.getElementById(id);
const PAGE = 60; // classes fetched at a time
const AT_ONCE = 4; // questions under way at a time
const BAD_PHOTO = [413, 415, 422]; // what the service answers to a photo it cannot use
const KEY = "fscil-key";

const photos = []; // {file, url, state: "asking" | "answered" | "bad" | "failed", answer, error}
let chosen = null; // the photo whose answer is shown
let mayEnroll = true;
let calibrated = false;
let stream = null; // of the camera, while it is open

/* ---- small helpers ---- */

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const photoCount = (count) => (count === 1 ? "1 photo" : `${count} photos`);

function tell(text) {
  $("trouble").hidden = true;
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function complain(text) {
  $("notice").hidden = true;
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

const quiet = () => tell("");

/** Runs an action, and shows in words what went wrong with it. */
async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    complain(error.message);
    return undefined;
  }
}

/* ---- the service ---- */

async function call(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch {
      throw new Error("The service does not answer. Is it still running?");
    }
    if (response.ok) return response;
    const { error = `The service answered ${response.status}.` } = await response.json().catch(() => ({}));
    if (response.status !== 401) throw Object.assign(new Error(error), { status: response.status });
    if (sessionStorage.getItem(KEY) === key) await askForKey(key ? error : "This service asks for a key.");
  }
}

const classPath = (name) => `classes/${encodeURIComponent(name)}`;

function form(files) {
  const data = new FormData();
  files.forEach((file) => data.append("files", file, file.name || "photo.jpg"));
  return data;
}

/* ---- keys ---- */

let keyAsked = null; // one dialog for all requests that wait for a key

function askForKey(message) {
  keyAsked ??= new Promise((resolve, reject) => {
    const dialog = $("key-dialog");
    $("key-message").textContent = message;
    $("key").value = "";
    dialog.showModal();
    $("key-form").onsubmit = () => {
      sessionStorage.setItem(KEY, $("key").value.trim());
      $("change-key").hidden = false;
      resolve();
    };
    dialog.onclose = () => {
      keyAsked = null;
      reject(new Error("Without a key this service does not answer. Reload the page to enter one."));
    };
  });
  return keyAsked;
}

$("key-cancel").onclick = () => $("key-dialog").close();
$("change-key").hidden = !sessionStorage.getItem(KEY);
$("change-key").onclick = () =>
  attempt(async () => {
    await askForKey("Enter another key.");
    await listClasses();
  });

/* ---- photos and answers ---- */

function startOver() {
  photos.splice(0).forEach(({ url }) => URL.revokeObjectURL(url));
  chosen = null;
}

async function show(files, { add = false } = {}) {
  const fresh = [...files].map((file) => ({ file, url: URL.createObjectURL(file), state: "asking" }));
  if (!fresh.length) return;
  quiet();
  if (!add) startOver();
  photos.push(...fresh);
  chosen = fresh[0];
  draw();
  await ask(fresh);
}

async function ask(wanted) {
  const waiting = [...wanted];
  const worker = async () => {
    for (let photo = waiting.shift(); photo; photo = waiting.shift()) {
      try {
        const response = await call("predict?top=5", { method: "POST", body: form([photo.file]) });
        [photo.answer] = (await response.json()).predictions;
        photo.state = "answered";
      } catch (error) {
        photo.error = error.message;
        photo.state = BAD_PHOTO.includes(error.status) ? "bad" : "failed";
      }
      draw();
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

function remove(photo) {
  const place = photos.indexOf(photo);
  photos.splice(place, 1);
  URL.revokeObjectURL(photo.url);
  if (chosen === photo) chosen = photos[Math.min(place, photos.length - 1)] ?? null;
  draw();
  ($("strip").children[place] ?? $("strip").lastElementChild)?.querySelector("button").focus();
  if (!photos.length) $("choose").focus();
}

function draw() {
  $("asked").hidden = !photos.length;
  $("drop").classList.toggle("small", photos.length > 0);
  drawStrip();
  if (!chosen) return;
  if ($("shown").src !== chosen.url) $("shown").src = chosen.url;
  $("shown").hidden = Boolean(chosen.unseen);
  $("shown").alt = chosen.file.name || "photo";
  drawAnswer(chosen);
  const usable = photos.filter(({ state }) => state !== "bad").length;
  $("learn").hidden = !mayEnroll || !usable;
  $("read-only").hidden = mayEnroll;
  $("learn-button").textContent = usable > 1 ? `Learn from ${usable} photos` : "Learn";
}

function drawStrip() {
  const focused = [...$("strip").children].findIndex((item) => item.contains(document.activeElement));
  $("strip").replaceChildren(
    ...photos.map((photo, place) => {
      const label = `Photo ${place + 1}${photo.state === "bad" ? ", cannot be used" : ""}`;
      const picture = make("img", { src: photo.url, alt: "" });
      picture.onerror = () => picture.replaceWith("?");
      const tile = make("button", { type: "button", className: `tile ${photo.state}`, title: photo.file.name }, picture);
      tile.setAttribute("aria-label", label);
      tile.setAttribute("aria-pressed", String(photo === chosen));
      tile.onclick = () => {
        chosen = photo;
        draw();
      };
      const away = make("button", { type: "button", className: "drop-one", textContent: "×" });
      away.setAttribute("aria-label", `Take photo ${place + 1} away`);
      away.onclick = () => remove(photo);
      return make("li", {}, tile, away);
    }),
    make("li", {}, addButton()),
  );
  if (focused >= 0) $("strip").children[focused]?.querySelector("button").focus();
}

function addButton() {
  const button = make("button", { type: "button", className: "add", textContent: "+", title: "Add photos of the same thing" });
  button.setAttribute("aria-label", "Add photos of the same thing");
  button.onclick = () => chooseFiles(true);
  return button;
}

function drawAnswer({ state, answer, error }) {
  const parts = {
    asking: () => [verdict("Looking…", "unknown")],
    bad: () => [verdict("Not a usable photo", "unknown", error), make("p", { textContent: error })],
    failed: () => [verdict("No answer", "unknown", error), make("p", { textContent: error })],
    answered: () => foundAnswer(answer),
  }[state]();
  $("answer").replaceChildren(...parts);
  $("spoken").textContent = parts[0].dataset.spoken ?? parts[0].textContent;
}

const verdict = (text, className = "", spoken = text) => {
  const element = make("p", { className: `verdict ${className}`, textContent: text });
  element.dataset.spoken = spoken;
  return element;
};

function foundAnswer({ label, score, ranking }) {
  if (!ranking.length)
    return [verdict("Nothing learned yet", "unknown"), make("p", { className: "soft", textContent: "Give it a name below: it will be the first thing it knows." })];
  const bars = make("ol", { className: "bars" });
  ranking.forEach((one, place) => bars.append(bar(one, place === 0 && label !== null)));
  if (label === null)
    return [
      verdict("Unknown", "unknown", `Unknown. The nearest is ${ranking[0].label}.`),
      make("p", { className: "soft", textContent: "It is like nothing learned so far. The nearest:" }),
      bars,
    ];
  const note = make("small", { textContent: "It always names the nearest class. Once calibrated, it says “unknown” when none is near enough." });
  return [verdict(label, "", `${label}, similarity ${score.toFixed(2)}`), bars, ...(calibrated ? [] : [note])];
}

function bar({ label, score }, first) {
  const fill = make("i");
  fill.style.setProperty("--share", `${(100 * Math.min(1, Math.max(0, score))).toFixed(1)}%`);
  return make(
    "li",
    { className: first ? "first" : "" },
    make("span", { className: "label", textContent: label, title: label }),
    make("span", { className: "number", textContent: score.toFixed(2), title: "Similarity: 1 is the same" }),
    make("span", { className: "bar" }, fill),
  );
}

// HEIC, for instance: the service reads what this browser cannot show.
$("shown").onerror = () => {
  if (chosen) chosen.unseen = $("shown").hidden = true;
};

/* ---- ways in: choose, drop, paste, camera ---- */

let adding = false;

function chooseFiles(add) {
  adding = add;
  $("files").value = "";
  $("files").click();
}

$("choose").onclick = () => chooseFiles(false);
$("files").onchange = () => {
  show($("files").files, { add: adding });
  adding = false;
};

const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
document.addEventListener("dragover", (event) => {
  if (!carriesFiles(event)) return;
  event.preventDefault();
  $("drop").classList.add("over");
});
document.addEventListener("dragleave", (event) => event.relatedTarget === null && $("drop").classList.remove("over"));
document.addEventListener("drop", (event) => {
  if (!carriesFiles(event)) return;
  event.preventDefault();
  $("drop").classList.remove("over");
  show(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.length) show(files);
});

const CAMERA_TROUBLE = {
  NotAllowedError: "The camera is not allowed here. Allow it in the browser's settings for this page, then try again.",
  NotFoundError: "No camera was found on this device.",
  NotReadableError: "The camera is in use by another program.",
};

async function openCamera() {
  quiet();
  if (!navigator.mediaDevices?.getUserMedia)
    return complain("The camera works only over https or on this machine's own address (localhost). Choose a photo instead.");
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
  } catch (error) {
    return complain(CAMERA_TROUBLE[error.name] ?? `The camera cannot be used (${error.message || error.name}).`);
  }
  startOver();
  draw();
  $("drop").hidden = true;
  $("camera").hidden = false;
  $("video").srcObject = stream;
  await $("video").play().catch(() => {});
  $("shoot").focus();
}

function closeCamera() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  $("video").srcObject = null;
  $("camera").hidden = true;
  $("drop").hidden = false;
}

async function shoot() {
  const { videoWidth: width, videoHeight: height } = $("video");
  if (!width) return complain("The camera shows no picture yet. Try again in a moment.");
  const canvas = make("canvas", { width, height });
  canvas.getContext("2d").drawImage($("video"), 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  const time = new Date().toISOString().slice(0, 19).replaceAll(":", "-");
  return show([new File([blob], `camera ${time}.jpg`, { type: "image/jpeg" })], { add: true });
}

$("open-camera").onclick = openCamera;
$("shoot").onclick = shoot;
$("close-camera").onclick = () => {
  closeCamera();
  $("open-camera").focus();
};
addEventListener("pagehide", closeCamera);

/* ---- learn and forget ---- */

$("learn").onsubmit = async (event) => {
  event.preventDefault();
  const name = $("name").value.trim();
  const usable = photos.filter(({ state }) => state !== "bad");
  if (!name || !usable.length) return;
  $("learn-button").disabled = true;
  await attempt(async () => {
    const response = await call(classPath(name), { method: "POST", body: form(usable.map(({ file }) => file)) });
    const found = await response.json();
    $("name").value = "";
    closeCamera();
    tell(
      found.added
        ? `Learned “${found.name}” from ${photoCount(found.added)}${found.photos > found.added ? `; it now has ${found.photos}` : ""}.`
        : `“${found.name}” knows ${usable.length > 1 ? "these photos" : "this photo"} already. Nothing changed.`,
    );
    await Promise.all([listClasses({ fresh: found.name }), ask(usable)]);
  });
  $("learn-button").disabled = false;
};

function askToForget({ name, photos: count }) {
  $("forget-title").textContent = `Forget “${name}”?`;
  $("forget-message").textContent = `Its ${photoCount(count)} and everything learned from them go away. This cannot be undone.`;
  $("forget-dialog").showModal();
  $("forget-form").onsubmit = () =>
    attempt(async () => {
      await call(classPath(name), { method: "DELETE" });
      tell(`Forgot “${name}”.`);
      await Promise.all([listClasses(), ask(photos.filter(({ state }) => state === "answered"))]);
      $("choose").focus();
    });
}

$("forget-cancel").onclick = () => $("forget-dialog").close();

/* ---- what it knows ---- */

const thumbnails = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    thumbnails.unobserve(target);
    // Fetched, not linked: an <img> cannot send a key.
    call(target.dataset.url)
      .then((response) => response.blob())
      .then((blob) => {
        const image = make("img", { src: URL.createObjectURL(blob), alt: "" });
        image.onload = () => URL.revokeObjectURL(image.src);
        target.replaceChildren(image);
      })
      .catch(() => {}); // the first letter stays
  }
}, { rootMargin: "200px" });

let listing = 0; // the newest listing wins over slower, older ones

async function listClasses({ offset = 0, fresh = null } = {}) {
  const turn = ++listing;
  const query = new URLSearchParams({ limit: PAGE, offset, search: $("search").value.trim() });
  const found = await (await call(`classes?${query}`)).json();
  if (turn !== listing) return;
  mayEnroll = found.may_enroll;
  calibrated = found.calibrated;
  if (!offset) {
    thumbnails.disconnect();
    $("classes").replaceChildren();
    $("known-names").replaceChildren();
  }
  found.classes.forEach((info) => {
    $("classes").append(classItem(info, info.name === fresh));
    $("known-names").append(make("option", { value: info.name }));
  });
  const searching = Boolean($("search").value.trim());
  $("total").textContent = found.total || "";
  $("search").hidden = found.total <= 8 && !searching;
  $("empty").hidden = found.total > 0 || searching;
  $("none-found").hidden = found.total > 0 || !searching;
  $("more").hidden = $("classes").childElementCount >= found.total;
  draw();
}

function day(text) {
  const date = new Date(text);
  const thisYear = date.getFullYear() === new Date().getFullYear();
  return date.toLocaleDateString(undefined, { day: "numeric", month: "short", ...(thisYear ? {} : { year: "numeric" }) });
}

function classItem(info, fresh) {
  const thumb = make("div", { className: "thumb", textContent: [...info.name][0] });
  if (info.thumbnail) {
    thumb.dataset.url = info.thumbnail;
    thumbnails.observe(thumb);
  }
  const origin = info.origin === "base" ? "from training" : day(info.changed);
  const what = make("div", { className: "what" }, make("b", { textContent: info.name }), make("span", { textContent: `${photoCount(info.photos)} · ${origin}` }));
  const item = make("li", { className: fresh ? "new" : "" }, thumb, what);
  if (mayEnroll) {
    const forget = make("button", { type: "button", className: "quiet", textContent: "Forget" });
    forget.setAttribute("aria-label", `Forget ${info.name}`);
    forget.onclick = () => askToForget(info);
    item.append(forget);
  }
  return item;
}

let typing;
$("search").oninput = () => {
  clearTimeout(typing);
  typing = setTimeout(() => attempt(() => listClasses()), 200);
};
$("more").onclick = () => attempt(() => listClasses({ offset: $("classes").childElementCount }));

attempt(() => listClasses());
