// What every screen needs: requests with the token, HTML of this server as nodes, messages, times, the theme.
const meta = (name) => document.querySelector(`meta[name=${name}]`)?.content ?? "";

/** The one policy by which HTML becomes nodes; the browser refuses every other way. */
const policy = globalThis.trustedTypes?.createPolicy("bough", { createHTML: (text) => text });

/** Make nodes of HTML that this server rendered. @param {string} html */
export function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = policy ? policy.createHTML(html) : html;
  return template.content;
}

/** Call the server. Throws the problem document of a refused request. @param {string} url @param {RequestInit} [options] */
export async function request(url, options = {}) {
  const headers = new Headers(options.headers);
  headers.set("X-CSRF-Token", meta("csrf"));
  const response = await fetch(url, { ...options, headers, credentials: "same-origin" });
  if (!response.ok) throw await readProblem(response);
  return response;
}

async function readProblem(response) {
  const type = response.headers.get("Content-Type") ?? "";
  const problem = type.includes("json") ? await response.json() : { title: response.statusText, detail: "", code: "" };
  return Object.assign(new Error(problem.title), problem, { status: response.status });
}

/** Tell readers of screens, politely or at once. @param {string} text */
export function announce(text, urgent = false) {
  const region = document.getElementById(urgent ? "urgent" : "polite");
  if (region) region.textContent = text;
}
