// The reader of a conversation's live rows: each event once and in order, whatever the connection does.
import { fragment, keepOpen, readPage, request } from "./core.js";

/**
 * Follow a conversation.
 * @param {{id: string, last: number, rows: (nodes: DocumentFragment, from: number, to: number) => void,
 *   delta: (piece: {kind: string, text: string}) => void, state: (nodes: DocumentFragment) => void,
 *   ended: () => void}} reader
 */
export function follow(reader) {
  let last = reader.last, work = Promise.resolve();

  /** Take rows in order: what is known is dropped, and what is missing is fetched first. */
  async function take(html) {
    const batch = fragment(html).firstElementChild;
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
      const page = await readPage(await request(`/c/${reader.id}/rows?from=${start}&to=${stop}`));
      last = stop - 1;
      reader.rows(page.firstElementChild, start, last);
    }
  }

  const queue = (step) => (data) => { work = work.then(() => step(data)).catch(fail); };
  const fail = keepOpen({
    url: () => `/c/${reader.id}/live?after=${last}`,
    probe: `/c/${reader.id}/rows?from=0&to=1`,
    on: {
      rows: queue(take),
      state: queue((html) => reader.state(fragment(html))),
      delta: queue((text) => reader.delta(JSON.parse(text))),
    },
    ended: reader.ended,
  });
}
