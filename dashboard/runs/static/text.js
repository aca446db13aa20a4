// The description as text: judged while it is written.

import { describePresets, judged, showProblem } from "./judged.js";

const form = document.getElementById("description");
const text = document.getElementById("text");

judged(form, "/runs/describe", ({ problem, size }) => {
  showProblem(problem);
  text.setAttribute("aria-invalid", String(Boolean(problem)));
  document.getElementById("size").textContent = size;
});
describePresets();
