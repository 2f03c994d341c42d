// The times of one answer. In: the moments when things happen. Out: figures beside the conversation, and a line of them.
// Does not know: what is being answered.

const FIGURES = { ttft: "text", ttfa: "audio", whole: "end" };

/** Owns the moments of one answer, in ms since the request was sent; the figures beside the page show the newest one's. */
export class Stopwatch {
  #began = performance.now();
  #moments = {};
  #audioS = 0;
  #numGaps = 0;

  constructor() {
    this.#show();
  }

  /** Notes the first time that `name` (text, audio, end) happens. */
  mark(name) {
    if (name in this.#moments) return;
    this.#moments[name] = performance.now() - this.#began;
    this.#show();
  }

  /** So much audio there is, and so often the player has run dry. */
  heard(seconds, numGaps) {
    this.#audioS = seconds;
    this.#numGaps = numGaps;
    this.#show();
  }

  /** The figures as one line. */
  get words() {
    const { text, audio, end } = this.#moments;
    const parts = [];
    if (text !== undefined) parts.push(`first text ${duration(text)}`);
    if (audio !== undefined) parts.push(`first audio ${duration(audio)}`);
    if (end !== undefined) parts.push(`all of it ${duration(end)}`);
    if (this.#audioS > 0) parts.push(`${this.#audioS.toFixed(1)} s of audio`);
    if (this.#numGaps > 0) parts.push(`${this.#numGaps} ${this.#numGaps === 1 ? "gap" : "gaps"} in it`);
    return parts.join(" · ");
  }

  #show() {
    for (const [id, moment] of Object.entries(FIGURES)) put(id, this.#moments[moment], duration);
    put("audio-length", this.#audioS || undefined, (seconds) => `${seconds.toFixed(1)} s`);
  }
}

function put(id, value, words) {
  document.getElementById(id).textContent = value === undefined ? "–" : words(value);
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}
