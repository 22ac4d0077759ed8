// The tree: a choice takes effect at once, and the arrow keys go from branch to branch.
const form = document.querySelector("form.tools");
const apply = document.getElementById("apply");
if (apply) apply.hidden = true;
form?.addEventListener("change", () => form.requestSubmit());

const links = [...document.querySelectorAll("#branches a")];
const current = links.findIndex((link) => link.ariaCurrent);
links.forEach((link, place) => { link.tabIndex = place === Math.max(current, 0) ? 0 : -1; });

document.getElementById("branches")?.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  const place = links.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
  const next = step && place >= 0 ? links[place + step] : undefined;
  if (!next) return;
  event.preventDefault();
  links[place].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
