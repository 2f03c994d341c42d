// Sends what the microphone hears to the page, in frames of about 20 ms.

const FRAME_SAMPLES = 1024;

class Capture extends AudioWorkletProcessor {
  #frame = new Float32Array(FRAME_SAMPLES);
  #length = 0;

  process([input]) {
    const samples = input[0];
    if (samples) {
      this.#frame.set(samples, this.#length); // blocks of 128: a frame is full exactly
      this.#length += samples.length;
      if (this.#length === FRAME_SAMPLES) {
        this.port.postMessage(this.#frame, [this.#frame.buffer]);
        this.#frame = new Float32Array(FRAME_SAMPLES);
        this.#length = 0;
      }
    }
    return true;
  }
}

registerProcessor("capture", Capture);
