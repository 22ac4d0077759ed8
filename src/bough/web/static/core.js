// What every screen needs: requests with the token, HTML of this server as nodes, messages, times, the theme, updates.
const $ = (selector, root = document) => root.querySelector(selector);
const meta = (name) => $(`meta[name=${name}]`)?.content ?? "";

/** The one policy by which HTML becomes nodes; the browser refuses every other way. */
const policy = globalThis.trustedTypes?.createPolicy("bough", { createHTML: (text) => text });

/** Make nodes of HTML that this server rendered. @param {string} html */
export function fragment(html) {
  const template = document.createElement("template");
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

/** Ask for the key in a dialog over the screen. True when a new session is open. */
async function signInAgain() {
  const { open } = await import("./dialog.js");
  const form = document.createElement("form");
  const label = Object.assign(document.createElement("label"), { className: "field", textContent: "Key" });
  const key = Object.assign(document.createElement("input"), { type: "password", autocomplete: "off", required: true });
  const wrong = Object.assign(document.createElement("p"), { className: "bad" });
  const button = Object.assign(document.createElement("button"), { className: "main", textContent: "Sign in" });
  label.append(key);
  form.append(label, wrong, button);
  const dialog = open("Your session has ended", form);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(false));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const body = JSON.stringify({ key: key.value });
      const answer = await fetch("/auth/session", { method: "POST", body, headers: { "Content-Type": "application/json" } });
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
  const region = document.getElementById(urgent ? "urgent" : "polite");
  if (region) region.textContent = text;
}

function banner(id, text, action, run) {
  let box = document.getElementById(id);
  if (!text) return box?.remove();
  if (!box) {
    box = Object.assign(document.createElement("p"), { id, className: "banner" });
    const button = Object.assign(document.createElement("button"), { textContent: action, className: "quiet" });
    button.addEventListener("click", run);
    box.append(document.createElement("span"), button);
    $(".top")?.after(box);
    announce(text, true);
  }
  box.firstChild.textContent = text;
}

let lastSeen = new Date();

/** Show whether the server answers. @param {boolean} isOffline @param {number} [seconds] until the next try */
export function setOffline(isOffline, seconds = 0) {
  if (!isOffline) lastSeen = new Date();
  const when = lastSeen.toLocaleTimeString();
  const retry = seconds ? ` Retrying in ${seconds} s.` : "";
  banner("offline", isOffline && `Connection lost.${retry} What you see is from ${when}.`, "Retry now", () => location.reload());
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

/**
 * Follow what changes in the tenant. The stream is closed after the page was hidden for a minute.
 * @param {(row: object) => void} onConversation called with each changed row
 */
export function followUpdates(onConversation) {
  let source, timer;
  const connect = () => {
    source = new EventSource("/api/updates");
    let lost;
    source.addEventListener("open", () => (clearTimeout(lost), setOffline(false)));
    // The browser connects again by itself; only a server that stays away is worth a banner.
    source.addEventListener("error", () => { clearTimeout(lost); lost = setTimeout(() => setOffline(true, 1), 2000); });
    source.addEventListener("conversation", (event) => onConversation(JSON.parse(event.data)));
    source.addEventListener("approvals", (event) => showWaiting(JSON.parse(event.data).count));
    source.addEventListener("end", (event) => {
      if (JSON.parse(event.data).reason === "key") {
        source.close();
        signInAgain().then((isOpen) => isOpen && connect());
      }
    });
  };
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => source.close(), 60000);
    else if (source.readyState === EventSource.CLOSED) connect();
  });
  connect();
}

/** Show how many conversations wait for a person. @param {number} count */
export function showWaiting(count) {
  const mark = document.getElementById("waiting-count");
  if (!mark) return;
  const before = mark.hidden ? 0 : Number(mark.firstElementChild.textContent);
  mark.hidden = count === 0;
  mark.firstElementChild.textContent = count;
  document.title = (count ? `(${count}) ` : "") + document.title.replace(/^\(\d+\) /, "");
  if (count > before) announce(`${count} waiting for you`);
}

function makeThemeSwitch() {
  const button = document.getElementById("theme-switch");
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
