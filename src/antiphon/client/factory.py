"""Builds an EngineClient from a bootstrap, for an api-server or for the library.

In: a Bootstrap. Out: an EngineClient that has not started. Does not know: who uses it.
"""

from antiphon.client.engine_client import EngineClient
from antiphon.client.frontend import FrontendLimits, load_frontend
from antiphon.connector.registry import make_connector
from antiphon.messages.bootstrap import Bootstrap
from antiphon.models.registry import load_pipeline


def make_engine_client(bootstrap: Bootstrap) -> EngineClient:
    """The client of the process that `bootstrap` describes."""
    config = bootstrap.config
    pipeline = load_pipeline(bootstrap.pipeline)
    server = config.server
    limits = FrontendLimits(server.max_text_chars, server.max_audio_s, server.max_pixels, server.max_video_frames)
    connector = make_connector(
        config.connector.kind,
        bootstrap.connector_address,
        config.connector.arena_mib << 20,
        num_requests=config.admission.max_inflight,
    )
    return EngineClient(bootstrap.name, pipeline, load_frontend(pipeline, limits), connector, bootstrap)
