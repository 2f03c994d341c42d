// Sound in: what one person says at a time. In: the microphone. Out: WAV files of spoken turns.
// Does not know: the server, the page.

import { wavOfFloats } from "/page/wav.js";

const BEFORE_S = 0.3; // kept from before the first loud frame: words begin softly
const BEGIN_S = 0.06;
const PAUSE_S = 1.0; // a pause of this length ends a turn
const LONGEST_S = 120;
const LEAST_LEVEL = 0.01; // of full scale; below it nobody talks
const OVER_FLOOR = 3; // a voice is this much louder than the room

/** Owns one turn's samples and the judgement when it begins and ends. Pure: frames in, events out. */
export class TurnDetector {
  #rate;
  #frames = [];
  #floor = 0.003;
  #loudS = 0;
  #quietS = 0;
  #talking = false;

  constructor(rate) {
    this.#rate = rate;
  }

  get isTalking() {
    return this.#talking;
  }

  /** frame: Float32Array. Returns "began", "ended", or "" for neither. */
  push(frame) {
    const seconds = frame.length / this.#rate;
    const level = Math.sqrt(frame.reduce((sum, value) => sum + value * value, 0) / frame.length);
    const isLoud = level > Math.max(LEAST_LEVEL, OVER_FLOOR * this.#floor);
    if (!isLoud) this.#floor += 0.05 * (level - this.#floor);
    this.#loudS = isLoud ? this.#loudS + seconds : 0;
    this.#quietS = isLoud ? 0 : this.#quietS + seconds;
    this.#frames.push(frame);
    if (!this.#talking) {
      const kept = Math.ceil((BEFORE_S + this.#loudS) / seconds);
      this.#frames.splice(0, Math.max(0, this.#frames.length - kept));
      if (this.#loudS < BEGIN_S) return "";
      this.#talking = true;
      return "began";
    }
    const isLong = this.#frames.length * seconds > LONGEST_S;
    return this.#quietS >= PAUSE_S || isLong ? "ended" : "";
  }

  /** The turn so far as a WAV file, or null if nobody has talked; the next turn may begin. */
  take() {
    const file = this.#talking ? wavOfFloats(this.#frames, this.#rate) : null;
    this.#frames = [];
    this.#talking = false;
    this.#loudS = this.#quietS = 0;
    return file;
  }
}

/** Owns the open microphone. on: {began(), ended(wav)}. */
export class Microphone {
  #on;
  #context = null;
  #stream = null;
  #detector = null;
  #analyser = null;

  constructor(on) {
    this.#on = on;
  }

  get isOpen() {
    return this.#stream !== null;
  }

  get analyser() {
    return this.#analyser;
  }

  /** Asks for the microphone; Error with words for people if there is none. */
  async open() {
    if (!navigator.mediaDevices) {
      throw new Error("Browsers give the microphone only to pages from https or from this machine (http://127.0.0.1).");
    }
    this.#stream = await navigator.mediaDevices
      .getUserMedia({ audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true } })
      .catch((error) => {
        throw new Error(MICROPHONE_ERRORS[error.name] ?? `The microphone does not open: ${error.message}`);
      });
    this.#context = new AudioContext();
    await this.#context.audioWorklet.addModule("/page/capture-worklet.js");
    if (!this.#stream) return this.close(); // closed while it opened
    this.#detector = new TurnDetector(this.#context.sampleRate);
    const source = this.#context.createMediaStreamSource(this.#stream);
    const capture = new AudioWorkletNode(this.#context, "capture", { numberOfOutputs: 0 });
    this.#analyser = new AnalyserNode(this.#context, { fftSize: 1024 });
    source.connect(this.#analyser);
    source.connect(capture);
    capture.port.onmessage = ({ data }) => this.#hear(data);
  }

  #hear(frame) {
    if (!this.#detector) return;
    const event = this.#detector.push(frame);
    if (event === "began") this.#on.began();
    if (event === "ended") this.#on.ended(this.#detector.take());
  }

  /** What has been said since the last turn, or null. */
  take() {
    return this.#detector?.take() ?? null;
  }

  close() {
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#context?.close();
    this.#stream = this.#context = this.#detector = this.#analyser = null;
  }
}

const MICROPHONE_ERRORS = {
  NotAllowedError: "The browser may not use the microphone; allow it for this page and press Talk again.",
  NotFoundError: "There is no microphone.",
  NotReadableError: "The microphone is in use by another program.",
};
