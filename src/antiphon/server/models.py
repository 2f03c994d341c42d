"""Which model names and voices this server answers to.

In: a PipelineSpec and aliases. Out: OpenAI's model list, the voice list, UnknownModelError for other names.
Does not know: weights, stages, what a voice sounds like.
"""

import time
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from antiphon.config.pipeline import VoiceSpec, voice_named
from antiphon.errors import InvalidRequestError, UnknownModelError
from antiphon.server.http_errors import json_response


@dataclass(frozen=True)
class ModelCatalogue:
    """The names a request's `model` may have: the pipeline's own first. All of them mean the same pipeline.

    heard_languages: those that are written down; empty if nobody knows before the stage is asked.
    """

    names: tuple[str, ...]
    heard_languages: tuple[str, ...] = ()
    created_s: int = field(default_factory=lambda: int(time.time()))

    def check(self, name: str) -> None:
        """UnknownModelError (404) unless `name` is served here."""
        if name not in self.names:
            raise UnknownModelError(
                f"model {name[:80]!r} is not served here; use {self.names[0]!r} "
                f"(also answers to {', '.join(self.names[1:]) or 'no other name'})",
                param="model",
            )

    def entry(self, name: str) -> dict[str, str | int]:
        """The model as OpenAI lists it."""
        self.check(name)
        return {"id": name, "object": "model", "created": self.created_s, "owned_by": "antiphon"}


def check_heard_language(heard_languages: tuple[str, ...], language: str, param: str) -> None:
    """InvalidRequestError, naming `param`, if `language` is none of those that are understood. "" is any of them.

    Only the language counts, not the country. An empty `heard_languages` takes any.
    """
    if heard_languages and _main_part(language) not in ("", *heard_languages):
        raise InvalidRequestError(
            f"`{param}`: {language[:80]!r} is not understood here; leave it out, or use one of: "
            f"{', '.join(heard_languages)}",
            param=param,
        )


def check_language(voices: tuple[VoiceSpec, ...], voice: str, language: str) -> None:
    """InvalidRequestError if none is called `voice` ("" = the first), or if it does not speak `language`.

    Only the language counts, not the country: an en-US voice speaks `en` and `en-GB`. `auto` and "" are the voice's
    own. A pipeline without voices speaks any.
    """
    speaker = voice_named(voices, voice)
    if speaker is not None and _main_part(language) not in ("", "auto", _main_part(speaker.language)):
        raise InvalidRequestError(
            f"`language`: the voice {speaker.name} speaks {speaker.language}, not {language[:80]!r}; "
            "send no `language`, or choose another voice (GET /v1/audio/voices)",
            param="language",
        )


def _main_part(language: str) -> str:
    """`_main_part("en-US") == "en"`."""
    return language.replace("_", "-").partition("-")[0].strip().lower()


def models_router(catalogue: ModelCatalogue, voices: tuple[VoiceSpec, ...]) -> APIRouter:
    """GET /v1/models, /v1/models/{id}, /v1/audio/voices."""
    router = APIRouter()

    @router.get("/v1/models", summary="Names that `model` may have")
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [catalogue.entry(name) for name in catalogue.names]})

    @router.get("/v1/models/{model}", summary="One model")
    async def get_model(model: Annotated[str, Path(description="A name of the list.")]) -> Response:
        return json_response(catalogue.entry(model))

    @router.get("/v1/audio/voices", summary="Voices, with the names they also answer to")
    async def list_voices() -> Response:
        return json_response({"object": "list", "voices": [_voice_entry(voice) for voice in voices]})

    return router


def _voice_entry(voice: VoiceSpec) -> dict[str, str | tuple[str, ...]]:
    """`id` repeats the name: some clients read one, some the other."""
    return {"id": voice.name, "name": voice.name, "language": voice.language, "aliases": voice.aliases}
