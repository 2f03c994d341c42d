"""Acoustic model: text in, vocoder frames out, through hibari's G2P and its ONNX network.

In: English text and a speed. Out: rows of (lh, theta, ln, lr, phi, f0), 80 a second, and where sentences end.
Does not know: requests, chunks, waveforms.
"""

import re

import numpy as np
from hibari import Hibari
from numpy.typing import NDArray

from antiphon.models.voice.vocoder import NUM_BINS, PARAMS_WIDTH
from antiphon.models.voice.voices import VOICES

_LONG_NUMBER = re.compile(r"\d[\d,]{20,}")  # hibari has no name for numbers of more than 36 digits
_LONG_WORD = re.compile(r"\S{40}(?=\S)")  # its time for a word grows with the cube of the word's parts


class AcousticModel:
    """Owns the ONNX session and the G2P tables. One thread at a time."""

    def __init__(self, hibari: Hibari) -> None:
        self._hibari = hibari

    @classmethod
    def load(cls, num_threads: int) -> "AcousticModel":
        """Read the bundled voice from disk (nothing is ever downloaded); `num_threads` for the network."""
        hibari = Hibari(voice=VOICES[0], threads=num_threads)
        model = cls(hibari)
        model.frames(model.phoneme_ids("Ready."), 1.0)  # the G2P loads its tables at first use
        return model

    def phoneme_ids(self, text: str) -> list[list[int]]:
        """The network's tokens, a list per sentence; none for text without anything to pronounce."""
        return [
            self._hibari.ids(phonemes)
            for phonemes in self._hibari.phonemize(_readable(text))
            if any(symbol.isalpha() for symbol in phonemes)  # punctuation alone would be a second of silence
        ]

    def frames(self, ids: list[list[int]], speed: float) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """params [num_frames, 3006] float32, sentence_end [num_frames] uint8 (1 on a sentence's last frame).

        ids: as phoneme_ids gives them; no sentence gives zero rows. speed: 1.0 normal, 2.0 twice as fast.
        """
        sentences = [self._sentence(sentence, speed) for sentence in ids]
        params = np.concatenate(sentences) if sentences else np.zeros((0, PARAMS_WIDTH), np.float32)
        sentence_end = np.zeros(len(params), np.uint8)
        sentence_end[np.cumsum([len(rows) for rows in sentences], dtype=np.int64) - 1] = 1
        return params, sentence_end

    def _sentence(self, ids: list[int], speed: float) -> NDArray[np.float32]:
        inputs = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        *spectra, f0 = self._hibari.sess.run(["lh", "theta", "ln", "lr", "phi", "f0"], inputs)
        rows = np.empty((f0.shape[1], PARAMS_WIDTH), np.float32)
        for index, spectrum in enumerate(spectra):  # [1, 601, num_frames]
            rows[:, index * NUM_BINS : (index + 1) * NUM_BINS] = spectrum[0].T
        rows[:, -1] = f0[0]
        return rows


def _readable(text: str) -> str:
    """`text` without what hibari fails on: long numbers are read digit by digit, long words in parts."""
    text = text.replace("\u0130", "I")  # the one letter whose lower case is two characters
    text = _LONG_NUMBER.sub(lambda number: " ".join(number[0].replace(",", "")), text)
    return _LONG_WORD.sub(lambda part: f"{part[0]} ", text)
