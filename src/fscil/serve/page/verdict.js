// What is said about a photo: a word under its thumbnail, and the ranked classes beside its preview.

import { create } from "./dom.js";

const WORDS = { pending: "…", invalid: "Not valid", failed: "No answer" };

/** A few words, and the class of the style sheet: "known", "maybe", "unknown", "pending", "invalid" or "failed". */
export function verdict({ state, prediction }) {
  if (state !== "predicted") return { text: WORDS[state], kind: state };
  const { label } = prediction;
  const text = { known: label, maybe: `Looks like ${label}`, unknown: prediction.ranking.length ? "Unknown" : "No classes yet" };
  return { text: text[prediction.state], kind: prediction.state };
}

/** What one click does to an answer, here and in the review. */
export const CONFIRM = "Adds this photo to the class";
export const REFUSE = "Remembers that this photo does not show the class: a negative example";

/** The elements of a prediction. `actions`: retry(), confirm(name), refuse(name), choose(name). */
export function predictionParts(photo, model, actions) {
  const { state, error, prediction } = photo;
  if (state === "pending") return [headline("Classifying…", "muted")];
  if (state === "invalid") return [headline("Not a valid photo", "muted", error), create("p", { textContent: error })];
  if (state === "failed") {
    const again = create("button", { type: "button", className: "retry", textContent: "Try again", onclick: actions.retry });
    return [headline("No prediction", "muted", error), create("p", { textContent: error }), again];
  }
  if (!prediction.ranking.length) return [headline("No classes yet", "muted"), note("p", "Enter a name below to add the first one.")];
  return [...answer(prediction, model, actions), bars(prediction, model, actions)];
}

/** The first line of a prediction, and what a screen reader announces. */
function headline(text, className = "", announcement = text) {
  const element = create("p", { className: `headline ${className}`, textContent: text, tabIndex: -1 });
  element.dataset.announcement = announcement;
  return element;
}

const note = (tag, text) => create(tag, { className: "muted", textContent: text });
export const percent = (share) => (share > 0.999 && share < 1 ? "> 99.9%" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`);

function answer({ state, label, score, probability, unknown_probability: unknown, ranking }, model, actions) {
  if (state === "unknown") {
    const sure = unknown === null ? "" : `: unknown with ${percent(unknown)}`;
    return [
      headline("Unknown", "muted", `Unknown. The nearest class is ${ranking[0].label}.`),
      note("p", `Not similar enough to any class${sure}. The nearest classes:`),
    ];
  }
  const sure = probability === null ? `similarity ${score.toFixed(2)}` : `probability ${percent(probability)}`;
  const text = state === "maybe" ? `Looks like ${label}` : label;
  const parts = [headline(text, state === "maybe" ? "maybe" : "", `${text}, ${sure}`)];
  if (model.mayEnroll) {
    const yes = create("button", { type: "button", className: "confirm", textContent: `Yes, ${label}`, title: CONFIRM });
    yes.onclick = () => actions.confirm(label);
    const no = create("button", { type: "button", className: "refuse", textContent: "Not this", title: REFUSE });
    no.setAttribute("aria-label", `Not this: it does not show ${label}`);
    no.onclick = () => actions.refuse(label);
    parts.push(create("div", { className: "row answers" }, yes, no));
  }
  return parts;
}

/** Of probabilities, together with "none of these"; or of cosines from 0 (unrelated) to 1 (the same). */
function bars({ label, unknown_probability: unknown, ranking }, model, actions) {
  const list = create("ol", { className: "bars" });
  ranking.forEach((ranked, index) => list.append(bar(ranked, index === 0 && label !== null, model, actions)));
  if (unknown !== null) {
    const rest = bar({ label: "None of the classes", probability: unknown }, label === null, { mayEnroll: false }, actions);
    rest.classList.add("none");
    list.append(rest);
  }
  return list;
}

function bar({ label, score, probability }, first, model, actions) {
  const fill = create("i");
  const certain = probability !== null;
  fill.style.setProperty("--width", `${(100 * Math.min(1, Math.max(0, certain ? probability : score))).toFixed(1)}%`);
  const number = certain
    ? { textContent: percent(probability), title: "Probability" }
    : { textContent: score.toFixed(2), title: "Cosine similarity: 0 is unrelated, 1 the same" };
  const parts = [
    create("span", { className: "label", textContent: label, title: label }),
    create("span", { className: "number", ...number }),
    create("span", { className: "bar" }, fill),
  ];
  if (!model.mayEnroll) return create("li", { className: first ? "first" : "" }, create("span", { className: "choice" }, ...parts));
  const choice = create("button", { type: "button", className: "choice" }, ...parts);
  choice.setAttribute("aria-label", `${label}, ${number.textContent}: enter this name below`);
  choice.onclick = () => actions.choose(label);
  return create("li", { className: first ? "first" : "" }, choice);
}

/** Which states there are, and how to change that. */
export function thresholdText({ calibrated, thresholds }) {
  if (!calibrated)
    return (
      "The model is not calibrated: it always gives the nearest class, never “unknown”. To change this, stop the service and run “fscil upgrade MODEL” " +
        "or “fscil calibrate MODEL FOLDER” with a folder of photos of other things."
    );
  if (!thresholds) return "Unknown below the threshold of the last “fscil calibrate”.";
  const { known, unknown } = thresholds;
  const text = `Known from ${percent(known)}, below that “looks like”; unknown where none of the classes has more than ${percent(unknown)}.`;
  const command = `fscil calibrate MODEL --known-at ${known} --unknown-at ${Number(unknown.toPrecision(2))}`;
  return `${text} To change this, stop the service and run “${command}” with other numbers.`;
}
