"""Every error antiphon raises on purpose, as one tree.

In: nothing. Out: exception classes that know their HTTP status and the OpenAI error `type`.
Does not know: transports, HTTP frameworks, models.

    AntiphonError                 scope            HTTP
    |- RequestError               one request      4xx
    |  |- InvalidRequestError                      400
    |  |- UnauthorizedError                        401
    |  |- ForbiddenError                           403
    |  |- RequestTooLargeError                     413
    |  |- RequestTimeoutError                      408
    |  |- UpgradeRequiredError                     426
    |  |- UnsupportedModalityError                 400
    |  |- UnsupportedOptionError                   400
    |  |- UnknownModelError                        404
    |  |- UnknownRequestError                      404
    |  `- RequestAbortedError                      499
    |- OverloadedError            one request      503 + Retry-After
    |- StageError                 one request      500
    |  |- UndeclaredOutputError
    |  |- ChunkGapError
    |  `- HandoffTimeoutError                      504
    |- TimeLimitError             one request      504
    |- ReplicaDiedError           one replica      502
    |  `- DeadlyRequestError      one request      502
    `- ConfigError                start-up         -
"""

from collections.abc import Sequence
from typing import ClassVar


class AntiphonError(Exception):
    """Root of the tree. `message` says what happened, to whom, and what to do."""

    http_status: ClassVar[int] = 500
    openai_type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code


class RequestError(AntiphonError):
    """The client asked for something that cannot be served; the request cost no stage any work."""

    http_status = 400
    openai_type = "invalid_request_error"
    default_code = "invalid_request"


class InvalidRequestError(RequestError):
    """A value of the request is missing, malformed or out of range; `param` names it."""

    default_code = "invalid_value"


class UnauthorizedError(RequestError):
    """The server has API keys, and the request carries none of them."""

    http_status = 401
    default_code = "invalid_api_key"


class ForbiddenError(RequestError):
    """The request comes from a web page that may not use this server, or calls it by a name that is not its own."""

    http_status = 403
    default_code = "forbidden"


class RequestTooLargeError(RequestError):
    """The request's body or input is over a limit that the message names."""

    http_status = 413
    default_code = "request_too_large"


class RequestTimeoutError(RequestError):
    """The client did not send its request within the deadline that the message names."""

    http_status = 408
    default_code = "request_timeout"


class UpgradeRequiredError(RequestError):
    """The path is a WebSocket's, and the request asks for none."""

    http_status = 426
    default_code = "upgrade_required"


class UnsupportedModalityError(RequestError):
    """The pipeline has no task, input or output of the modality that was asked for."""

    default_code = "unsupported_modality"


class UnsupportedOptionError(RequestError):
    """The stage that would have to honour an option cannot; `param` names it, the message says what it can."""

    default_code = "unsupported_parameter"


class UnknownModelError(RequestError):
    """The model named in the request is not served here."""

    http_status = 404
    default_code = "model_not_found"


class UnknownRequestError(RequestError):
    """Nothing is known of the request that was asked about."""

    http_status = 404
    default_code = "request_not_found"


class RequestAbortedError(RequestError):
    """The request was aborted: by its client, by the API, or because its time was up."""

    http_status = 499
    default_code = "request_aborted"


class OverloadedError(AntiphonError):
    """Admission is full; try again after `retry_after_s` seconds."""

    http_status = 503
    openai_type = "overloaded_error"
    default_code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, param: str = "", code: str = "") -> None:
        super().__init__(message, param=param, code=code)
        self.retry_after_s = retry_after_s


class StageError(AntiphonError):
    """A stage failed one request."""

    default_code = "stage_error"


class UndeclaredOutputError(StageError):
    """A model made an output that its StageSpec does not declare (key, lane, dtype, shape or row count)."""

    default_code = "undeclared_output"


class ChunkGapError(StageError):
    """A chunk of an edge arrived out of order: an earlier one is missing."""

    default_code = "chunk_gap"


class HandoffTimeoutError(StageError):
    """A wait on the inter-stage lane passed its deadline."""

    http_status = 504
    default_code = "handoff_timeout"


class TimeLimitError(AntiphonError):
    """The request ran longer than the operator allows."""

    http_status = 504
    default_code = "time_limit"


class ReplicaDiedError(AntiphonError):
    """A process that the request was bound to ended."""

    http_status = 502
    default_code = "replica_died"


class DeadlyRequestError(ReplicaDiedError):
    """The request was started again apart from others, and its replica died again: it is the likely cause."""

    default_code = "deadly_request"


class ConfigError(AntiphonError):
    """Start-up configuration is wrong; lists every problem found, not only the first."""

    default_code = "config_error"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))
