// One request from the person's wish to the last sound. In: a wish and an abort signal. Out: a turn in the conversation.
// Does not know: buttons, the microphone, what was said before.

import { wavOfBytes } from "/page/wav.js";
import { settings } from "/page/settings.js";
import { Stopwatch } from "/page/stopwatch.js";
import { Turn } from "/page/turns.js";

const FILE_TYPES = { pcm: "audio/wav", wav: "audio/wav", mp3: "audio/mpeg", aac: "audio/aac", opus: "audio/ogg", flac: "audio/flac" };

/** Owns the sound of one answer: what is played now, and all of it for later. */
class Sound {
  #format;
  #rate;
  #player;
  #parts = [];

  constructor(output, format, rate) {
    this.#format = format;
    this.#rate = rate;
    this.#player = output.player(format);
  }

  get player() {
    return this.#player;
  }

  push(bytes) {
    this.#parts.push(bytes);
    this.#player.push(bytes);
  }

  /** A Blob of the whole file; raw samples get a header. */
  file() {
    const parts = this.#format === "pcm" ? [wavOfBytes(this.#parts, this.#rate)] : this.#parts;
    return new Blob(parts, { type: FILE_TYPES[this.#format] });
  }

  get isEmpty() {
    return this.#parts.length === 0;
  }
}

/** The model's answer to `messages`. Returns what it has said, also when it was stopped or failed. */
export async function chat({ api, output, server, messages, signal }) {
  const spoken = settings.isSpoken;
  const { format } = settings;
  const body = {
    model: server.model,
    messages,
    modalities: spoken ? ["text", "audio"] : ["text"],
    ...(spoken ? { audio: { voice: settings.voice, format: format === "pcm" ? "pcm16" : format, speed: settings.speed } } : {}),
    ...settings.sampling,
  };
  const sound = spoken ? new Sound(output, format, server.sample_rate) : null;
  return await answered({ name: server.model, sound, signal }, async (turn, watch) => {
    for await (const { choices } of api.chat(body, signal)) {
      const delta = choices[0]?.delta ?? {};
      if (delta.content) {
        watch.mark("text");
        turn.add(delta.content);
      }
      if (delta.audio?.data) {
        watch.mark("audio");
        sound.push(bytesOf(delta.audio.data));
      }
      measure(turn, watch, sound);
    }
  });
}

/** The text as speech. */
export async function readAloud({ api, output, server, text, signal }) {
  const { format, voice, speed } = settings;
  const sound = new Sound(output, format, server.sample_rate);
  const rate = format === "pcm" ? { sample_rate: server.sample_rate } : {}; // else the file says its own
  const body = { model: server.model, input: text, voice, speed, response_format: format, ...rate };
  await answered({ name: settings.voice || server.model, sound, signal }, async (turn, watch) => {
    for await (const bytes of api.speech(body, signal)) {
      watch.mark("audio");
      sound.push(bytes);
      measure(turn, watch, sound);
    }
  });
}

/** The words of a recording: a Blob. */
export async function writeDown({ api, server, file, name, signal }) {
  await answered({ name: server.model, sound: null, signal }, async (turn, watch) => {
    const text = await api.transcription(server.model, file, name, signal);
    watch.mark("text");
    turn.add(text || "No words were heard.");
  });
}

/** One turn around `work`: busy until the last sound, then with its times; errors are told in it. Returns its text. */
async function answered({ name, sound, signal }, work) {
  const turn = new Turn("answer", name);
  const watch = new Stopwatch();
  turn.busy = true;
  signal.addEventListener("abort", () => sound?.player.stop());
  try {
    await work(turn, watch);
    watch.mark("end");
    turn.busy = false;
    await Promise.race([sound?.player.finish(), aborted(signal)]);
    measure(turn, watch, sound);
  } catch (error) {
    sound?.player.stop();
    if (error.name !== "AbortError") turn.fail(error.message);
  } finally {
    turn.busy = false;
    if (signal.aborted) turn.note("Stopped.");
    if (sound && !sound.isEmpty) turn.keep(sound.file(), `Hear ${name} again`);
  }
  return turn.text;
}

function measure(turn, watch, sound) {
  if (sound) watch.heard(sound.player.seconds, sound.player.numGaps);
  turn.measure(watch.words);
}

/** Rejects with an AbortError once `signal` is aborted. */
function aborted(signal) {
  return new Promise((_, reject) => {
    const stop = () => reject(new DOMException("stopped", "AbortError"));
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop);
  });
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
