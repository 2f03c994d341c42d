"""How messages are written: msgpack, checked against the closed union of the lane they came on.

In: bytes of one lane. Out: messages of that lane's union; msgspec.ValidationError for anything else.
Does not know: sockets.
"""

from msgspec.msgpack import Decoder

from antiphon.messages.client import ClientFrame
from antiphon.messages.control import ToApiServer, ToOrchestrator, ToReplica

TO_ORCHESTRATOR: Decoder[ToOrchestrator] = Decoder(ToOrchestrator)
TO_REPLICA: Decoder[ToReplica] = Decoder(ToReplica)
TO_API_SERVER: Decoder[ToApiServer] = Decoder(ToApiServer)
CLIENT_FRAME: Decoder[ClientFrame] = Decoder(ClientFrame)
