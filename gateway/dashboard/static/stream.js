// Server-sent events over fetch: EventSource could not send the key.

import { ask } from "./session.js";

const SILENCE_MS = 6000;

// Yields the data of each event. Throws when the stream ends, breaks, or falls silent.
export async function* events(path) {
  const stop = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(new Error("silence")), SILENCE_MS);
  };
  heard();
  try {
    const response = await ask(path, { signal: stop.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (part.startsWith("data: ")) yield JSON.parse(part.slice("data: ".length));
      }
    }
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}
