// The timeline: a window of chunks that touch the screen, rows as they come, jumps, search and keys.
import { announce, byId, fragment, make, request } from "./core.js";
import { openFork } from "./fork.js";
import { bind } from "./keys.js";
import { follow } from "./stream.js";

const SIZE = 50, WHOLE = 400, MAX_PIXELS = 8e6, MIN_CHUNK = 100, NEAR_END = 80;
const log = byId("log");
const id = log.dataset.id;
const address = `/c/${id}`;
const isFiltered = log.dataset.kinds !== "all";
let head = Number(log.dataset.head);

// The window. `heights[n]` is the measured height of chunk n, or 0.
const chunks = new Map([...log.querySelectorAll(".chunk")].map((chunk) => [Number(chunk.dataset.n), chunk]));
const heights = new Float32Array(Math.ceil(head / SIZE) + 4096);
let measured = 0, known = 0, version = 0, isWindowed = false, busy = false, again = false;
const above = make("div"), below = make("div");
const bodies = new WeakMap();
const box = (element) => element.getBoundingClientRect(), topOf = (element) => box(element).top;
const count = () => Math.max(1, Math.ceil(head / SIZE));

function estimate() {
  const mean = known ? measured / known : 1500;
  return Math.max(MIN_CHUNK, Math.min(mean, (MAX_PIXELS - measured) / Math.max(1, count() - known)));
}

/** The height of the chunks with `from <= n < to`. */
function span(from, to) {
  const guess = estimate();
  let sum = 0;
  for (let n = from; n < to; n++) sum += heights[n] || guess;
  return sum;
}

/** The chunk at a height below the log's beginning, and how far into it. */
function find(y) {
  const guess = estimate();
  const last = count() - 1;
  for (let i = 0; i < last; i++) {
    const height = heights[i] || guess;
    if (y < height) return [i, y / height];
    y -= height;
  }
  return [last, Math.min(1, y / (heights[last] || guess))];
}

function measure(n, chunk) {
  const { height } = box(chunk);
  if (Math.abs(height - heights[n]) < 0.5) return;
  if (heights[n]) measured -= heights[n];
  else known++;
  measured += heights[n] = height;
}

/** Take the contents of folded rows out of the page; they come back when a row is unfolded. */
function fold(root) {
  for (const details of root.querySelectorAll(".row > details:not([open])")) {
    if (bodies.has(details)) continue;
    const body = document.createDocumentFragment();
    while (details.children.length > 1) body.append(details.children[1]);
    bodies.set(details, body);
  }
}

log.addEventListener("toggle", (event) => {
  const body = bodies.get(event.target);
  if (event.target.open && body) {
    bodies.delete(event.target);
    event.target.append(body);
  }
}, true);

async function load(n) {
  const answer = await request(`${address}/rows?from=${n * SIZE}&to=${Math.min((n + 1) * SIZE, head)}`);
  const batch = fragment(await answer.text()).firstElementChild;
  const chunk = batch.querySelector(`.chunk[data-n="${n}"]`) ?? make("div");
  fold(chunk);
  return chunk;
}

/** Put chunks into the page and take out the others. What is read keeps its place; `restore` finds it if no row is held. */
async function show(first, last, restore) {
  const own = ++version, missing = [];
  for (let n = first; n <= last; n++) if (!chunks.has(n)) missing.push(n);
  if (missing.length) log.setAttribute("aria-busy", "true");
  const loaded = await Promise.all(missing.map(load)).finally(() => own === version && log.removeAttribute("aria-busy"));
  if (own !== version) return;
  const focused = document.activeElement.closest(".chunk"), back = hold() ?? restore;
  for (const [n, chunk] of chunks) {
    if (n >= first && n <= last || chunk === focused) continue;
    chunk.remove();
    chunks.delete(n);
  }
  missing.forEach((n, i) => chunks.has(n) || chunks.set(n, loaded[i]));
  const held = [...chunks.keys()].sort((a, b) => a - b);
  for (const n of held) if (chunks.get(n).parentNode !== log) log.insertBefore(chunks.get(n), next(held, n));
  arrange();
  back?.();
}

