// Before anything is painted: the theme that the visitor chose here, if any; without one the system's holds.
"use strict";
(() => {
  const chosen = localStorage.getItem("fedping-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
