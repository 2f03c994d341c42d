"""The realtime session as a state machine: what a client sends and what the stages say, against what is to be done."""

import base64
import dataclasses

import pytest
from pydantic import ValidationError

from antiphon.errors import AntiphonError, InvalidRequestError, OverloadedError, StageError
from antiphon.messages.client import AudioChunk, OutputEnd, TextDelta, Usage
from antiphon.messages.tasks import ChatMessage, Sound
from antiphon.server.realtime.dialect import Dialect
from antiphon.server.realtime.effects import Generate, Stop, WriteDown
from tests.unit.server.realtime.talking import ABLE, END, SPEECH_MS, Talking, chunk, pcm, types, written

TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
    "response.created",
]
SPOKEN = [
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]
ANSWERS_BY_HAND = {"audio": {"input": {"turn_detection": None}}}


def test_a_spoken_turn_is_heard_written_down_and_answered_in_the_order_of_openais_events():
    talking = Talking()
    heard = talking.speak()
    assert types(heard) == TURN
    assert not [effect for effect in talking.effects if isinstance(effect, Generate)], "its words are not known yet"
    (turn,) = {event["item_id"] for event in heard if "item_id" in event}
    assert heard[3]["item"]["id"] == turn
    assert talking.hear("How are you?") == []
    chat = talking.generate().chat
    assert chat.messages == (ChatMessage("user", ("How are you?",)),)
    assert (chat.audio_out, chat.voice) == (True, "anna")
    before = len(talking.said())
    talking.answer("Fine.")
    talking.finish()
    answered = talking.said()[before:]
    assert types(answered) == SPOKEN
    done = answered[-1]["response"]
    assert (done["status"], done["usage"]["total_tokens"]) == ("completed", 12)
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Fine."}]
    assert answered[1]["previous_item_id"] == turn
    assert len({event["event_id"] for event in talking.said()}) == len(talking.said())


def test_times_of_a_turn_are_on_the_clock_of_all_audio_and_its_padding_is_heard():
    talking = Talking()
    talking.send("input_audio_buffer.append", audio=pcm(2_000))
    started, stopped, *_ = talking.speak()
    assert abs(started["audio_start_ms"] - 1_700) < 64
    assert abs(stopped["audio_end_ms"] - (2_000 + SPEECH_MS + 500)) < 64
    (write,) = talking.take(WriteDown)
    assert abs(len(write.speech.audio) / 16 - (300 + SPEECH_MS + 500)) < 64


def test_the_words_of_a_turn_are_told_if_they_were_asked_for_and_not_else():
    talking = Talking()
    talking.speak()
    assert talking.hear("hello") == []
    talking.finish()
    talking.send("session.update", session={"audio": {"input": {"transcription": {"language": "en"}}}})
    talking.speak()
    (write,) = talking.take(WriteDown)
    assert write.speech.language == "en"
    talking.session.on_transcript(write.number, "again", 1.5)
    (told,) = talking.said("conversation.item.input_audio_transcription.completed")
    assert (told["item_id"], told["transcript"], told["usage"]["seconds"]) == (write.item_id, "again", 1.5)


def test_words_that_cannot_be_found_fail_the_response_that_waits_for_them_and_not_the_session():
    talking = Talking()
    talking.send("session.update", session={"audio": {"input": {"transcription": {}}}})
    talking.speak()
    (write,) = talking.take(WriteDown)
    talking.session.on_transcript_failed(write.number, StageError("listener/0 has died"))
    (failed,) = talking.said("conversation.item.input_audio_transcription.failed")
    assert failed["error"]["message"] == "listener/0 has died"
    (done,) = talking.said("response.done")
    assert done["response"]["status"] == "failed"
    assert "listener/0" in done["response"]["status_details"]["error"]["message"]
    assert types(talking.speak()) == TURN


def test_a_pipeline_whose_model_hears_is_told_the_sound_itself_also_later():
    talking = Talking(dataclasses.replace(ABLE, hears_by_writing=False, writes=False))
    talking.speak()
    assert not talking.take(WriteDown)
    (message,) = talking.generate().chat.messages
    assert isinstance(message.parts[0], Sound)
    talking.answer("Yes.")
    talking.finish()
    talking.speak()
    assert [m.role for m in talking.generate().chat.messages] == ["user", "assistant", "user"]
    assert isinstance(talking.generate().chat.messages[0].parts[0], Sound)


