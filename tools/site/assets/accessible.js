// Names for the groups of buttons of the theme, which have none, and keyboard access to code and tables that scroll.
(() => {
  const improve = () => {
    document.querySelectorAll("nav.md-code__nav").forEach((nav) => nav.setAttribute("role", "presentation"));
    document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach((area) => area.setAttribute("tabindex", "0"));
  };
  improve();
  new MutationObserver(improve).observe(document.body, { childList: true, subtree: true });
})();
