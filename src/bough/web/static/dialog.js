// Dialogs: focus goes in, stays, and comes back; Escape closes.

/** Show nodes as a dialog with a heading as its name. @param {string} title @param {...Node} nodes */
export function open(title, ...nodes) {
  const dialog = Object.assign(document.createElement("dialog"), { className: "sheet small" });
  const heading = Object.assign(document.createElement("h2"), { textContent: title, id: `dialog-${Date.now()}` });
  const close = Object.assign(document.createElement("button"), { type: "button", className: "icon", textContent: "×" });
  const header = document.createElement("header");
  close.setAttribute("aria-label", "Close");
  close.addEventListener("click", () => dialog.close());
  header.append(heading, close);
  dialog.setAttribute("aria-labelledby", heading.id);
  dialog.append(header, ...nodes);
  document.body.append(dialog);
  return show(dialog);
}

/** Show a dialog of the page over it. @param {HTMLDialogElement} dialog */
export function show(dialog) {
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before instanceof HTMLElement) before.focus();
  }, { once: true });
  dialog.showModal();
  (dialog.querySelector("[autofocus], input, textarea, select, button.main") ?? dialog).focus();
  return dialog;
}
