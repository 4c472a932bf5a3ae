// The OpenAPI document of the service as a page for people.

import { $, create } from "./dom.js";

const line = (term, text) => create("p", {}, create("code", { textContent: term }), ` ${text ?? ""}`);

function route(path, method, { summary, description, parameters = [], requestBody, responses, security }) {
  const card = create("section", { className: "card" }, create("h2", { textContent: `${method.toUpperCase()} ${path}` }));
  card.append(create("p", { textContent: `${summary}. ${description ?? ""}` }));
  card.append(create("p", { className: "muted", textContent: security ? "Needs a key or the token." : "Needs no key." }));
  parameters.forEach((each) => card.append(line(each.name, each.description)));
  if (requestBody) card.append(line("body", requestBody.description));
  Object.entries(responses).forEach(([status, each]) => card.append(line(status, each.description)));
  return card;
}

const { info, paths } = await (await fetch("openapi.json")).json();
$("routes").append(create("p", { className: "card", textContent: info.description }));
for (const [path, methods] of Object.entries(paths))
  for (const [method, described] of Object.entries(methods)) $("routes").append(route(path, method, described));
