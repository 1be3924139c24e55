// Before anything is drawn, so that no page flashes up in the wrong colors.
(() => {
  const kept = (() => { try { return localStorage.getItem("finesight-theme"); } catch { return null; } })();
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
})();
