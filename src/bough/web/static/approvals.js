// Approvals: a button works 300 ms after its call is seen, once; keys act on the focused call.
const SEEN_MILLISECONDS = 300;
const asks = [...document.querySelectorAll("[data-ask]")];
const buttonsOf = (ask) =>
  [...document.querySelectorAll("button[name]")].filter((button) => ask.contains(button) || button.value === ask.dataset.ask);

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    clearTimeout(target.timer);
    if (!isIntersecting) continue;
    target.timer = setTimeout(() => {
      for (const button of buttonsOf(target)) button.disabled = false;
      observer.unobserve(target);
    }, SEEN_MILLISECONDS);
  }
});
for (const ask of asks) {
  ask.tabIndex = 0;
  for (const button of buttonsOf(ask)) button.disabled = true;
  observer.observe(ask);
}

for (const form of document.querySelectorAll('form[action="/do/decide"]')) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "1";
  });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  const ask = event.target.closest("[data-ask]") ?? (asks.length === 1 && document.querySelector(".decide") ? asks[0] : null);
  if (!ask) return;
  if (event.key === "e") {
    const details = ask.querySelector("details:has(textarea)");
    if (!details) return;
    event.preventDefault();
    details.open = true;
    details.querySelector("textarea").focus();
  }
  const name = { a: "approve", r: "reject" }[event.key];
  const button = name && buttonsOf(ask).filter((item) => item.name === name).at(-1);
  if (!button || button.disabled) return;
  event.preventDefault();
  button.click();
});
