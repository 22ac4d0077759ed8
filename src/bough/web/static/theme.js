// Sets the theme before the first paint: system, light or dark.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* without storage, the theme is the system's */ }
