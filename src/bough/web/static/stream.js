// The reader of a conversation's live rows: each event once and in order, whatever the connection does.
import { announce, fragment, request } from "./core.js";

const WAITS = [1, 2, 4, 8, 15];
const HIDDEN_SECONDS = 60;

/**
 * Follow a conversation.
 * @param {{id: string, last: number, rows: (nodes: DocumentFragment, from: number, to: number) => void,
 *   delta: (piece: {kind: string, text: string}) => void, state: (nodes: DocumentFragment) => void,
 *   lost: (seconds: number | null) => void, ended: (reason: string) => void}} reader
 */
export function follow(reader) {
  let last = reader.last, source = null, failures = 0, timer = 0, hiding = 0, over = false;
  let work = Promise.resolve();

  /** Take rows in order: what is known is dropped, and what is missing is fetched first. */
  async function take(html) {
    const nodes = fragment(html);
    const batch = nodes.firstElementChild;
    const from = Number(batch?.dataset.from), to = Number(batch?.dataset.to);
    if (!(to > last)) return;
    if (from > last + 1) await fill(last + 1, from);
    if (from > last + 1) return;
    last = to;
    reader.rows(batch, from, to);
  }

  async function fill(from, to) {
    for (let start = from; start < to; start += 500) {
      const stop = Math.min(start + 500, to);
      const answer = await request(`/c/${reader.id}/rows?from=${start}&to=${stop}`);
      const batch = fragment(await answer.text()).firstElementChild;
      last = stop - 1;
      reader.rows(batch, start, last);
    }
  }

  const queue = (step) => {
    work = work.then(step).catch(fail);
  };

  function open() {
    clearTimeout(timer);
    close();
    if (over) return;
    const own = (source = new EventSource(`/c/${reader.id}/live?after=${last}`));
    const on = (name, take) => own.addEventListener(name, (event) => {
      failures = 0;
      queue(() => own === source && take(event.data));
    });
    own.addEventListener("open", () => reader.lost(null));
    on("rows", take);
    on("state", (html) => reader.state(fragment(html)));
    on("delta", (text) => reader.delta(JSON.parse(text)));
    on("end", (text) => end(JSON.parse(text).reason));
    own.addEventListener("error", fail);
  }

  function close() {
    source?.close();
    source = null;
  }

  function end(reason) {
    close();
    if (reason === "drain" || reason === "failed") return retry(1);
    over = true;
    reader.ended(reason);
    announce(reason === "deleted" ? "The conversation was deleted." : "Sign in again to follow.", true);
  }

  function fail(problem) {
    if (over) return;
    if (problem?.status === 404) return end("deleted");
    if (problem?.status === 401) return end("key");
    retry(WAITS[Math.min(failures++, WAITS.length - 1)] * (0.8 + 0.4 * Math.random()));
  }

  function retry(seconds) {
    close();
    clearTimeout(timer);
    reader.lost(seconds);
    timer = setTimeout(open, seconds * 1000);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(close, HIDDEN_SECONDS * 1000);
    else if (!source) open();
  });
  open();
  return { open, get last() { return last; } };
}
