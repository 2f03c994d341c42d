"""The HTTP server as one ASGI application.

In: an engine client and settings. Out: a FastAPI app with OpenAI's routes over that client.
Does not know: sockets, processes, how the client reaches its stages.
"""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from antiphon.client.engine_client import EngineClient
from antiphon.server.auth import KeyGate, KeyRing
from antiphon.server.callers import AdmissionGate, Callers
from antiphon.server.chat import chat_router
from antiphon.server.context import ServerContext
from antiphon.server.cors import Cors, Origins, Preflight
from antiphon.server.docs_page import docs_router
from antiphon.server.drain import Drain, DrainGate
from antiphon.server.edge import RequestEdge
from antiphon.server.health import health_router
from antiphon.server.http_errors import on_http_exception, on_validation_error
from antiphon.server.limits import BodyLimit
from antiphon.server.metrics import HttpMetrics, metrics_router
from antiphon.server.models import ModelCatalogue, models_router
from antiphon.server.no_socket import no_socket_router
from antiphon.server.openapi import DescribedApp
from antiphon.server.origin_gate import OriginGate
from antiphon.server.outcomes import OutcomeLog
from antiphon.server.page.routes import page_router
from antiphon.server.realtime.route import realtime_router
from antiphon.server.settings import ServerSettings
from antiphon.server.socket_places import SocketGate, SocketPlaces
from antiphon.server.speech import speech_router
from antiphon.server.speech_stream import speech_stream_router
from antiphon.server.transcription import transcription_router


def create_app(client: EngineClient, settings: ServerSettings, drain: Drain) -> FastAPI:
    """The app over `client`, which must be started before the first request comes; `drain` ends its work.

    Layers, outermost first: Cors (headers), RequestEdge (id, one answer, counts), Preflight (204), KeyGate (401),
    OriginGate (403), DrainGate (503), SocketGate (503), AdmissionGate (503), BodyLimit (413, 408), the routes.
    """
    origins = Origins(settings.deploy.cors_origins)
    places = SocketPlaces(settings.deploy.max_websockets)
    metrics = HttpMetrics(client.name, client.counters, drain.num_open, lambda: places.num_taken)
    names = tuple(dict.fromkeys((client.pipeline.name, *settings.model_aliases)))
    catalogue = ModelCatalogue(names, settings.heard_languages)
    context = ServerContext(client, settings.deploy, catalogue, OutcomeLog(client.run_directory, client.name))
    app = DescribedApp(
        catalogue.names,
        title="antiphon",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere; docs_page.py does not
        redoc_url=None,
        redirect_slashes=False,  # a redirect names the host that the client has named, and is no envelope
        generate_unique_id_function=lambda route: route.name,
        middleware=[
            *([Middleware(Cors, origins=origins)] if origins else []),
            Middleware(RequestEdge, metrics=metrics, drain=drain),
            *([Middleware(Preflight, origins=origins)] if origins else []),
            Middleware(KeyGate, keys=KeyRing(settings.api_key_digests)),
            Middleware(OriginGate, settings=settings.deploy, origins=origins),
            Middleware(DrainGate, drain=drain),
            Middleware(SocketGate, places=places),
            Middleware(AdmissionGate, callers=Callers(settings.deploy.trusted_proxies), admission=client.admission),
            Middleware(BodyLimit, settings=settings.deploy),
        ],
        exception_handlers={RequestValidationError: on_validation_error, HTTPException: on_http_exception},
    )
    routers = (
        no_socket_router(),
        speech_router(context),
        speech_stream_router(context, drain),
        chat_router(context),
        transcription_router(context),
        realtime_router(context, drain),
        models_router(catalogue, client.pipeline.voices),
        health_router(client, drain),
        metrics_router(metrics),
        page_router(client),
        docs_router(app.openapi),
    )
    for router in routers:
        app.include_router(router)
    return app
