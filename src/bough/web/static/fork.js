// Fork: the form as a dialog over the screen, told again what it inherits when a choice changes.
import { byId, make, readPage, request, showDialog } from "./core.js";

const load = async (url) => readPage(await request(url, { headers: { Accept: "text/html" } }));

/** Show what the fork inherits for the present choices. @param {HTMLFormElement} form */
async function tell(form) {
  const data = new FormData(form), fields = new URLSearchParams();
  for (const name of ["at", "cut", "files", "pending"]) if (data.has(name)) fields.set(name, data.get(name));
  const page = await load(`/c/${data.get("id")}/fork?${fields}`);
  form.querySelector("#inherits").replaceWith(page.querySelector("#inherits"));
}

function watch(form) {
  form.addEventListener("change", (event) => {
    if (["cut", "files", "pending"].includes(event.target.name)) tell(form).catch(() => {});
  });
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "1";
  });
}

/** Open the form of a fork over the screen. @param {string} url */
export async function openFork(url) {
  try {
    const sheet = (await load(url)).querySelector(".sheet");
    const dialog = make("dialog", { className: "sheet" });
    dialog.setAttribute("aria-labelledby", "fork-title");
    dialog.append(...sheet.childNodes);
    document.body.append(dialog);
    dialog.addEventListener("click", (event) => {
      if (event.target.closest("[data-close]")) { event.preventDefault(); dialog.close(); }
    });
    watch(showDialog(dialog).querySelector("form"));
  } catch {
    location.assign(url);
  }
}

const form = byId("fork-form");
if (form) watch(form);
else document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href*="/fork"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  openFork(link.href);
});
