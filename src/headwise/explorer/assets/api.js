// Requests to the explorer: each is answered by a stream of server-sent events.

const random = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Names this tab: a newer request of the same kind cancels the older one. */
export const tab = random();

export async function start() {
  const response = await fetch("api/start");
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

const running = {};

/** Ask for `name`; `take` gets every event. A newer question of the same name takes the place of this one. */
export async function ask(name, body, take) {
  running[name]?.abort();
  const control = new AbortController();
  running[name] = control;
  const current = () => running[name] === control;
  try {
    const response = await fetch(`api/${name}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ tab, ...body }),
      signal: control.signal,
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const event of events(response.body)) {
      if (!current()) return;
      if (event.event === "error") throw new Error(event.message);
      take(event);
    }
  } catch (error) {
    if (current() && error.name !== "AbortError") {
      const gone = error instanceof TypeError;
      take({ event: "error", message: gone ? "the explorer does not answer; is it still running?" : error.message });
    }
  } finally {
    if (current()) delete running[name];
  }
}

/** Stop waiting for `name`; the server cancels it. */
export function stop(name) {
  running[name]?.abort();
  delete running[name];
}

async function refusal(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).message;
  } catch {
    return text;
  }
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    waiting += value;
    const parts = waiting.split("\n\n");
    waiting = parts.pop();
    for (const part of parts) yield JSON.parse(part.slice("data: ".length));
  }
}
