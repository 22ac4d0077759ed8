// A front end with @ag-ui/client: runs an agent, sees a call, answers its interrupt, changes a message. Prints JSON.
import { HttpAgent, buildResumeArray } from "@ag-ui/client";

const [url, key] = process.argv.slice(2);
const headers = key ? { Authorization: `Bearer ${key}` } : {};
const agent = new HttpAgent({ url, headers });
const say = (content) => agent.addMessage({ id: crypto.randomUUID(), role: "user", content });

async function run(options = {}) {
  const seen = [];
  const onEvent = ({ event }) => void seen.push(event.type);
  await agent.runAgent(options, { onEvent });
  return seen;
}

say("write it");
const asked = await run();
const [interrupt] = agent.pendingInterrupts;
let refusal = null;
try {
  await run();
} catch (error) {
  refusal = error.message;
}
const responses = { [interrupt.id]: { status: "resolved", payload: { approved: true } } };
const resumed = await run({ resume: buildResumeArray(agent.pendingInterrupts, responses) });
const conversation = agent.state.bough.conversation;
const kept = agent.messages.length;
say("and now?");
await run();
agent.setMessages(agent.messages.slice(0, kept));
say("and instead?");
await run();
const roles = agent.messages.map((message) => message.role);
const fork = agent.state.bough.conversation;
const answer = agent.messages.at(-1).content;
console.log(JSON.stringify({
  asked, resumed, roles, answer, refusal: refusal !== null, open: agent.pendingInterrupts.length,
  interrupt: interrupt.metadata.bough.tool, thread: agent.threadId === conversation, isFork: fork !== conversation,
}));
