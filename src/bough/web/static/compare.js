// Compare: while a branch runs, its new steps appear in place; what is open stays open.
import { keepOpen, readPage, request } from "./core.js";

const pairs = document.getElementById("pairs");
const seen = (pairs?.dataset.ends ?? "").split(" ").map(Number);
let timer = 0;

async function refresh(response) {
  const page = await readPage(response ?? (await request(location.href, { headers: { Accept: "text/html" } })));
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
  const wake = () => { timer ||= setTimeout(() => { timer = 0; refresh().catch(() => {}); }, 500); };
  keepOpen({
    url: () => `/api/conversations/${id}/events/stream?after=${seen[side] - 1}`,
    probe: location.href,
    on: { event: wake },
    again: refresh,
  });
});
