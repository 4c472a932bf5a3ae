// DOM helpers, and the notice and error messages of the page.

export const $ = (id) => document.getElementById(id);

export function create(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export const photoCount = (count) => (count === 1 ? "1 photo" : `${count} photos`);

export function shortDate(text) {
  const date = new Date(text);
  const thisYear = date.getFullYear() === new Date().getFullYear();
  return date.toLocaleDateString(undefined, { day: "numeric", month: "short", ...(thisYear ? {} : { year: "numeric" }) });
}

/** An <img> of a path of the service: fetched by `request` instead of linked, because an <img> cannot send a key. */
export async function thumbnailOf(path, request, alt = "") {
  const blob = await (await request(path)).blob();
  const image = create("img", { src: URL.createObjectURL(blob), alt });
  image.onload = () => URL.revokeObjectURL(image.src);
  return image;
}

export function showNotice(text) {
  $("error").hidden = true;
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

export function showError(text) {
  $("notice").hidden = true;
  $("error").textContent = text;
  $("error").hidden = !text;
}

/** Messages appear at the end of this card, that of the action they are about. */
function messagesIn(card) {
  if ($("messages").parentElement !== card) card.append($("messages"));
}

export function clearMessages() {
  messagesIn($("classify"));
  showNotice("");
}

/** Runs an async action, and shows its error message if it fails. */
export async function reportErrors(action, card = $("classify")) {
  messagesIn(card);
  try {
    return await action();
  } catch (error) {
    showError(error.message);
    return undefined;
  }
}
