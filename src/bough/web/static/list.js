// The list of conversations: rows stay up to date where they are; new ones are announced, never put under the pointer.
import { announce, byId, keepOpen, readPage, showTimes, showWaiting } from "./core.js";
import { bind, rove } from "./keys.js";

const table = byId("rows");
const words = {
  waiting_for_confirmation: ["waiting", "wait", "warn"], running: ["running", "run", "run spin"], finished: ["done", "done", ""],
  error: ["failed", "fail", "bad"], stuck: ["stuck", "fail", "bad"],
};
const unseen = new Set();

const find = (id) => table?.querySelector(`tr[data-id="${CSS.escape(id)}"]`);

function show(change) {
  const row = find(change.id);
  if (!row) return tellNew(change);
  const [word, icon, tone] = words[change.execution_status] ?? [change.execution_status, "off", ""];
  if (row.dataset.status !== word) {
    row.dataset.status = word;
    const sign = row.querySelector("svg"), use = sign.querySelector("use");
    sign.setAttribute("class", `i ${tone}`);
    use.setAttribute("href", use.getAttribute("href").replace(/#.*/, `#${icon}`));
    sign.nextElementSibling.textContent = word;
    row.querySelector("td .warn")?.remove();
  }
  if (change.title) row.querySelector("a").textContent = change.title;
  const [events, cost, updated] = row.querySelectorAll("td.num");
  events.firstElementChild.textContent = change.head.toLocaleString("en");
  if (change.cost_usd) cost.textContent = `$${change.cost_usd < 0.0995 ? change.cost_usd.toPrecision(2) : change.cost_usd.toFixed(2)}`;
  updated.firstElementChild.dateTime = change.updated_at;
  showTimes(row);
}

function tellNew(change) {
  unseen.add(change.id);
  const news = byId("news");
  news.hidden = false;
  news.firstElementChild.textContent = `${unseen.size} new or changed, show`;
  announce(news.textContent);
}

keepOpen({
  url: () => "/api/updates",
  probe: location.href,
  on: {
    conversation: (data) => show(JSON.parse(data)),
    approvals: (data) => showWaiting(JSON.parse(data).count),
  },
  // Rows may have changed while the connection was lost.
  again: async (response) => {
    for (const row of (await readPage(response)).querySelectorAll("tr[data-id]")) find(row.dataset.id)?.replaceWith(row);
  },
});
rove(() => [...(table?.querySelectorAll("td a") ?? [])]);
bind("o", "Open", () => document.activeElement?.closest("tr")?.querySelector("a")?.click());
bind("c", "Mark for comparison; twice compares", () => {
  const mark = document.activeElement?.closest("tr")?.querySelector("input");
  if (!mark) return;
  mark.checked = !mark.checked;
  if (document.querySelectorAll("#pick input:checked").length === 2) byId("pick").requestSubmit();
});