def test_speech_interrupts_the_running_response_and_what_comes_late_is_dropped():
    talking = Talking()
    talking.speak()
    talking.hear("Tell me a story.")
    talking.answer("Once upon a time")
    first = talking.generate().response_id
    heard = talking.send("input_audio_buffer.append", audio=pcm(SPEECH_MS, 0.5))
    assert heard[0]["type"] == "input_audio_buffer.speech_started"
    assert types(heard)[-1] == "response.done"
    done = heard[-1]["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
    assert done["output"][0]["status"] == "incomplete"
    assert talking.take(Stop) == [Stop(first)]
    before = len(talking.effects)
    talking.session.on_output(first, TextDelta(" there was"))
    talking.session.on_end(first, END)
    talking.session.on_failed(first, StageError("late"))
    assert len(talking.effects) == before
    assert "response.created" in types(talking.send("input_audio_buffer.append", audio=pcm(640)))


def test_an_interruption_while_the_words_are_awaited_starts_no_request():
    talking = Talking()
    talking.speak()
    talking.send("input_audio_buffer.append", audio=pcm(SPEECH_MS, 0.5))
    assert talking.said("response.done")[0]["response"]["output"] == []
    talking.hear("First.")
    assert not [effect for effect in talking.effects if isinstance(effect, Generate)]


def test_without_interrupt_response_the_answer_goes_on_and_a_second_one_is_refused():
    talking = Talking()
    talking.send("session.update", session={"audio": {"input": {"turn_detection": {"interrupt_response": False}}}})
    talking.speak()
    talking.hear("One.")
    talking.answer("First")
    heard = talking.speak()
    assert not talking.take(Stop)
    assert heard[-1]["type"] == "error"
    assert heard[-1]["error"]["code"] == "conversation_already_has_active_response"
    talking.finish()
    assert talking.said("response.done")[-1]["response"]["status"] == "completed"


def test_without_create_response_turns_are_heard_and_the_client_answers():
    talking = Talking()
    talking.send("session.update", session={"audio": {"input": {"turn_detection": {"create_response": False}}}})
    assert types(talking.speak()) == TURN[:-1]
    talking.hear("Well?")
    assert types(talking.send("response.create")) == ["response.created"]
    assert talking.generate().chat.messages[0].text == "Well?"


def test_a_truncated_answer_is_told_to_the_model_as_far_as_it_was_heard():
    talking = Talking()
    item = talking.ask("Count.", "one two three four five six seven eight nine ten", ms=4_000)
    (event,) = talking.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=2_000)
    assert (event["type"], event["audio_end_ms"]) == ("conversation.item.truncated", 2_000)
    talking.send("response.create")
    said = talking.generate().chat.messages[1].text
    assert said == "one two three four five"
    talking.finish()
    talking.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=0)
    talking.send("response.create")
    assert [m.role for m in talking.generate().chat.messages] == ["user"]


def test_an_interrupted_answer_is_truncated_by_a_speakers_pace_because_its_end_is_not_known():
    talking = Talking()
    talking.speak()
    talking.hear("Go on.")
    talking.answer("This is what I wanted to say about the weather in the mountains.", ms=3_000)
    talking.send("response.cancel")
    item = talking.said("response.output_item.done")[-1]["item"]["id"]
    talking.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=1_000)
    (retrieved,) = talking.send("conversation.item.retrieve", item_id=item)
    assert retrieved["item"]["content"][0]["transcript"] == "This is what I"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"item_id": "nobody", "audio_end_ms": 0}, "item_id"),
        ({"item_id": "user", "audio_end_ms": 0}, "content_index"),
        ({"item_id": "spoken", "audio_end_ms": 0, "content_index": 1}, "content_index"),
        ({"item_id": "spoken", "audio_end_ms": 1_001}, "audio_end_ms"),
    ],
)
def test_what_cannot_be_truncated_is_refused(fields, param):
    talking = Talking()
    talking.send("conversation.item.create", item=written("user", "Hi.", id="user"))
    spoken = talking.ask("Hello?", "Hello.", ms=1_000)
    if fields["item_id"] == "spoken":
        fields = {**fields, "item_id": spoken}
    with pytest.raises(InvalidRequestError) as refused:
        talking.send("conversation.item.truncate", **{"content_index": 0, **fields})
    assert refused.value.param == param


