// The server's HTTP API. In: plain values. Out: JSON, streams of events or bytes, or a ServerError in words for people.
// Does not know: the page, or how audio is played.

/** What went wrong, as a sentence; `status` is HTTP's, 0 if there was no answer. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** key: () -> the API key, or "". */
export class Api {
  #key;

  constructor(key) {
    this.#key = key;
  }

  /** See the server's page/overview.py. */
  async overview(signal) {
    return await read(() => this.#send("/page/overview.json", { signal }).then((answer) => answer.json()));
  }

  /** Yields the chunks of a streamed chat answer. */
  async *chat(body, signal) {
    const answer = await this.#post("/v1/chat/completions", { ...body, stream: true }, signal);
    yield* events(answer.body);
  }

  /** Yields the bytes of a spoken text as they come. */
  async *speech(body, signal) {
    const answer = await this.#post("/v1/audio/speech", body, signal);
    yield* pieces(answer.body);
  }

  /** The text of a recording: `file` is a Blob. */
  async transcription(model, file, name, signal) {
    const form = new FormData();
    form.append("model", model);
    form.append("file", file, name);
    const answer = await read(() => this.#send("/v1/audio/transcriptions", { method: "POST", body: form, signal }));
    return (await read(() => answer.json())).text;
  }

  #post(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    return read(() => this.#send(path, { method: "POST", body: JSON.stringify(body), headers, signal }));
  }

  async #send(path, options) {
    const key = this.#key();
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const answer = await fetch(path, { ...options, headers });
    if (!answer.ok) throw await errorOf(answer, key);
    return answer;
  }
}

async function* pieces(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await read(() => reader.read());
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The JSON of every `data:` line up to [DONE]; an event of type `error` is thrown. */
async function* events(body) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const piece of pieces(body)) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const value = JSON.parse(line.slice(6));
      if (value.error) throw new ServerError(value.error.message, 200);
      yield value;
    }
  }
  throw new ServerError("The answer broke off: the server closed the connection in the middle of it.");
}

/** What `work` gives; a connection that fails becomes a ServerError, an abort stays what it is. */
async function read(work) {
  try {
    return await work();
  } catch (error) {
    if (error instanceof ServerError || error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Is it still running?");
  }
}

async function errorOf(answer, key) {
  const told = await answer.json().then((body) => body.error?.message, () => null);
  if (answer.status === 401) {
    const unknown = "This server does not know the API key that is in the settings.";
    return new ServerError(key ? unknown : "This server wants an API key: put it into the field in the settings.", 401);
  }
  if (answer.status === 503) {
    const wait = answer.headers.get("Retry-After");
    return new ServerError(`The server is busy${wait ? `; try again in ${wait} s` : ""}. It says: ${told ?? "nothing"}`, 503);
  }
  return new ServerError(told ? sentence(told) : `The server answered with status ${answer.status}.`, answer.status);
}

function sentence(text) {
  return text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
