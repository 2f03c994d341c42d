"""Random conversations: whatever a client and the stages say, in any order, the session keeps its word."""

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.errors import InvalidRequestError, OverloadedError, StageError
from antiphon.messages.client import OutputEnd, TextDelta
from antiphon.server.realtime.effects import Generate, Say, Stop, WriteDown
from tests.unit.server.realtime.talking import Talking, chunk, pcm, written


class AnySession(RuleBasedStateMachine):
    """A client that does what it likes, stages that answer late or never, and what must hold all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.talking = Talking(max_turn_s=3.0)
        self.num_seen = 0
        self.created: list[str] = []
        self.done: list[str] = []
        self.items: list[str] = []
        self.running: set[str] = set()
        self.ever: list[str] = []
        self.unwritten: list[WriteDown] = []

    def send(self, kind: str, **fields: object) -> None:
        with suppress(InvalidRequestError, OverloadedError):
            self.talking.send(kind, **fields)
        self.look()

    def look(self) -> None:
        """What has been said and is to be done since."""
        for effect in self.talking.effects[self.num_seen :]:
            match effect:
                case Generate(response_id=response_id):
                    assert response_id == self.created[-1]
                    assert response_id not in self.ever
                    assert response_id not in self.done
                    self.running.add(response_id)
                    self.ever.append(response_id)
                case Stop(response_id=response_id):
                    self.running.discard(response_id)
                case WriteDown():
                    self.unwritten.append(effect)
                case Say(event=event):
                    self.hear(event)
        self.num_seen = len(self.talking.effects)

    def hear(self, event: dict) -> None:
        match event["type"]:
            case "response.created":
                self.created.append(event["response"]["id"])
            case "response.done":
                self.done.append(event["response"]["id"])
            case "conversation.item.added":
                assert event["previous_item_id"] in (None, *self.items)
                self.items.append(event["item"]["id"])
            case "conversation.item.deleted":
                self.items.remove(event["item_id"])
            case kind if kind.startswith("response."):
                assert event["response_id"] == self.created[-1]
                assert event["response_id"] not in self.done

    @rule(speech_ms=st.sampled_from([0, 50, 320, 2_000, 4_000]), silence_ms=st.sampled_from([0, 100, 700]))
    def speak(self, speech_ms: int, silence_ms: int) -> None:
        self.send("input_audio_buffer.append", audio=pcm(speech_ms, 0.5))
        self.send("input_audio_buffer.append", audio=pcm(silence_ms))

    @rule(kind=st.sampled_from(["input_audio_buffer.commit", "input_audio_buffer.clear", "response.cancel"]))
    def bare_event(self, kind: str) -> None:
        self.send(kind)

    @rule(detects=st.booleans(), answers=st.booleans(), interrupts=st.booleans(), writes=st.booleans())
    def update(self, detects: bool, answers: bool, interrupts: bool, writes: bool) -> None:
        turns = {"create_response": answers, "interrupt_response": interrupts} if detects else None
        heard = {"turn_detection": turns, "transcription": {} if writes else None}
        self.send("session.update", session={"audio": {"input": heard}})

    @rule(role=st.sampled_from(["user", "assistant", "system"]), behind=st.integers(0, 5))
    def create_item(self, role: str, behind: int) -> None:
        previous = self.items[behind % len(self.items)] if self.items and behind < 4 else None
        self.send("conversation.item.create", item=written(role, "Words."), previous_item_id=previous)

    @rule(own=st.booleans(), aloud=st.booleans())
    def respond(self, own: bool, aloud: bool) -> None:
        response: dict = {"output_modalities": ["audio" if aloud else "text"]}
        if own:
            part = {"type": "input_audio", "audio": pcm(200, 0.5)}
            item = {"type": "message", "role": "user", "content": [part]}
            response |= {"conversation": "none", "input": [item]}
        self.send("response.create", response=response)

    @precondition(lambda self: self.items)
    @rule(number=st.integers(0, 50), end_ms=st.sampled_from([0, 100, 10_000]))
    def change_item(self, number: int, end_ms: int) -> None:
        item_id = self.items[number % len(self.items)]
        self.send("conversation.item.retrieve", item_id=item_id)
        self.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=end_ms)
        if number % 3 == 0:
            self.send("conversation.item.delete", item_id=item_id)

    @precondition(lambda self: self.unwritten)
    @rule(first=st.booleans(), works=st.booleans())
    def write_down(self, first: bool, works: bool) -> None:
        write = self.unwritten.pop(0 if first else -1)
        if works:
            self.talking.session.on_transcript(write.number, "Heard words.", 1.0)
        else:
            self.talking.session.on_transcript_failed(write.number, StageError("lost"))
        self.look()

    @precondition(lambda self: self.ever)
    @rule(number=st.integers(0, 50), how=st.sampled_from(["text", "audio", "end", "fail"]))
    def stage_says(self, number: int, how: str) -> None:
        """Of any response that ever was, also one that is over."""
        session, response_id = self.talking.session, self.ever[-1 - number % len(self.ever)]
        match how:
            case "text":
                session.on_output(response_id, TextDelta("More. "))
            case "audio":
                session.on_output(response_id, chunk(100))
            case "end":
                session.on_end(response_id, OutputEnd())
                self.running.discard(response_id)
            case "fail":
                session.on_failed(response_id, StageError("lost"))
                self.running.discard(response_id)
        self.look()

    @invariant()
    def every_response_ends_once_and_at_most_one_runs(self) -> None:
        assert len(set(self.created)) == len(self.created)
        assert self.done == self.created[: len(self.done)]
        assert len(self.created) - len(self.done) <= 1
        assert len(self.running) <= 1
        assert not self.running & set(self.done)

    def teardown(self) -> None:
        """What waits only for words gets going when they come."""
        while self.unwritten:
            self.write_down(True, True)
        if len(self.created) > len(self.done):
            assert self.created[-1] in self.running
        del self.talking  # hypothesis keeps this object


TestAnySession = AnySession.TestCase
TestAnySession.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
