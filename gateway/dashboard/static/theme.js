// The colours: as the system has them, unless chosen otherwise. Runs before the page is painted.

(() => {
  const CHOICES = ["auto", "light", "dark"];
  const NAMES = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" };
  const system = matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    const kept = localStorage.getItem("hexsage-theme");
    return CHOICES.includes(kept) ? kept : "auto";
  }

  function apply() {
    const choice = chosen();
    const isDark = choice === "dark" || (choice === "auto" && system.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) button.textContent = NAMES[choice];
  }

  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const next = CHOICES[(CHOICES.indexOf(chosen()) + 1) % CHOICES.length];
      localStorage.setItem("hexsage-theme", next);
      apply();
    });
    apply();
  });
  apply();
})();
