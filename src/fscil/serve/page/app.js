// Entry point of the page. All requests go to the page's own service.

import "./learn.js";
import { askForKey } from "./api.js";
import { listClasses } from "./classes.js";
import { $, reportErrors } from "./dom.js";

$("change-key").onclick = () =>
  reportErrors(async () => {
    await askForKey("Enter another key.");
    await listClasses();
  });

reportErrors(() => listClasses());
