// Entry point of the page. All requests go to the page's own service.

import "./learn.js";
import { askForKey } from "./api.js";
import { listClasses } from "./classes.js";
import { $, reportErrors } from "./dom.js";
import { openReview } from "./review.js";

async function start() {
  await listClasses();
  await openReview();
}

$("change-key").onclick = () =>
  reportErrors(async () => {
    await askForKey("Enter another key.");
    await start();
  });

reportErrors(start);