const next = (held, n) => chunks.get(held.find((other) => other > n && chunks.get(other).parentNode === log)) ?? below;

/** Measure the chunks of the page, and put space between them for those that are not in it. */
function arrange() {
  const held = [...chunks.keys()].sort((a, b) => a - b);
  for (const n of held) measure(n, chunks.get(n));
  above.style.height = `${span(0, held[0])}px`;
  below.style.height = `${span(held[held.length - 1] + 1, count())}px`;
  held.forEach((n, i) => { // a focused row far away keeps its place by a margin
    const gap = i && span(held[i - 1] + 1, n);
    chunks.get(n).style.marginTop = gap ? `${gap}px` : "";
  });
}

/** Note the row that is read, the focused or else the first on the screen; what is returned puts it back to its place. */
function hold() {
  let row = document.activeElement.closest("article.row");
  if (!row || topOf(row) < 0 || topOf(row) > innerHeight) {
    const isBelow = (element) => box(element).bottom > 80;
    const chunk = [...chunks.values()].find((element) => topOf(element) <= 80 && isBelow(element));
    row = [...(chunk?.querySelectorAll("article.row") ?? [])].find(isBelow);
  }
  if (!row) return null;
  const top = topOf(row);
  return () => row.isConnected && scrollBy(0, topOf(row) - top);
}
let reading = null;

async function settle() {
  if (!isWindowed) return;
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  try {
    do {
      again = false;
      const y = Math.max(0, -topOf(log)), screen = innerHeight;
      const first = find(Math.max(0, y - screen))[0], last = find(y + 2 * screen)[0];
      const [n, fraction] = find(y);
      const isComplete = [...Array(last - first + 1).keys()].every((i) => chunks.has(first + i));
      if (!isComplete || chunks.size > last - first + 3) await show(first, last, () => {
        const chunk = chunks.get(n);
        if (chunk) scrollBy(0, topOf(chunk) + fraction * box(chunk).height);
      });
    } while (again);
  } catch (problem) {
    announce(problem.title ?? "The events cannot be read now.", true);
  } finally {
    busy = false;
    reading = hold();
  }
}

function begin() {
  isWindowed = head > WHOLE && !isFiltered;
  if (!isWindowed) return;
  log.querySelectorAll(":scope > .pages, :scope > .matches").forEach((node) => node.remove());
  log.classList.add("window");
  log.prepend(above);
  log.append(below);
  for (const chunk of chunks.values()) fold(chunk);
  arrange();
}

/** The row of an event; if its own element is folded away, the row before it contains it. */
function row(seq) {
  const own = byId(`e${seq}`);
  if (own?.dataset.in) return byId(`e${own.dataset.in}`) ?? own;
  const before = () => [...(chunks.get(Math.floor(seq / SIZE))?.querySelectorAll("article.row") ?? [])]
    .filter((element) => Number(element.id.slice(1)) <= seq).pop();
  return own ?? before();
}

/** Show an event and focus its row. */
export async function jump(seq) {
  seq = Math.max(0, Math.min(seq, head - 1));
  const n = Math.floor(seq / SIZE);
  // Arrivals and scrolling may change the window while the chunks are loaded.
  for (let tries = 99; isWindowed && !chunks.has(n) && tries; tries--) await show(Math.max(0, n - 1), Math.min(count() - 1, n + 1));
  const element = row(seq);
  if (element?.dataset.in) return jump(Number(element.dataset.in));
  if (!element) return void (location.href = `${address}?at=${seq}#e${seq}`);
  const details = element.closest("details") ?? element.querySelector(":scope > details");
  if (details) details.open = true;
  element.scrollIntoView({ block: "start" });
  focus(element.closest("article") ?? element);
  await settle();
}

