"""An AntiphonError on the wire: class name and message, never a pickled exception.

In: an error. Out: ErrorInfo, and the error again on the other side.
Does not know: who failed, or which lane carries it.
"""

import msgspec

from antiphon import errors
from antiphon.errors import AntiphonError, OverloadedError, ReplicaDiedError, RequestError, StageError


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An AntiphonError as a value."""

    kind: str
    message: str
    param: str = ""
    code: str = ""
    retry_after_s: float = 0.0


_KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, (RequestError, StageError, ReplicaDiedError))
}
"""Every error that a request can end with; OverloadedError has one field more."""
_MAX_MESSAGE_CHARS = 2_000
_MAX_NAME_CHARS = 200


def to_info(error: AntiphonError) -> ErrorInfo:
    """The error as a value; a message over 2,000 characters, or a param or code over 200, is cut: it fits any message.

    Half a surrogate pair, as file names of other encodings have it, becomes a question mark: it has no UTF-8.
    """
    retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else 0.0
    return ErrorInfo(
        kind=type(error).__name__,
        message=_encodable(error.message[:_MAX_MESSAGE_CHARS]),
        param=_encodable(error.param[:_MAX_NAME_CHARS]),
        code=_encodable(error.code[:_MAX_NAME_CHARS]),
        retry_after_s=retry_after_s,
    )


def to_error(info: ErrorInfo) -> AntiphonError:
    """The error that `info` describes; an unknown kind becomes a StageError."""
    if info.kind == OverloadedError.__name__:
        return OverloadedError(info.message, retry_after_s=info.retry_after_s, param=info.param, code=info.code)
    return _KINDS.get(info.kind, StageError)(info.message, param=info.param, code=info.code)


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()
