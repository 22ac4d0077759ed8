// What every screen needs: requests with the token, HTML of this server as nodes, dialogs, times, the theme, updates.
const $ = (selector, root = document) => root.querySelector(selector);
/** @param {string} id */
export const byId = (id) => document.getElementById(id);
const meta = (name) => $(`meta[name=${name}]`)?.content ?? "";

/** Make an element. @param {string} tag @param {object} [properties] */
export const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

/** The one policy by which HTML becomes nodes; the browser refuses every other way. */
const policy = globalThis.trustedTypes?.createPolicy("bough", { createHTML: (text) => text });

/** Make nodes of HTML that this server rendered. @param {string} html */
export function fragment(html) {
  const template = make("template");
  template.innerHTML = policy ? policy.createHTML(html) : html;
  showTimes(template.content);
  return template.content;
}

/**
 * Call the server. A refused request throws its problem document; a session that ended asks for a sign-in first.
 * @param {string} url @param {RequestInit} [options]
 */
export async function request(url, options = {}) {
  const headers = new Headers(options.headers);
  headers.set("X-CSRF-Token", meta("csrf"));
  let response;
  try {
    response = await fetch(url, { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    setOffline(true);
    throw Object.assign(error, { title: "Connection lost", detail: "", code: "offline", status: 0 });
  }
  setOffline(false);
  checkVersion(response.headers.get("X-Bough-Assets"));
  if (response.status === 401 && (await signInAgain())) return request(url, options);
  if (!response.ok) throw await readProblem(response);
  return response;
}

async function readProblem(response) {
  const type = response.headers.get("Content-Type") ?? "";
  const problem = type.includes("json") ? await response.json() : { title: response.statusText, detail: "", code: "" };
  return Object.assign(new Error(problem.title), problem, { status: response.status });
}

let signingIn = null;

/** Ask for the key in a dialog over the screen, one for all requests. True when a new session is open. */
const signInAgain = () => (signingIn ??= askForKey().finally(() => (signingIn = null)));

async function askForKey() {
  const form = make("form");
  const label = make("label", { className: "field", textContent: "Key" });
  const key = make("input", { type: "password", autocomplete: "off", required: true });
  const wrong = make("p", { className: "bad" });
  const button = make("button", { className: "main", textContent: "Sign in" });
  label.append(key);
  form.append(label, wrong, button);
  const dialog = openDialog("Your session has ended", form);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(false));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const body = JSON.stringify({ key: key.value }), headers = { "Content-Type": "application/json" };
      const answer = await fetch("/auth/session", { method: "POST", body, headers }).catch(() => null);
      if (!answer) return void (wrong.textContent = "The server does not answer.");
      const session = await answer.json();
      if (!answer.ok) return void (wrong.textContent = session.detail);
      $("meta[name=csrf]").content = session.csrf_token;
      for (const field of document.querySelectorAll("[name=csrf_token]")) field.value = session.csrf_token;
      resolve(true);
      dialog.close();
    });
  });
}

/** Tell readers of screens, politely or at once. @param {string} text */
export function announce(text, urgent = false) {
  const region = byId(urgent ? "urgent" : "polite");
  if (region) region.textContent = text;
}

/** Show nodes as a dialog with a heading as its name. @param {string} title @param {...Node} nodes */
export function openDialog(title, ...nodes) {
  const dialog = make("dialog", { className: "sheet small" });
  const heading = make("h2", { textContent: title, id: `dialog-${Date.now()}` });
  const close = make("button", { type: "button", className: "icon", textContent: "×" });
  const header = make("header");
  close.setAttribute("aria-label", "Close");
  close.addEventListener("click", () => dialog.close());
  header.append(heading, close);
  dialog.setAttribute("aria-labelledby", heading.id);
  dialog.append(header, ...nodes);
  document.body.append(dialog);
  return showDialog(dialog);
}

/** Show a dialog of the page over it. @param {HTMLDialogElement} dialog */
export function showDialog(dialog) {
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before instanceof HTMLElement) before.focus();
  }, { once: true });
  dialog.showModal();
  (dialog.querySelector("[autofocus], input, textarea, select, button.main") ?? dialog).focus();
  return dialog;
}

function banner(id, text, action, run) {
  let box = byId(id);
  if (!text) return box?.remove();
  if (!box) {
    box = make("p", { id, className: "banner" });
    const button = make("button", { textContent: action, className: "quiet" });
    button.addEventListener("click", run);
    box.append(make("span"), button);
    $(".top")?.after(box);
    announce(text, true);
  }
  box.firstChild.textContent = text;
}

let lastSeen = new Date();