function focus(element) {
  log.querySelector('article[tabindex="0"]')?.setAttribute("tabindex", "-1");
  element.tabIndex = 0;
  element.focus({ preventScroll: true });
}

// Rows as they come. A row replaces the one of its id; a new one goes to the end of its turn.
const toEnd = () => scrollTo(0, document.documentElement.scrollHeight);
const isAtEnd = () => document.documentElement.scrollHeight - innerHeight - scrollY < NEAR_END;
const news = byId("news");
let unseen = 0;

function take(batch, from, to) {
  const wasAtEnd = isAtEnd();
  const hadTail = chunks.has(count() - 1) || head === 0;
  log.querySelector(".empty")?.remove();
  dropDraft();
  head = Math.max(head, to + 1);
  for (const chunk of [...batch.querySelectorAll(".chunk")]) merge(chunk, from, hadTail);
  if (isWindowed) arrange();
  else if (head > WHOLE) begin();
  if (wasAtEnd) toEnd();
  else tell(to - from + 1);
  settle();
}

function merge(chunk, from, hadTail) {
  const n = Number(chunk.dataset.n);
  let target = chunks.get(n);
  if (!target && hadTail && (n + 1) * SIZE > from) {
    target = make("div", { className: "chunk" });
    target.dataset.n = String(n);
    log.insertBefore(target, isWindowed ? below : null);
    chunks.set(n, target);
  }
  for (const section of [...chunk.children]) {
    let turn = target?.querySelector(`section[data-turn="${section.dataset.turn}"]`);
    for (const child of [...section.children]) {
      const present = byId(child.id);
      if (present) {
        copyOpen(present, child);
        present.replaceWith(child);
      } else if (target) {
        if (!turn) {
          turn = section.cloneNode(false);
          target.append(turn);
        }
        turn.append(child);
      }
      if (isWindowed) fold(child.parentNode);
    }
  }
}

function copyOpen(old, replacement) {
  const before = old.querySelector(":scope > details"), after = replacement.querySelector(":scope > details");
  if (before?.open && after) after.open = true;
  if (old.contains(document.activeElement)) queueMicrotask(() => focus(replacement));
}

function tell(added) {
  unseen += added;
  news.hidden = false;
  news.lastElementChild.textContent = unseen === 1 ? "1 new event" : `${unseen} new events`;
}

news.addEventListener("click", async (event) => {
  event.preventDefault();
  await jump(head - 1);
  toEnd();
});
addEventListener("scroll", () => {
  if (isAtEnd()) {
    unseen = 0;
    news.hidden = true;
  }
  requestAnimationFrame(settle);
}, { passive: true });
addEventListener("resize", () => {
  if (isWindowed) { // rows of another width have other heights
    heights.fill(0);
    measured = known = 0;
    arrange();
    reading?.();
  }
  settle();
});

// Text as it comes, in a row of its own until the event replaces it.
let draft = null;
function write({ kind, text }) {
  if (isFiltered || kind !== "text") return;
  const wasAtEnd = isAtEnd();
  if (!draft) {
    draft = make("article", { className: "row step now" });
    draft.setAttribute("aria-busy", "true");
    draft.append(make("span"), make("pre"));
    log.insertBefore(draft, isWindowed ? below : null);
  }
  draft.lastElementChild.append(text);
  if (wasAtEnd) toEnd();
}
function dropDraft() {
  draft?.remove();
  draft = null;
}

function setState(nodes) {
  const old = byId("status"), fresh = nodes.firstElementChild, wasRunning = "running" in old.dataset;
  old.replaceWith(fresh);
  const isRunning = "running" in fresh.dataset;
  if (wasRunning && !isRunning) announce(fresh.textContent.trim().replace(/\s+/g, " "));
  document.querySelectorAll("[data-when]").forEach((button) => (button.hidden = button.dataset.when !== fresh.dataset.can));
}

