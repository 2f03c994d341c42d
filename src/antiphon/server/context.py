"""What every handler of one api-server shares.

In: the parts, once, at start. Out: one frozen value. Does not know: routes or requests.
"""

from dataclasses import dataclass

from antiphon.client.engine_client import EngineClient
from antiphon.config.deploy import ServerDeploy
from antiphon.server.models import ModelCatalogue
from antiphon.server.outcomes import OutcomeLog


@dataclass(frozen=True)
class ServerContext:
    """The runtime's door, the limits, the names, and what requests have come to."""

    client: EngineClient
    settings: ServerDeploy
    catalogue: ModelCatalogue
    outcomes: OutcomeLog
