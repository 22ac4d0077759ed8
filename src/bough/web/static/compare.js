// Compare: while a branch runs, its new steps appear in place; what is open stays open.
import { fragment, request } from "./core.js";

const pairs = document.getElementById("pairs");
const seen = (pairs?.dataset.ends ?? "").split(" ").map(Number);
let timer = 0;

async function refresh() {
  const response = await request(location.href, { headers: { Accept: "text/html" } });
  const page = fragment(await response.text());
  for (const selector of [".cmp tbody", "#pairs"]) {
    const before = document.querySelector(selector), after = page.querySelector(selector);
    if (!before || !after) continue;
    const open = [...before.querySelectorAll("details")].map((item) => item.open);
    after.querySelectorAll("details").forEach((item, place) => { if (place in open) item.open = open[place]; });
    before.replaceChildren(...after.childNodes);
  }
}

[pairs?.dataset.a, pairs?.dataset.b].forEach((id, side) => {
  if (!id) return;
  const source = new EventSource(`/api/conversations/${id}/events/stream?after=${seen[side] - 1}`);
  const wake = () => { timer ||= setTimeout(() => { timer = 0; refresh().catch(() => {}); }, 500); };
  source.addEventListener("event", wake);
  source.addEventListener("end", () => source.close());
});
