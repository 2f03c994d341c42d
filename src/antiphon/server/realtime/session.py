"""A realtime session as a state machine: what the client and the stages say goes in, what is to be done comes out.

In: client events, turns that were heard, transcripts, outputs of the running response. Out: effects, in order.
Does not know: sockets, tasks, clocks, which stages there are.
"""

import secrets
from collections.abc import Sequence

from antiphon.errors import AntiphonError, InvalidRequestError, UnsupportedModalityError
from antiphon.messages.client import AudioChunk, OutputEnd, TextDelta
from antiphon.messages.tasks import ChatInput
from antiphon.server.json_object import Json
from antiphon.server.realtime.conversation import Conversation, Heard, Item, Spoken, chat_messages, new_item_id
from antiphon.server.realtime.dialect import Dialect
from antiphon.server.realtime.ears import Ears, SpeechStarted, SpeechStopped, TurnBorder
from antiphon.server.realtime.effects import Effect, Generate, Say, Stop
from antiphon.server.realtime.item_input import item_of
from antiphon.server.realtime.response import Request, Response, Why
from antiphon.server.realtime.schema import (
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    ItemBody,
    ResponsePatch,
    RetrieveItem,
    SessionUpdate,
    TruncateItem,
)
from antiphon.server.realtime.scribe import PartWritten, Scribe
from antiphon.server.realtime.session_config import Abilities, SessionConfig
from antiphon.server.realtime.wire_audio import Samples
from antiphon.server.socket_answer import error_event, new_event_id
from antiphon.server.websocket import ClientEvent


