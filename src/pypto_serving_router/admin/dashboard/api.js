// What the page asks of the router, with the token if there is one.

const TOKEN = "pypto-serving-router token";
const PATIENCE = 8000; // milliseconds for an answer to a look; changes may take as long as a drain

export class Refused extends Error {
  constructor(status, message, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

async function ask(method, path, { body, wait = false } = {}) {
  const headers = {};
  if (token.get() !== null && path.startsWith("replicas")) headers.Authorization = `Bearer ${token.get()}`;
  const signal = wait ? undefined : AbortSignal.timeout(PATIENCE);
  return fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
}

async function refusal(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return new Refused(response.status, body.message ?? text, body);
  } catch {
    return new Refused(response.status, text || `status ${response.status}`, {});
  }
}

// /health answers 503 with the same document while no replica is routable.
export async function health() {
  const response = await ask("GET", "health");
  if (response.status !== 200 && response.status !== 503) throw await refusal(response);
  return response.json();
}

async function answered(response) {
  if (!response.ok) throw await refusal(response);
  return response;
}

export const fleet = async (events) => (await answered(await ask("GET", `replicas?events=${events}`))).json();

export async function decisions(last, session) {
  const query = session ? `&session=${encodeURIComponent(session)}` : "";
  return (await answered(await ask("GET", `replicas/decisions?last=${last}${query}`))).json();
}

export const launch = async (where) => (await answered(await ask("POST", "replicas", { body: where, wait: true }))).json();

export async function retire(name, force) {
  const query = force ? "?force=true" : "";
  return (await answered(await ask("DELETE", `replicas/${encodeURIComponent(name)}${query}`, { wait: true }))).json();
}

export async function log(name, lines) {
  return (await answered(await ask("GET", `replicas/${encodeURIComponent(name)}/log?lines=${lines}`, { wait: true }))).text();
}
