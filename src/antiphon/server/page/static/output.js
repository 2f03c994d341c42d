// Sound out. In: the bytes of one answer as they come, in any format the server speaks. Out: sound without gaps.
// Does not know: HTTP, the page. All players have push(bytes), finish() -> promise (played to the end), stop().

import { WavReader, joined } from "/page/wav.js";

const LEAD_S = 0.08; // what is scheduled ahead of the first sample, so that it is not late
const FADE_S = 0.02;
const MEDIA_TYPES = { mp3: "audio/mpeg", aac: "audio/aac" }; // formats that a MediaSource may take while they come

/** Owns the AudioContext, at the server's sample rate so that chunks join sample by sample, and its meter. */
export class Output {
  #context = null;
  #analyser = null;
  #rate;

  constructor(rate) {
    this.#rate = rate;
  }

  /** Call it from a click or key: browsers let no page sound before. */
  open() {
    if (this.#context === null) {
      this.#context = new AudioContext({ sampleRate: this.#rate, latencyHint: "interactive" });
      this.#analyser = new AnalyserNode(this.#context, { fftSize: 1024 });
      this.#analyser.connect(this.#context.destination);
    }
    this.#context.resume();
  }

  get analyser() {
    return this.#analyser;
  }

  /** The player for one answer: at once where the browser can, else when all of it has come. */
  player(format) {
    this.open();
    const gain = new GainNode(this.#context);
    gain.connect(this.#analyser);
    if (format === "pcm") return new PcmPlayer(this.#context, gain, (bytes) => bytes);
    if (format === "wav") {
      const reader = new WavReader();
      return new PcmPlayer(this.#context, gain, (bytes) => reader.push(bytes));
    }
    const type = MEDIA_TYPES[format];
    const takes = type && "MediaSource" in window && MediaSource.isTypeSupported(type);
    return takes ? new MediaPlayer(this.#context, gain, type) : new WholePlayer(this.#context, gain);
  }
}

/** Owns the chain of scheduled buffers: each starts at the sample after the last one's end. */
class PcmPlayer {
  #context;
  #gain;
  #samplesOf;
  #rest = new Uint8Array(0);
  #startS = 0;
  #numScheduled = 0; // since #startS
  #sources = new Set();
  #onIdle = null;
  seconds = 0;
  numGaps = 0;

  constructor(context, gain, samplesOf) {
    this.#context = context;
    this.#gain = gain;
    this.#samplesOf = samplesOf;
  }

  push(bytes) {
    const all = joined(this.#rest, this.#samplesOf(bytes));
    const numSamples = all.length >> 1;
    this.#rest = all.slice(2 * numSamples);
    if (numSamples === 0) return;
    const view = new DataView(all.buffer, all.byteOffset, 2 * numSamples);
    const rate = this.#context.sampleRate;
    const buffer = new AudioBuffer({ length: numSamples, numberOfChannels: 1, sampleRate: rate });
    const channel = buffer.getChannelData(0);
    for (let i = 0; i < numSamples; i++) channel[i] = view.getInt16(2 * i, true) / 32768;
    this.#schedule(buffer);
    this.seconds += numSamples / rate;
  }

  #schedule(buffer) {
    const rate = this.#context.sampleRate;
    const isLate = this.#startS + this.#numScheduled / rate < this.#context.currentTime;
    if (this.#numScheduled === 0 || isLate) {
      if (this.#numScheduled > 0) this.numGaps++;
      this.#startS = Math.ceil((this.#context.currentTime + LEAD_S) * rate) / rate;
      this.#numScheduled = 0;
    }
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(this.#gain);
    source.start(this.#startS + this.#numScheduled / rate);
    this.#numScheduled += buffer.length;
    this.#sources.add(source);
    source.onended = () => {
      this.#sources.delete(source);
      if (this.#sources.size === 0) this.#onIdle?.();
    };
  }

  async finish() {
    if (this.#sources.size > 0) await new Promise((resolve) => (this.#onIdle = resolve));
  }

  stop() {
    fadeOut(this.#context, this.#gain);
    for (const source of this.#sources) source.stop(this.#context.currentTime + FADE_S);
  }
}

/** Owns an audio element that is fed by a MediaSource. */
class MediaPlayer {
  #context;
  #gain;
  #element = new Audio();
  #source = new MediaSource();
  #url;
  #buffer = null;
  #waiting = [];
  #isComplete = false;
  #end;
  #over = new Promise((resolve) => (this.#end = resolve));
  numGaps = 0;

  constructor(context, gain, type) {
    this.#context = context;
    this.#gain = gain;
    this.#url = URL.createObjectURL(this.#source);
    this.#element.src = this.#url;
    context.createMediaElementSource(this.#element).connect(gain);
    this.#source.addEventListener("sourceopen", () => {
      if (this.#source.readyState !== "open" || this.#buffer) return;
      this.#buffer = this.#source.addSourceBuffer(type);
      this.#buffer.addEventListener("updateend", () => this.#feed());
      this.#feed();
    });
    this.#element.addEventListener("ended", () => this.#end());
    this.#element.addEventListener("error", () => this.#end());
    this.#element.play().catch(() => this.#end());
  }

  /** What the browser has decoded so far. */
  get seconds() {
    const ranges = this.#element.buffered;
    return ranges.length ? ranges.end(ranges.length - 1) : 0;
  }

  push(bytes) {
    this.#waiting.push(bytes);
    this.#feed();
  }

  #feed() {
    if (!this.#buffer || this.#buffer.updating || this.#source.readyState !== "open") return;
    if (this.#waiting.length > 0) this.#buffer.appendBuffer(this.#waiting.shift());
    else if (this.#isComplete) this.#source.endOfStream();
  }

  async finish() {
    this.#isComplete = true;
    this.#feed();
    await this.#over;
    URL.revokeObjectURL(this.#url);
  }

  stop() {
    fadeOut(this.#context, this.#gain);
    setTimeout(() => this.#element.pause(), 1000 * FADE_S);
    this.#end();
  }
}

/** Owns the bytes of a file that can only be decoded whole. */
class WholePlayer {
  #context;
  #gain;
  #bytes = new Uint8Array(0);
  #source = null;
  #isStopped = false;
  seconds = 0;
  numGaps = 0;

  constructor(context, gain) {
    this.#context = context;
    this.#gain = gain;
  }

  push(bytes) {
    this.#bytes = joined(this.#bytes, bytes);
  }

  async finish() {
    const buffer = await this.#context.decodeAudioData(this.#bytes.slice().buffer);
    this.seconds = buffer.duration;
    if (this.#isStopped) return;
    this.#source = new AudioBufferSourceNode(this.#context, { buffer });
    this.#source.connect(this.#gain);
    this.#source.start();
    await new Promise((resolve) => (this.#source.onended = resolve));
  }

  stop() {
    this.#isStopped = true;
    fadeOut(this.#context, this.#gain);
    this.#source?.stop(this.#context.currentTime + FADE_S);
  }
}

/** To silence within FADE_S: a sudden end clicks. */
function fadeOut(context, gain) {
  gain.gain.setValueAtTime(gain.gain.value, context.currentTime);
  gain.gain.linearRampToValueAtTime(0, context.currentTime + FADE_S);
}
