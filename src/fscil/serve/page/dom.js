// DOM helpers, and the notice and error messages of the page.

export const $ = (id) => document.getElementById(id);

export function create(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export const photoCount = (count) => (count === 1 ? "1 photo" : `${count} photos`);

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

export const clearMessages = () => showNotice("");

/** Runs an async action, and shows its error message if it fails. */
export async function reportErrors(action) {
  try {
    return await action();
  } catch (error) {
    showError(error.message);
    return undefined;
  }
}
