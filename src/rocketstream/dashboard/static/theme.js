// Before anything is painted: the scheme and the form of times this browser chose.
(() => {
  "use strict";
  const root = document.documentElement;
  let theme = null, times = null;
  try {
    theme = localStorage.getItem("theme");
    times = localStorage.getItem("times");
  } catch { /* a browser that keeps nothing shows what the system says */ }
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  if (times === "exact") root.dataset.times = "exact";
})();