// Search: n of m, from the whole log.
const field = byId("find"), counter = byId("matches");
let matches = [], current = -1, searching = 0;
async function search(text) {
  const own = ++searching;
  matches = [];
  for (let from = 0; from !== null && own === searching; ) {
    const answer = await request(`${address}/find?text=${encodeURIComponent(text)}&from=${from}`);
    const page = await answer.json();
    if (own !== searching) return;
    const isFirst = !matches.length && page.matches.length;
    matches.push(...page.matches);
    counter.hidden = false;
    counter.textContent = matches.length ? `${current + 1} of ${matches.length}` : "searching";
    if (isFirst) await step(0);
    from = page.next;
  }
  if (!matches.length) counter.textContent = "no match";
}
async function step(to) {
  current = (to + matches.length) % matches.length;
  counter.textContent = `${current + 1} of ${matches.length}`;
  await jump(matches[current]);
}
field.form.addEventListener("submit", (event) => {
  const text = field.value.trim();
  if (!text || isFiltered) return;
  event.preventDefault();
  if (/^#?\d+$/.test(text) && text[0] === "#") jump(Number(text.slice(1)));
  else if (field.dataset.text === text && matches.length) step(current + 1);
  else {
    field.dataset.text = text;
    current = -1;
    search(text).catch((problem) => announce(problem.title, true));
  }
});
field.form.addEventListener("change", (event) => event.target.name === "kinds" && field.form.submit());

// Keys: they act on the focused row, or the first on the screen.
const rows = (selector = ".row") => [...log.querySelectorAll(`article${selector}`)];
const here = () => document.activeElement.closest("article.row") ??
  rows().find((element) => box(element).bottom > 80);
function move(list, by) {
  const from = here();
  const order = (element) => from.compareDocumentPosition(element) & (by > 0 ? 4 : 2);
  const target = by > 0 ? list.find(order) : list.findLast(order);
  if (!target) return;
  focus(target);
  target.scrollIntoView({ block: by === 1 && target.offsetHeight < innerHeight ? "nearest" : "start" });
}
const seq = () => here()?.id.slice(1) ?? 0;
function mark() {
  const other = sessionStorage.getItem("marked");
  sessionStorage.setItem("marked", id);
  if (other && other !== id) return location.assign(`/c/${other}/compare/${id}`);
  counter.hidden = false;
  counter.textContent = "marked";
}
const turns = () => rows(".you").filter((element) => element.matches(".turn:not(.more) > :first-child"));
for (const [key, label, run] of [
  ["j", "Next row", () => move(rows(), 1)],
  ["k", "Previous row", () => move(rows(), -1)],
  ["e", "Next error", () => move(rows("[data-error]"), 1)],
  ["]", "Next turn", () => move(turns(), 2)],
  ["[", "Previous turn", () => move(turns(), -2)],
  ["o", "Open or close the row", () => here()?.querySelector("summary")?.click()],
  ["#", "Jump to an event", () => { field.value = "#"; field.focus(); }],
  ["m", "Write a message", () => byId("message").focus()],
  ["y", "Copy the row's link", () => navigator.clipboard?.writeText(`${location.origin}${address}?at=${seq()}#e${seq()}`)],
  ["f", "Fork from here", () => openFork(`${address}/fork?at=${seq()}`)],
  ["F", "Fork beside", () => openFork(`${address}/fork?at=${seq()}&beside=1`)],
  ["c", "Mark for comparison; in another conversation: compare", mark],
]) bind(key, label, run);

begin();
if (log.dataset.at !== "") jump(Number(log.dataset.at));
else if (!location.hash || location.hash === "#talk") toEnd();
follow({
  id,
  last: Number(log.dataset.last),
  rows: isFiltered ? () => {} : take,
  delta: write,
  state: setState,
  ended: () => document.querySelectorAll(".talk button").forEach((button) => (button.disabled = true)),
});