/** Show whether the server answers. @param {boolean} isOffline @param {number} [seconds] until the next try */
export function setOffline(isOffline, seconds = 0) {
  if (!isOffline) lastSeen = new Date();
  const retry = seconds ? ` Retrying in ${Math.ceil(seconds)} s.` : "";
  const text = `Connection lost.${retry} What you see is from ${lastSeen.toLocaleTimeString([], { hourCycle: "h23" })}.`;
  banner("offline", isOffline && text, "Retry now", () => dispatchEvent(new Event("online")));
}

/** Offer a reload when the server has another version of the page. @param {string | null} version */
export function checkVersion(version) {
  if (version && version !== meta("assets")) {
    banner("newer", "The server was updated. Reload to continue.", "Reload", () => location.reload());
  }
}

const zone = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

/** Write the times below a node in the reader's zone. @param {ParentNode} root */
export function showTimes(root) {
  const now = new Date();
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.title = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
    if (moment.toDateString() === now.toDateString()) {
      time.textContent = moment.toLocaleTimeString([], time.matches(".list time") ? zone : { ...zone, second: "2-digit" });
    } else if (moment.getFullYear() === now.getFullYear()) {
      time.textContent = moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    }
  }
}

const WAITS = [1, 2, 4, 8, 15], HIDDEN_SECONDS = 60;

/**
 * Keep a stream of this server open, but not while the page is hidden for a minute. Before it is opened again, a request
 * to `probe` finds out whether the session has ended, the conversation was deleted or the page has a newer version.
 * @param {{url: () => string, probe: string, on: Record<string, (data: string) => void>,
 *   again?: (response: Response) => unknown, ended?: () => void}} stream
 */
export function keepOpen({ url, probe, on, again, ended }) {
  let source = null, failures = 0, timer = 0, hiding = 0, isOver = false;
  const close = () => { clearTimeout(timer); source?.close(); source = null; };

  function open() {
    close();
    if (isOver) return;
    const own = (source = new EventSource(url()));
    own.addEventListener("open", () => setOffline(false));
    for (const [name, take] of Object.entries(on)) {
      own.addEventListener(name, ({ data }) => { failures = 0; if (own === source) take(data); });
    }
    own.addEventListener("end", ({ data }) => { JSON.parse(data).reason === "deleted" ? fail({ status: 404 }) : retry(1); });
    own.addEventListener("error", () => { if (!failures) setOffline(false); fail(); });
  }

  function retry(seconds) {
    close();
    timer = setTimeout(check, seconds * 1000);
  }

  /** Wait and try again, unless the conversation was deleted or nobody signs in. @param {{status?: number}} [problem] */
  function fail(problem) {
    if (isOver) return;
    const isGone = problem?.status === 404;
    isOver = isGone || problem?.status === 401;
    if (isOver) {
      close();
      ended?.();
      if (isGone) banner("over", "The conversation was deleted.", "All conversations", () => location.assign("/"));
      else banner("over", "Your session has ended.", "Sign in", () => location.reload());
      return;
    }
    const seconds = WAITS[Math.min(failures++, WAITS.length - 1)] * (0.8 + 0.4 * Math.random());
    if (failures > 1) setOffline(true, seconds); // a server that starts again at once is worth no banner
    retry(seconds);
  }

  async function check() {
    try {
      const response = await request(probe, { headers: { Accept: "text/html" } });
      await again?.(response);
      open();
    } catch (problem) {
      fail(problem);
    }
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(close, HIDDEN_SECONDS * 1000);
    else if (!source) check();
  });
  addEventListener("online", check);
  open();
  return fail;
}

/** Make nodes of a page of this server. @param {Response} response */
export const readPage = async (response) => fragment(await response.text());

/** Show how many conversations wait for a person. @param {number} count */
export function showWaiting(count) {
  const mark = byId("waiting-count");
  if (!mark) return;
  const before = mark.hidden ? 0 : Number(mark.firstElementChild.textContent);
  mark.hidden = count === 0;
  mark.firstElementChild.textContent = count;
  document.title = (count ? `(${count}) ` : "") + document.title.replace(/^\(\d+\) /, "");
  if (count > before) announce(`${count} waiting for you`);
}

function makeThemeSwitch() {
  const button = byId("theme-switch");
  if (!button) return;
  const root = document.documentElement, order = ["system", "light", "dark"];
  const show = () => button.setAttribute("aria-label", `Theme: ${root.dataset.theme ?? "system"}`);
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(root.dataset.theme ?? "system") + 1) % 3];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* the choice lasts as long as the page */ }
    show();
  });
  show();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.closest?.("form")?.requestSubmit();
});
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
addEventListener("offline", () => setOffline(true));
addEventListener("online", () => setOffline(false));
showTimes(document);
makeThemeSwitch();