class Session:
    """Owns one client's settings, conversation, input audio and running response. What is to be done is in `take`."""

    def __init__(self, config: SessionConfig, abilities: Abilities, ears: Ears, dialect: Dialect) -> None:
        self._id = f"sess_{secrets.token_hex(10)}"
        self._conversation_id = f"conv_{secrets.token_hex(10)}"
        self._config = config
        self._abilities = abilities
        self._ears = ears
        self._effects: list[Effect] = []
        self._dialect = dialect
        self._expires_s = 0
        self._conversation = Conversation()
        self._active: Response | None = None
        self._turn_id = ""
        self._scribe = Scribe()
        ears.configure(config.input_format, config.turns)

    def open(self, expires_s: int) -> None:
        """The first event. expires_s: Unix time at which the session ends at the latest."""
        self._expires_s = expires_s
        self._say({"type": "session.created", "session": self._config.as_json(self._id, expires_s)})

    def take(self) -> list[Effect]:
        """What is to be done, in order, since it was last taken: after each call of another method."""
        effects, self._effects = self._effects, []
        return effects

    def check_hears(self) -> None:
        """UnsupportedModalityError if the pipeline hears no sound."""
        if not self._abilities.hears:
            raise UnsupportedModalityError("this pipeline hears no sound", param="audio")

    def on_event(self, event: ClientEvent) -> None:
        """Any event but more audio. Raises the InvalidRequestError that the client is told, and has changed nothing."""
        match event:
            case SessionUpdate():
                self._update(event)
            case CommitAudio():
                self._scribe.check_room()
                turn_id = self._turn_id if self._ears.is_speech else new_item_id()
                self._add_turn(turn_id, self._ears.commit())
            case ClearAudio():
                self._ears.clear()
                self._say({"type": "input_audio_buffer.cleared"})
            case CreateItem():
                self._create_item(event)
            case RetrieveItem(item_id=item_id):
                item = self._conversation.get(item_id, code="item_retrieve_invalid_item_id")
                self._say({"type": "conversation.item.retrieved", "item": item.as_json()})
            case TruncateItem():
                self._truncate(event)
            case DeleteItem(item_id=item_id):
                self._conversation.delete(item_id)
                self._say({"type": "conversation.item.deleted", "item_id": item_id})
                self._generate_if_ready()  # it may have waited for this item's words
            case CreateResponse(response=patch):
                self._create_response(patch or ResponsePatch())
            case CancelResponse(response_id=response_id):
                self._cancel_asked(response_id)

    def on_heard(self, heard: Sequence[TurnBorder]) -> None:
        """What the ears made of more audio."""
        for change in heard:
            match change:
                case SpeechStarted(start_ms=start_ms):
                    self._speech_started(start_ms)
                case SpeechStopped(end_ms=end_ms, samples=samples):
                    self._speech_stopped(end_ms, samples)

    def on_transcript(self, number: int, text: str, duration_s: float) -> None:
        """The words of a spoken part."""
        done = self._scribe.finish(number)
        if not self._is_known(done):
            return
        done.part.transcript = text
        if self._abilities.hears_by_writing:
            done.part.samples = None
        if self._config.transcription is not None:
            self._say(done.completed(text, duration_s))
        self._generate_if_ready()

    def on_transcript_failed(self, number: int, error: AntiphonError) -> None:
        """A spoken part whose words nobody will know; a response that waits for them fails."""
        done = self._scribe.finish(number)
        if not self._is_known(done):
            return
        if self._config.transcription is not None:
            self._say(done.failed(error))
        if self._abilities.hears_by_writing:
            done.part.samples, done.part.transcript = None, ""
            if self._active is not None and not self._active.is_generating:
                self._close(self._active.failed(error))
        self._generate_if_ready()

    def on_output(self, response_id: str, output: TextDelta | AudioChunk) -> None:
        """More of the running response; of another one it is late, and dropped."""
        response = self._running(response_id)
        if response is None:
            return
        if not response.has_begun:
            self._begin(response)
        if isinstance(output, TextDelta):
            self._say(response.text(output.text))
        else:
            for event in response.audio(output):
                self._say(event)

    def on_end(self, response_id: str, end: OutputEnd) -> None:
        """The running response is complete."""
        response = self._running(response_id)
        if response is not None:
            self._close(response.completed(end))

    def on_failed(self, response_id: str, error: AntiphonError) -> None:
        """The running response cannot be made."""
        response = self._running(response_id)
        if response is not None:
            self._close(response.failed(error))

    def _say(self, event: Json) -> None:
        spelled = self._dialect.spell(event)
        if spelled is not None:
            self._effects.append(Say({"event_id": new_event_id(), **spelled}))

    def _update(self, event: SessionUpdate) -> None:
        config = self._config.updated(event.session, self._abilities)
        self._config = config
        if event.session.by_beta_names:
            self._dialect = Dialect.BETA
        self._ears.configure(config.input_format, config.turns)
        self._say({"type": "session.updated", "session": config.as_json(self._id, self._expires_s)})

    def _speech_started(self, start_ms: int) -> None:
        self._turn_id = new_item_id()
        self._say({"type": "input_audio_buffer.speech_started", "audio_start_ms": start_ms, "item_id": self._turn_id})
        turns, response = self._config.turns, self._active
        if turns is not None and turns.interrupt_response and response is not None and response.request.in_conversation:
            self._cancel(response, Why.TURN)

    def _speech_stopped(self, end_ms: int, samples: Samples) -> None:
        self._say({"type": "input_audio_buffer.speech_stopped", "audio_end_ms": end_ms, "item_id": self._turn_id})
        try:
            self._scribe.check_room()
            self._add_turn(self._turn_id, samples)
            if self._config.turns is not None and self._config.turns.create_response:
                self._create_response(ResponsePatch())
        except AntiphonError as error:  # no event of the client's is to blame
            self._effects.append(Say(error_event(error)))

    def _add_turn(self, item_id: str, samples: Samples) -> None:
        item = Item("user", [Heard(samples)], item_id)
        committed = {"type": "input_audio_buffer.committed", "item_id": item_id}
        self._say({**committed, "previous_item_id": self._conversation.last_id()})
        self._add(item)
        self._write_down(item)

    def _create_item(self, event: CreateItem) -> None:
        item = self._item(event.item, "item")
        self._add(item, event.previous_item_id)
        self._write_down(item)

    def _item(self, body: ItemBody, where: str, before: Sequence[Item] = ()) -> Item:
        """As the client describes it at `where`; before: those that come with it."""
        item = item_of(body, where, self._config.input_format)
        self._abilities.check_text(item.num_chars(), f"{where}.content")
        self._check_can_hear(item, before)
        return item

    def _add(self, item: Item, previous_id: str | None = None) -> None:
        self._say_added(item, self._conversation.add(item, previous_id))
        self._say_item_done(item)
        for dropped in self._conversation.drop_oldest():
            self._say({"type": "conversation.item.deleted", "item_id": dropped})
        self._generate_if_ready()

    def _say_added(self, item: Item, previous_id: str | None) -> None:
        added: Json = {"type": "conversation.item.added", "previous_item_id": previous_id}
        self._say({**added, "item": item.as_json()})

    def _say_item_done(self, item: Item) -> None:
        self._say({"type": "conversation.item.done", "item": item.as_json()})

    def _check_can_hear(self, item: Item, before: Sequence[Item]) -> None:
        sounds = [part.samples for part in item.heard() if part.samples is not None]
        if not sounds:
            return
        self.check_hears()
        self._scribe.check_room(sum(1 for other in before for _ in other.heard()))
        for samples in sounds:
            self._ears.check_length(samples)

    def _write_down(self, item: Item) -> None:
        """Have the words of its spoken parts found, where the client or the model wants them."""
        options = self._config.transcription
        if self._abilities.hears_by_writing or (self._abilities.writes and options is not None):
            self._effects += self._scribe.begin(item, options)

    def _is_known(self, done: PartWritten) -> bool:
        """False if its item was deleted; another one may have its id by now."""
        item = self._find(done.item_id)
        return item is not None and any(each is done.part for each in item.parts)

    def _find(self, item_id: str) -> Item | None:
        mine = self._active.request.items if self._active is not None and self._active.request.items else ()
        return next((item for item in mine if item.id == item_id), None) or self._conversation.find(item_id)

    def _truncate(self, event: TruncateItem) -> None:
        item = self._conversation.get(event.item_id, code="item_truncate_invalid_item_id")
        part = item.parts[event.content_index] if event.content_index < len(item.parts) else None
        if not isinstance(part, Spoken):
            raise InvalidRequestError(
                "only the spoken part of an assistant's item can be truncated", param="content_index"
            )
        if item.status == "in_progress":
            raise InvalidRequestError("this item is still being spoken; cancel its response first", param="item_id")
        part.truncate(event.audio_end_ms)
        self._say(
            {
                "type": "conversation.item.truncated",
                "item_id": event.item_id,
                "content_index": event.content_index,
                "audio_end_ms": event.audio_end_ms,
            }
        )

    def _create_response(self, patch: ResponsePatch) -> None:
        if self._active is not None:
            raise InvalidRequestError(
                f"response {self._active.id} is still running; cancel it, or wait for its response.done",
                code="conversation_already_has_active_response",
            )
        config = self._config.overridden(patch, self._abilities)
        items = self._context(patch)
        response = Response(Request(config, items, patch.conversation != "none", patch.metadata), self._conversation_id)
        self._active = response
        self._say(response.created())
        for item in items or ():
            if self._conversation.find(item.id) is None:
                self._write_down(item)
        self._generate_if_ready()

    def _context(self, patch: ResponsePatch) -> tuple[Item, ...] | None:
        """The items that `input` of a response gives or names; None: the conversation."""
        if patch.input is None:
            return None
        items: list[Item] = []
        for index, given in enumerate(patch.input):
            where = f"response.input[{index}]"
            if isinstance(given, ItemBody):
                items.append(self._item(given, where, items))
            else:
                items.append(self._conversation.get(given.id, f"{where}.id"))
        return tuple(items)

    def _generate_if_ready(self) -> None:
        """Start the response as soon as all words that it needs are known."""
        response = self._active
        if response is None or response.is_generating:
            return
        request = response.request
        items = self._conversation.items if request.items is None else request.items
        if self._abilities.hears_by_writing and any(part.is_being_written for item in items for part in item.heard()):
            return
        response.is_generating = True
        config = request.config
        messages, voice = chat_messages(items, config.instructions), config.voice if config.speaks else ""
        chat = ChatInput(messages, config.sampling, config.speaks, voice, config.speed)
        self._effects.append(Generate(response.id, chat))

    def _begin(self, response: Response) -> None:
        self._say(response.item_added())
        if response.request.in_conversation:
            self._say_added(response.item, self._conversation.add(response.item))
        self._say(response.part_added())

    def _close(self, events: list[Json]) -> None:
        """The running response is over; `events` are its last, `response.done` the very last."""
        response, self._active = self._active, None
        assert response is not None, "only a running response is closed"
        for event in events[:-1]:
            self._say(event)
        if response.has_begun and response.request.in_conversation:
            self._say_item_done(response.item)
        self._say(events[-1])

    def _running(self, response_id: str) -> Response | None:
        return self._active if self._active is not None and self._active.id == response_id else None

    def _cancel_asked(self, response_id: str | None) -> None:
        response = self._active
        if response is None or response_id not in (None, response.id):
            raise InvalidRequestError(
                "Cancellation failed: there is no such response running",
                param="response_id",
                code="response_cancel_not_active",
            )
        self._cancel(response, Why.CLIENT)

    def _cancel(self, response: Response, why: Why) -> None:
        self._effects.append(Stop(response.id))
        self._close(response.cancelled(why))
