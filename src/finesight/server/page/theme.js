// Sets the colors before anything is drawn, so that the page does not flash in the wrong ones.
(() => {
  const kept = (() => { try { return localStorage.getItem("finesight-theme"); } catch { return null; } })();
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
})();
