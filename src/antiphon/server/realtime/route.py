"""WebSocket /v1/realtime: a spoken conversation, by the events of OpenAI's Realtime API.

In: a WebSocket, with the model's name in its query. Out: a session that runs until its client leaves.
Does not know: events, stages.
"""

import asyncio

from fastapi import APIRouter
from starlette.websockets import WebSocket

from antiphon.server.context import ServerContext
from antiphon.server.drain import Drain
from antiphon.server.realtime.dialect import Dialect
from antiphon.server.realtime.ears import Ears
from antiphon.server.realtime.schema import EVENTS
from antiphon.server.realtime.session import Session
from antiphon.server.realtime.session_config import Abilities, SessionConfig
from antiphon.server.realtime.talk import Talk
from antiphon.server.realtime.vad import SileroVad, load_vad
from antiphon.server.websocket import event_socket

_BETA_HEADER = "realtime=v1"
_BETA_SUBPROTOCOL = "openai-beta.realtime-v1"


def realtime_router(context: ServerContext, drain: Drain) -> APIRouter:
    """WebSocket /v1/realtime."""
    router = APIRouter()

    @router.websocket("/v1/realtime")
    async def realtime(websocket: WebSocket) -> None:
        model = websocket.query_params.get("model") or context.catalogue.names[0]
        context.catalogue.check(model)
        network = await asyncio.to_thread(load_vad)
        abilities = Abilities.of(
            context.client.pipeline,
            detects_turns=network is not None,
            languages=context.catalogue.heard_languages,
            max_text_chars=context.settings.max_text_chars,
        )
        ears = Ears(None if network is None else SileroVad(network), context.settings.realtime_max_turn_s)
        session = Session(SessionConfig.default(model, abilities), abilities, ears, _dialect(websocket))
        async with event_socket(websocket, EVENTS, context.settings, subprotocol="realtime") as socket:
            await Talk(context, socket, websocket, session, ears).run(drain)

    return router


def _dialect(websocket: WebSocket) -> Dialect:
    """How the client says that it was written for the beta; a browser's can only by a subprotocol."""
    by_header = _BETA_HEADER in websocket.headers.get("openai-beta", "")
    return Dialect.BETA if by_header or _BETA_SUBPROTOCOL in websocket.scope["subprotocols"] else Dialect.GA
