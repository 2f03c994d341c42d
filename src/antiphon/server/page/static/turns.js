// The conversation as it is shown. In: who speaks, text, times. Out: elements in the log, figures beside it.
// Does not know: the server, sound.

const log = document.getElementById("conversation");
const NEAR_END_PX = 120;

/** Owns the elements of one turn. */
export class Turn {
  #element = document.createElement("article");
  #said = document.createElement("div");
  #measures = null;

  constructor(kind, name) {
    document.getElementById("welcome").hidden = true;
    this.#element.className = `turn ${kind}`;
    const title = document.createElement("h3");
    title.textContent = name;
    this.#said.className = "said";
    this.#element.append(title, this.#said);
    log.append(this.#element);
    follow(true);
  }

  set busy(isBusy) {
    this.#element.setAttribute("aria-busy", String(isBusy));
  }

  get text() {
    return this.#said.textContent;
  }

  set text(text) {
    this.#said.textContent = text;
    follow(false);
  }

  /** More of the text. */
  add(text) {
    this.#said.append(text);
    follow(false);
  }

  /** A line of figures under the text; the last one given is shown. */
  measure(words) {
    this.#measures ??= this.#line("measures");
    this.#measures.textContent = words;
  }

  note(words) {
    this.#line("note").textContent = words;
  }

  /** What went wrong. */
  fail(words) {
    const line = this.#line("failure");
    line.setAttribute("role", "alert");
    line.textContent = words;
  }

  /** The whole sound, to hear again or to keep. */
  keep(blob, label) {
    const player = document.createElement("audio");
    player.controls = true;
    player.preload = "metadata";
    player.src = URL.createObjectURL(blob);
    player.setAttribute("aria-label", label);
    this.#element.append(player);
    follow(false);
  }

  #line(kind) {
    const line = document.createElement("p");
    line.className = kind;
    this.#element.append(line);
    follow(false);
    return line;
  }
}

/** Removes every turn. */
export function clearTurns() {
  for (const turn of log.querySelectorAll(".turn")) {
    turn.querySelectorAll("audio").forEach((player) => URL.revokeObjectURL(player.src));
    turn.remove();
  }
  document.getElementById("welcome").hidden = false;
}

/** Keeps the end in sight, unless the person has scrolled away from it. */
function follow(always) {
  if (always || log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX) log.scrollTop = log.scrollHeight;
}
