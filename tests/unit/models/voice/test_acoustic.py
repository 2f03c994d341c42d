import socket

import numpy as np
import pytest
from hibari import Hibari

from antiphon.models.voice.acoustic import AcousticModel
from antiphon.models.voice.vocoder import PARAMS_WIDTH


@pytest.fixture(scope="module")
def model() -> AcousticModel:
    return AcousticModel.load(num_threads=1)


def test_rows_hold_the_six_outputs_of_the_network_side_by_side(model: AcousticModel) -> None:
    hibari = Hibari(threads=1)
    (phonemes,) = hibari.phonemize("Hello there.")
    inputs = {"ids": np.asarray([hibari.ids(phonemes)], np.int64), "speed": np.ones(1, np.float32)}
    *spectra, f0 = hibari.sess.run(None, inputs)
    params, sentence_end = model.frames(model.phoneme_ids("Hello there."), 1.0)
    assert params.dtype == np.float32 and params.flags.c_contiguous
    assert params.shape == (f0.shape[1], PARAMS_WIDTH)
    for index, spectrum in enumerate(spectra):
        np.testing.assert_allclose(params[:, index * 601 : (index + 1) * 601], spectrum[0].T, atol=1e-4)
    np.testing.assert_allclose(params[:, -1], f0[0], atol=1e-2)
    assert sentence_end.dtype == np.uint8
    assert np.flatnonzero(sentence_end).tolist() == [len(params) - 1]


def test_sentences_stand_one_after_the_other_with_their_ends_marked(model: AcousticModel) -> None:
    first, _ = model.frames(model.phoneme_ids("Hello there."), 1.0)
    second, _ = model.frames(model.phoneme_ids("How are you?"), 1.0)
    params, sentence_end = model.frames(model.phoneme_ids("Hello there. How are you?"), 1.0)
    np.testing.assert_allclose(params, np.concatenate((first, second)), atol=1e-4)
    assert np.flatnonzero(sentence_end).tolist() == [len(first) - 1, len(first) + len(second) - 1]


def test_higher_speed_gives_fewer_frames(model: AcousticModel) -> None:
    normal, _ = model.frames(model.phoneme_ids("The quick brown fox jumps over the lazy dog."), 1.0)
    fast, _ = model.frames(model.phoneme_ids("The quick brown fox jumps over the lazy dog."), 2.0)
    assert 0.4 < len(fast) / len(normal) < 0.6


@pytest.mark.parametrize("text", ["", "   \n", "...", "?!", "中文"])
def test_text_without_sound_gives_no_rows(model: AcousticModel, text: str) -> None:
    params, sentence_end = model.frames(model.phoneme_ids(text), 1.0)
    assert params.shape == (0, PARAMS_WIDTH) and params.dtype == np.float32
    assert sentence_end.shape == (0,) and sentence_end.dtype == np.uint8


def test_a_number_too_long_to_have_a_name_is_read_digit_by_digit(model: AcousticModel) -> None:
    assert model.phoneme_ids("7" * 50) == model.phoneme_ids(" ".join("7" * 50))
    assert model.phoneme_ids("1," + ",".join(["000"] * 13)) == model.phoneme_ids(" ".join("1" + "0" * 39))
    hibari = Hibari(threads=1)
    (phonemes,) = hibari.phonemize("12,345,678,901 of them")
    assert model.phoneme_ids("12,345,678,901 of them") == [hibari.ids(phonemes)]


def test_a_letter_whose_lower_case_is_two_characters_is_read(model: AcousticModel) -> None:
    assert model.phoneme_ids("\u0130stanbul") == model.phoneme_ids("Istanbul")
    assert model.phoneme_ids("(\u0130[9=") == model.phoneme_ids("(I[9=")


def test_a_word_of_many_parts_is_given_to_hibari_in_short_ones(
    model: AcousticModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[str] = []
    monkeypatch.setattr(Hibari, "phonemize", lambda _self, text: words.extend(text.split()) or [])
    model.phoneme_ids("a1" * 150 + " then " + "b-" * 20)
    assert max(map(len, words)) == 40
    assert "".join(words) == "a1" * 150 + "then" + "b-" * 20


def test_loading_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the voice is bundled: nothing may be downloaded")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    model = AcousticModel.load(num_threads=1)
    params, _ = model.frames(model.phoneme_ids("Hi."), 1.0)
    assert len(params) > 0