def test_a_client_may_round_the_whole_length_up():
    talking = Talking()
    talking.send("conversation.item.create", item=written("user", "Hi."))
    talking.send("response.create")
    response_id = talking.generate().response_id
    talking.session.on_output(response_id, TextDelta("Bye."))
    talking.session.on_output(response_id, AudioChunk(bytes(2 * 2_401), 24_000))  # 100.04 ms
    talking.finish()
    item_id = talking.said("response.output_item.done")[-1]["item"]["id"]
    (told,) = talking.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=101)
    assert told["type"] == "conversation.item.truncated"


def test_an_item_that_is_being_spoken_is_truncated_only_after_its_response_was_cancelled():
    talking = Talking()
    talking.send("conversation.item.create", item=written("user", "Hi."))
    talking.send("response.create")
    talking.answer("Hello there.")
    item = talking.said("response.output_item.added")[-1]["item"]["id"]
    with pytest.raises(InvalidRequestError, match="cancel its response first"):
        talking.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=10)


def test_items_are_placed_retrieved_deleted_and_told_to_the_model_in_their_order():
    talking = Talking()
    added, done = talking.send("conversation.item.create", item=written("user", "Second.", id="b"))
    assert (added["type"], added["previous_item_id"], done["type"]) == (
        "conversation.item.added",
        None,
        "conversation.item.done",
    )
    talking.send("conversation.item.create", item=written("system", "Be brief.", id="a"), previous_item_id="root")
    added, _ = talking.send(
        "conversation.item.create", item=written("assistant", "Third.", id="c"), previous_item_id="b"
    )
    assert added["previous_item_id"] == "b"
    talking.send("conversation.item.create", item=written("user", "Gone.", id="d"))
    assert types(talking.send("conversation.item.delete", item_id="d")) == ["conversation.item.deleted"]
    talking.send("response.create")
    assert [(m.role, m.text) for m in talking.generate().chat.messages] == [
        ("system", "Be brief."),
        ("user", "Second."),
        ("assistant", "Third."),
    ]


