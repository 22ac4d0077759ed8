// Keyboard shortcuts: single letters outside of fields, the sheet of `?`, and rows that are reached by j and k.
import { make, openDialog } from "./core.js";

const shortcuts = new Map();
let prefix = "";

/** Whether single letters act; a reader can switch them off. */
function areOn() {
  try { return localStorage.getItem("keys") !== "off"; } catch { return true; }
}

/**
 * Register a shortcut. @param {string} keys one key, or two as `g c`
 * @param {string} label what the sheet says @param {(event: KeyboardEvent) => void} run
 */
export function bind(keys, label, run) {
  shortcuts.set(keys, { label, run });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.target.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]")) return;
  if (document.querySelector("dialog[open]") || (!areOn() && event.key !== "?")) return;
  const keys = prefix ? `${prefix} ${event.key}` : event.key;
  prefix = !prefix && [...shortcuts.keys()].some((name) => name.startsWith(`${event.key} `)) ? event.key : "";
  const shortcut = shortcuts.get(keys);
  if (!shortcut) return;
  event.preventDefault();
  shortcut.run(event);
});

/** Make rows reachable by j, k and arrows: one of them is a stop of Tab. @param {() => HTMLElement[]} list */
export function rove(list) {
  const move = (step) => {
    const rows = list();
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[Math.min(Math.max(at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step, 0), rows.length - 1)];
    if (!next.matches("a, button, summary, [tabindex]")) next.tabIndex = -1;
    next.focus();
  };
  bind("j", "Next row", () => move(1));
  bind("k", "Previous row", () => move(-1));
  bind("ArrowDown", "", () => move(1));
  bind("ArrowUp", "", () => move(-1));
}

function showSheet() {
  const table = make("dl", { className: "keys" });
  for (const [keys, { label }] of shortcuts) {
    if (!label) continue;
    const term = make("dt");
    term.append(make("kbd", { textContent: keys }));
    table.append(term, make("dd", { textContent: label }));
  }
  const label = make("label", { className: "dim" });
  const toggle = make("input", { type: "checkbox", checked: areOn() });
  toggle.addEventListener("change", () => {
    try { localStorage.setItem("keys", toggle.checked ? "on" : "off"); } catch { /* lasts as long as the page */ }
  });
  label.append(toggle, " Single keys act outside of fields");
  openDialog("Keyboard shortcuts", table, label);
}

const go = (path) => () => location.assign(path);
bind("?", "This list", showSheet);
bind("/", "Search", () => document.querySelector("main input[type=search], #q")?.focus());
bind("g c", "Conversations", go("/"));
bind("g a", "Approvals", go("/approvals"));
bind("n", "New conversation", go("/new"));
const button = document.getElementById("show-keys");
if (button) {
  button.hidden = false;
  button.addEventListener("click", showSheet);
}
