// WAV files of 16-bit mono samples. In: samples or bytes. Out: a file's bytes, or a file's samples as they come.
// Does not know: where the sound comes from or goes to.

const HEADER_BYTES = 44;

/** parts: Float32Arrays in [-1, 1], in order. Returns the bytes of a WAV file. */
export function wavOfFloats(parts, rate) {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const samples = new Int16Array(length);
  let at = 0;
  for (const part of parts) {
    for (const value of part) samples[at++] = Math.max(-1, Math.min(1, value)) * 32767;
  }
  return wavOfBytes([new Uint8Array(samples.buffer)], rate);
}

/** parts: Uint8Arrays of s16le samples, in order. Returns the bytes of a WAV file. */
export function wavOfBytes(parts, rate) {
  const size = parts.reduce((sum, part) => sum + part.length, 0);
  const file = new Uint8Array(HEADER_BYTES + size);
  const view = new DataView(file.buffer);
  const word = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  word(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  word(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  word(36, "data");
  view.setUint32(40, size, true);
  let at = HEADER_BYTES;
  for (const part of parts) {
    file.set(part, at);
    at += part.length;
  }
  return file;
}

/** Owns the header of a WAV file that is still coming; sizes in it do not matter. */
export class WavReader {
  #head = new Uint8Array(0);
  #isOpen = false;

  /** Returns the bytes of samples in `bytes`, none before the header has ended. */
  push(bytes) {
    if (this.#isOpen) return bytes;
    this.#head = joined(this.#head, bytes);
    const start = this.#dataStart();
    if (start === null) return new Uint8Array(0);
    this.#isOpen = true;
    return this.#head.subarray(start);
  }

  #dataStart() {
    const view = new DataView(this.#head.buffer, this.#head.byteOffset, this.#head.length);
    for (let at = 12; at + 8 <= view.byteLength; ) {
      if (view.getUint32(at) === 0x64617461) return at + 8; // "data"
      at += 8 + view.getUint32(at + 4, true) + (view.getUint32(at + 4, true) & 1);
    }
    return null;
  }
}

/** One Uint8Array of two. */
export function joined(first, second) {
  if (first.length === 0) return second;
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}