CODES = {
    "conversation.item.retrieve": "item_retrieve_invalid_item_id",
    "conversation.item.delete": "item_delete_invalid_item_id",
    "response.cancel": "response_cancel_not_active",
}
"""OpenAI's, which clients look at."""


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("conversation.item.retrieve", {"item_id": "x"}, "item_id"),
        ("conversation.item.delete", {"item_id": "x"}, "item_id"),
        ("conversation.item.create", {"item": written("user", "a", id="there")}, "item.id"),
        ("conversation.item.create", {"item": written("user", "a"), "previous_item_id": "x"}, "previous_item_id"),
        (
            "conversation.item.create",
            {"item": {"role": "user", "content": [{"type": "output_text", "text": "a"}]}},
            "item.content[0].type",
        ),
        (
            "conversation.item.create",
            {"item": {"role": "system", "content": [{"type": "input_audio", "audio": ""}]}},
            "item.content[0].type",
        ),
        (
            "conversation.item.create",
            {"item": {"role": "user", "content": [{"type": "input_text"}]}},
            "item.content[0].text",
        ),
        (
            "conversation.item.create",
            {"item": {"role": "user", "content": [{"type": "input_audio", "audio": "no base64"}]}},
            "item.content[0].audio",
        ),
        ("input_audio_buffer.append", {"audio": "?"}, "audio"),
        ("input_audio_buffer.commit", {}, ""),
        ("response.cancel", {}, "response_id"),
        ("response.create", {"response": {"tools": [{"type": "function", "name": "f"}]}}, "response.tools"),
        ("response.create", {"response": {"audio": {"output": {"voice": "zoe"}}}}, "response.audio.output.voice"),
        ("response.create", {"response": {"input": [{"type": "item_reference", "id": "x"}]}}, "response.input[0].id"),
        ("session.update", {"session": {"tools": [{"type": "function", "name": "f"}]}}, "session.tools"),
        ("session.update", {"session": {"audio": {"output": {"voice": "zoe"}}}}, "session.audio.output.voice"),
        ("conversation.item.create", {"item": written("user", "a" * 20_001)}, "item.content"),
        ("response.create", {"response": {"input": [written("user", "a" * 20_001)]}}, "response.input[0].content"),
        ("response.create", {"response": {"instructions": "a" * 20_001}}, "response.instructions"),
        ("session.update", {"session": {"instructions": "a" * 20_001}}, "session.instructions"),
        (
            "session.update",
            {"session": {"audio": {"input": {"transcription": {"language": "xx"}}}}},
            "session.audio.input.transcription.language",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name_and_changes_nothing(kind, fields, param):
    talking = Talking()
    talking.send("conversation.item.create", item=written("user", "Hi.", id="there"))
    before = len(talking.effects)
    with pytest.raises(AntiphonError) as refused:
        talking.send(kind, **fields)
    assert refused.value.param == param
    assert refused.value.code == CODES.get(kind, refused.value.code)
    assert refused.value.http_status == 400
    assert len(talking.effects) == before
    talking.send("response.create")
    assert talking.generate().chat.messages == (ChatMessage("user", ("Hi.",)),)


@pytest.mark.parametrize(
    ("kind", "fields", "place"),
    [
        ("session.update", {"session": {"type": "transcription"}}, ("session", "type")),
        ("session.update", {"session": {"prompt": {"id": "p"}}}, ("session", "prompt")),
        ("session.update", {"session": {"tool_choice": "required"}}, ("session", "tool_choice")),
        ("session.update", {"session": {"max_output_tokens": 0}}, ("session", "max_output_tokens")),
        (
            "session.update",
            {"session": {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "very"}}}}},
            ("session", "audio", "input", "turn_detection", "eagerness"),
        ),
        (
            "session.update",
            {"session": {"turn_detection": {"type": "server_vad", "threshold": 2}}},
            ("session", "audio", "input", "turn_detection", "threshold"),
        ),
        (
            "session.update",
            {"session": {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}}},
            ("session", "audio", "input", "format"),
        ),
        ("conversation.item.create", {"item": {"type": "function_call_output", "role": "user"}}, ("item", "type")),
        ("response.create", {"response": {"conversation": "other"}}, ("response", "conversation")),
    ],
)
def test_what_is_not_served_is_refused_at_its_place(kind, fields, place):
    with pytest.raises(ValidationError) as refused:
        Talking().send(kind, **fields)
    assert tuple(refused.value.errors()[0]["loc"])[: len(place)] == place


