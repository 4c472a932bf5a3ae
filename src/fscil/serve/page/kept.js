// The elements of a kept photo, and of a group of similar ones, in the review.

import { create, photoCount, shortDate } from "./dom.js";
import { loadWhenSeen } from "./thumbnails.js";
import { CONFIRM, percent, REFUSE, verdict } from "./verdict.js";

const TOGGLE = "Click to leave this photo out, or to take it in again";

/** `actions`, of this and of a group: name(item, name, photos), refuse(item, name, photo), remove(item, photo). */
export function keptItem(photo, actions) {
  const item = create("li", { tabIndex: -1 });
  const { text, kind } = verdict({ state: "predicted", prediction: photo });
  const about = [photo.file, shortDate(photo.added)];
  if (photo.unknown_probability !== null) about.push(`unknown ${percent(photo.unknown_probability)}`);
  const heading = create("div", { className: "text" });
  heading.append(create("b", { className: kind, textContent: text }), create("span", { textContent: about.join(" · ") }));
  const picture = create("div", { className: "picture", title: photo.file });
  loadWhenSeen(picture, photo.thumbnail);
  const form = nameForm(`Another name for ${photo.file}`, "Another name", (name) => actions.name(item, name, [photo]));
  const remove = button({ text: "Delete", className: "subtle", onclick: () => actions.remove(item, photo) });
  remove.setAttribute("aria-label", `Delete ${photo.file}`);
  item.append(picture, heading, choices(item, photo, actions), form, remove);
  return item;
}

/** One click each: the nearest class is right, it is wrong, or one of the next is right. */
function choices(item, photo, actions) {
  const row = create("div", { className: "row choices" });
  photo.ranking.forEach((ranked, index) => {
    const { label } = ranked;
    const right = { number: sureness(ranked), title: CONFIRM, onclick: () => actions.name(item, label, [photo]) };
    row.append(button(index ? { text: label, ...right } : { text: `Yes, ${label}`, ...right }));
    if (!index) row.append(refusal(label, () => actions.refuse(item, label, photo)));
  });
  row.hidden = !photo.ranking.length;
  return row;
}

function refusal(label, onclick) {
  const element = button({ text: "Not this", title: REFUSE, onclick });
  element.setAttribute("aria-label", `Not this: it does not show ${label}`);
  return element;
}

const sureness = ({ score, probability }) => (probability === null ? score.toFixed(2) : percent(probability));

/** All photos of a group get one name, but those that were left out by a click. */
export function groupItem({ photos }, actions) {
  const item = create("li", { tabIndex: -1 });
  const chosen = new Set(photos);
  const learn = create("button", { type: "submit", className: "primary" });
  const drawButton = () => {
    learn.textContent = `Learn from ${photoCount(chosen.size)}`;
    learn.disabled = !chosen.size;
  };
  const strip = create("ul", { className: "strip" });
  photos.forEach((photo, index) => {
    const tile = create("button", { type: "button", className: "picture", title: TOGGLE });
    tile.setAttribute("aria-label", `Photo ${index + 1}, ${photo.file}`);
    tile.setAttribute("aria-pressed", "true");
    tile.onclick = () => {
      if (!chosen.delete(photo)) chosen.add(photo);
      tile.setAttribute("aria-pressed", String(chosen.has(photo)));
      drawButton();
    };
    loadWhenSeen(tile, photo.thumbnail);
    strip.append(create("li", {}, tile));
  });
  drawButton();
  const named = (name) => actions.name(item, name, photos.filter((photo) => chosen.has(photo)));
  const title = create("h3", { textContent: `${photos.length} similar photos: name them` });
  item.append(title, strip, nameForm("Name of these similar photos", "e.g. red panda", named, learn));
  return item;
}

function nameForm(label, placeholder, named, learn = create("button", { type: "submit", textContent: "Learn" })) {
  const input = create("input", { maxLength: 200, required: true, placeholder, enterKeyHint: "done" });
  input.setAttribute("aria-label", label);
  input.setAttribute("list", "known-names");
  const form = create("form", { className: "row naming", autocomplete: "off" }, input, learn);
  form.onsubmit = (event) => {
    event.preventDefault();
    const name = input.value.trim();
    if (name) named(name);
  };
  return form;
}

function button({ text, number = "", className = "", ...properties }) {
  const label = create("span", { className: "label", textContent: text });
  const element = create("button", { type: "button", className, ...properties }, label);
  if (number) element.append(create("span", { className: "number", textContent: number }));
  return element;
}