def test_a_session_tells_all_it_is_set_to_and_null_turns_turn_detection_off():
    talking = Talking()
    created = talking.said("session.created")[0]["session"]
    assert (created["type"], created["model"], created["output_modalities"]) == ("realtime", "voice", ["audio"])
    assert created["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 500
    assert created["audio"]["output"]["voice"] == "anna"
    patch = {
        "instructions": "Be kind.",
        "output_modalities": ["text"],
        "max_output_tokens": 50,
        "audio": {
            "input": {
                "format": {"type": "audio/pcmu"},
                "turn_detection": None,
                "noise_reduction": {"type": "near_field"},
            },
            "output": {"format": {"type": "audio/pcma"}, "voice": {"id": "ben"}, "speed": 1.5},
        },
    }
    (updated,) = talking.send("session.update", session=patch)
    session = updated["session"]
    assert (session["instructions"], session["output_modalities"]) == ("Be kind.", ["text"])
    assert session["audio"]["input"] == {
        "format": {"type": "audio/pcmu"},
        "noise_reduction": None,
        "transcription": None,
        "turn_detection": None,
    }
    assert session["audio"]["output"] == {"format": {"type": "audio/pcma"}, "voice": "ben", "speed": 1.5}
    assert session["expires_at"] == 1_000
    (again,) = talking.send("session.update", session={"max_output_tokens": "inf"})
    assert again["session"] == {**session, "max_output_tokens": "inf"}
    (on,) = talking.send("session.update", session={"audio": {"input": {"turn_detection": {"threshold": 0.7}}}})
    assert on["session"]["audio"]["input"]["turn_detection"]["threshold"] == 0.7


def test_turn_detection_is_what_the_client_set_of_either_type():
    talking = Talking()

    def updated(turns: dict) -> dict:
        (event,) = talking.send("session.update", session={"audio": {"input": {"turn_detection": turns}}})
        return event["session"]["audio"]["input"]["turn_detection"]

    semantic = {"type": "semantic_vad", "eagerness": "auto", "create_response": True, "interrupt_response": True}
    assert updated({"type": "semantic_vad"}) == semantic
    assert updated({"eagerness": "low", "threshold": 0.9}) == {**semantic, "eagerness": "low"}
    assert updated({"type": "semantic_vad", "interrupt_response": False})["eagerness"] == "low"
    server = updated({"type": "server_vad", "silence_duration_ms": 200})
    assert (server["type"], server["silence_duration_ms"], server["interrupt_response"]) == ("server_vad", 200, True)
    assert "eagerness" not in server


def test_without_turn_detection_the_client_commits_and_asks_for_the_answer():
    talking = Talking()
    talking.send("session.update", session=ANSWERS_BY_HAND)
    assert talking.speak() == []
    assert types(talking.send("input_audio_buffer.commit")) == TURN[2:5]
    talking.hear("What?")
    talking.send("response.create")
    assert talking.generate().chat.messages[0].text == "What?"


def test_a_cleared_buffer_is_empty():
    talking = Talking()
    talking.send("session.update", session=ANSWERS_BY_HAND)
    talking.speak()
    assert types(talking.send("input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]
    with pytest.raises(InvalidRequestError) as refused:
        talking.send("input_audio_buffer.commit")
    assert refused.value.code == "input_audio_buffer_commit_empty"


def test_a_written_answer_has_text_events_and_no_audio():
    talking = Talking()
    talking.send("conversation.item.create", item=written("user", "Hi."))
    talking.send("response.create", response={"output_modalities": ["text"], "max_output_tokens": 3})
    chat = talking.generate().chat
    assert (chat.audio_out, chat.sampling.max_tokens) == (False, 3)
    before = len(talking.said())
    talking.answer("Hello.")
    talking.finish(OutputEnd("length", Usage(3, 3)))
    said = talking.said()[before:]
    assert types(said) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    done = said[-1]["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("incomplete", "max_output_tokens")


def test_one_response_may_be_set_otherwise_and_stay_out_of_the_conversation():
    talking = Talking()
    talking.send("session.update", session={"instructions": "Be kind."})
    talking.send("conversation.item.create", item=written("user", "Hi.", id="hi"))
    talking.send(
        "response.create",
        response={
            "conversation": "none",
            "instructions": "Sort it.",
            "input": [{"type": "item_reference", "id": "hi"}, written("user", "What was this?")],
            "metadata": {"topic": "sorting"},
            "temperature": 0.5,
            "audio": {"output": {"voice": "ben"}},
        },
    )
    chat = talking.generate().chat
    assert [(m.role, m.text) for m in chat.messages] == [
        ("system", "Sort it."),
        ("user", "Hi."),
        ("user", "What was this?"),
    ]
    assert (chat.voice, chat.sampling.temperature) == ("ben", 0.5)
    talking.answer("A greeting.")
    talking.finish()
    done = talking.said("response.done")[0]["response"]
    assert (done["metadata"], done["conversation_id"]) == ({"topic": "sorting"}, None)
    assert len(talking.said("conversation.item.added")) == 1
    talking.send("response.create")
    assert [(m.role, m.text) for m in talking.generate().chat.messages] == [("system", "Be kind."), ("user", "Hi.")]


def test_a_spoken_part_of_a_created_item_is_written_down_too():
    talking = Talking()
    part = {"type": "input_audio", "audio": pcm(500, 0.5)}
    talking.send("conversation.item.create", item={"type": "message", "role": "user", "content": [part]})
    talking.send("response.create")
    assert talking.hear("Spoken.") == []
    assert talking.generate().chat.messages[0].text == "Spoken."


def test_a_cancelled_response_leaves_what_was_said_in_the_conversation():
    talking = Talking()
    talking.send("conversation.item.create", item=written("user", "Hi."))
    talking.send("response.create")
    talking.answer("Hello and")
    (done,) = [event for event in talking.send("response.cancel") if event["type"] == "response.done"]
    assert (done["response"]["status"], done["response"]["status_details"]["reason"]) == (
        "cancelled",
        "client_cancelled",
    )
    assert done["response"]["usage"]["input_token_details"]["text_tokens"] == 0  # pipecat reads it of every response
    with pytest.raises(InvalidRequestError) as refused:
        talking.send("response.cancel")
    assert refused.value.code == "response_cancel_not_active"
    assert refused.value.message.startswith("Cancellation failed")  # LiveKit's plugin looks for it
    talking.send("response.create")
    assert [m.text for m in talking.generate().chat.messages] == ["Hi.", "Hello and"]


def test_a_failed_response_says_why_and_the_next_one_may_work():
    talking = Talking()
    talking.send("conversation.item.create", item=written("user", "Hi."))
    talking.send("response.create")
    talking.session.on_failed(talking.generate().response_id, OverloadedError("too many"))
    done = talking.said("response.done")[-1]["response"]
    assert (done["status"], done["status_details"]["error"]["type"]) == ("failed", "overloaded_error")
    assert done["usage"]["total_tokens"] == 0
    talking.send("response.create")
    talking.answer("Hello.")
    talking.finish()
    assert talking.said("response.done")[-1]["response"]["status"] == "completed"


def test_an_item_that_is_deleted_while_its_words_are_awaited_holds_nothing_up():
    talking = Talking()
    talking.send("conversation.item.create", item=written("user", "Hi."))
    talking.send("session.update", session={"audio": {"input": {"turn_detection": {"create_response": False}}}})
    talking.speak()
    (write,) = talking.take(WriteDown)
    talking.send("conversation.item.delete", item_id=write.item_id)
    talking.send("response.create")
    assert [m.text for m in talking.generate().chat.messages] == ["Hi."]
    talking.session.on_transcript(write.number, "late", 1.0)
    assert not [event for event in talking.said() if "transcription" in event["type"]]


def test_a_response_that_waits_for_the_words_of_a_deleted_item_goes_on_without_them():
    talking = Talking()
    talking.send("conversation.item.create", item=written("user", "Hi."))
    talking.speak()
    (write,) = talking.take(WriteDown)
    talking.send("conversation.item.delete", item_id=write.item_id)
    assert [m.text for m in talking.generate().chat.messages] == ["Hi."]
    talking.finish()
    assert talking.said("response.done")[0]["response"]["status"] == "completed"


def test_more_spoken_turns_than_can_be_written_down_are_refused():
    talking = Talking()
    talking.send("session.update", session=ANSWERS_BY_HAND)
    for _ in range(16):
        talking.speak()
        talking.send("input_audio_buffer.commit")
    talking.speak()
    with pytest.raises(OverloadedError):
        talking.send("input_audio_buffer.commit")
    talking.hear("words")
    talking.speak()
    talking.send("input_audio_buffer.commit")


def test_a_long_conversation_forgets_its_beginning():
    talking = Talking()
    for number in range(260):
        talking.send("conversation.item.create", item=written("user", f"{number}: " + "x" * 100))
    assert len(talking.said("conversation.item.deleted")) == 4
    talking.send("response.create")
    messages = talking.generate().chat.messages
    assert messages[-1].text.startswith("259: ")
    assert sum(len(m.text) for m in messages) <= 12_000
    assert len(messages) > 50


BETA_NAMES = {
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "conversation.item.added": "conversation.item.created",
}


def test_a_client_of_the_beta_reads_the_betas_names_and_shapes():
    talking = Talking(dialect=Dialect.BETA)
    session = talking.said("session.created")[0]["session"]
    assert (session["modalities"], session["input_audio_format"], session["voice"]) == (
        ["text", "audio"],
        "pcm16",
        "anna",
    )
    assert session["turn_detection"]["type"] == "server_vad"
    assert "audio" not in session
    assert types(talking.speak()) == [BETA_NAMES.get(kind, kind) for kind in TURN if kind != "conversation.item.done"]
    talking.hear("Hi.")
    before = len(talking.said())
    talking.answer("Hello.")
    talking.finish()
    said = talking.said()[before:]
    assert types(said) == [BETA_NAMES.get(kind, kind) for kind in SPOKEN if kind != "conversation.item.done"]
    done = said[-1]["response"]
    assert done["output"][0]["content"] == [{"type": "audio", "transcript": "Hello."}]
    assert (done["modalities"], done["output_audio_format"]) == (["text", "audio"], "pcm16")


def test_an_update_by_the_betas_names_makes_the_session_speak_them():
    talking = Talking()
    flat = {
        "modalities": ["text", "audio"],
        "voice": "ben",
        "input_audio_format": "g711_ulaw",
        "output_audio_format": "g711_alaw",
        "input_audio_transcription": {"model": "whisper-1"},
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 200},
        "max_response_output_tokens": 9,
        "temperature": 0.8,
    }
    (updated,) = talking.send("session.update", session=flat)
    shown = updated["session"]
    assert {name: shown[name] for name in flat if name not in ("input_audio_transcription", "turn_detection")} == {
        name: value for name, value in flat.items() if name not in ("input_audio_transcription", "turn_detection")
    }
    assert shown["input_audio_transcription"]["model"] == "whisper-1"
    assert shown["turn_detection"]["silence_duration_ms"] == 200
    talking.send(
        "conversation.item.create",
        item={"role": "user", "content": [{"type": "text", "text": "Hi."}], "type": "message"},
    )
    talking.send("response.create", response={"modalities": ["text"]})
    talking.session.on_output(talking.generate().response_id, TextDelta("Hello."))
    assert talking.said("response.text.delta")[0]["delta"] == "Hello."


def test_a_session_that_says_its_type_is_no_betas_whatever_its_fields():
    talking = Talking()
    (updated,) = talking.send("session.update", session={"type": "realtime", "voice": "ben", "turn_detection": None})
    assert updated["session"]["audio"]["output"]["voice"] == "ben"
    assert updated["session"]["audio"]["input"]["turn_detection"] is None


def test_audio_leaves_in_the_sessions_format():
    talking = Talking()
    talking.send("session.update", session={"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    talking.send("conversation.item.create", item=written("user", "Hi."))
    talking.send("response.create")
    for _ in range(4):
        talking.session.on_output(talking.generate().response_id, chunk(250))
    talking.finish()
    data = b"".join(base64.b64decode(event["delta"]) for event in talking.said("response.output_audio.delta"))
    assert len(data) == 8_000
    assert set(data) == {0xFF}


def heard_item(num_parts: int = 1, **fields: object) -> dict:
    parts = [{"type": "input_audio", "audio": pcm(SPEECH_MS)}] * num_parts
    return {"type": "message", "role": "user", "content": parts, **fields}


def test_the_late_words_of_a_deleted_item_are_not_those_of_another_with_its_id():
    talking = Talking()
    talking.send("conversation.item.create", item=heard_item(id="mine"))
    (late,) = talking.take(WriteDown)
    talking.send("conversation.item.delete", item_id="mine")
    talking.send("conversation.item.create", item=heard_item(id="mine"))
    (write,) = talking.take(WriteDown)
    talking.session.on_transcript(late.number, "forgotten", 1.0)
    talking.session.on_transcript(write.number, "said now", 1.0)
    talking.send("response.create")
    assert [message.text for message in talking.generate().chat.messages] == ["said now"]


def test_deleting_what_is_being_written_down_makes_no_room_for_more():
    talking = Talking()
    for _ in range(16):
        talking.send("conversation.item.create", item=heard_item(id="mine"))
        talking.send("conversation.item.delete", item_id="mine")
    with pytest.raises(OverloadedError):
        talking.send("conversation.item.create", item=heard_item())
    writes = talking.take(WriteDown)
    assert len(writes) == 16
    talking.session.on_transcript_failed(writes[0].number, StageError("listener/0 has died"))
    talking.send("conversation.item.create", item=heard_item())


def test_the_sounds_of_one_response_are_bounded_as_those_of_the_conversation_are():
    talking = Talking()
    with pytest.raises(OverloadedError):
        talking.send("response.create", response={"input": [heard_item(8)] * 3})
    assert not talking.take(WriteDown) and not talking.said("response.created")
    talking.send("response.create", response={"input": [heard_item(8)] * 2})
    assert len(talking.take(WriteDown)) == 16
