"""A file inside a JSON body: base64, alone or in a `data:` URL.

In: a string. Out: bytes, or an InvalidRequestError. Does not know: what the file is. Fetches nothing.
"""

import base64

from antiphon.errors import InvalidRequestError

_SCHEMES = ("http:", "https:", "ftp:", "file:")


def base64_bytes(text: str, param: str = "") -> bytes:
    """The bytes that `text` spells. param: the field that the error names, if the caller does not."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error, or characters that are not ASCII
        what = f"`{param}` is not base64" if param else "not base64"
        told = f"{what} ({error}); send the file itself in base64"
        raise InvalidRequestError(told, param=param, code="invalid_base64") from None


def data_url_bytes(url: str) -> bytes:
    """The bytes of `data:[TYPE];base64,BYTES`; the file's own header says what it is, not TYPE."""
    if url[:6].lower().startswith(_SCHEMES):
        raise InvalidRequestError(
            "this server fetches nothing; send the file itself, as data:TYPE;base64,BYTES", code="unsupported_url"
        )
    head, comma, data = url.partition(",")
    if not is_data_url(url) or not comma or not head.lower().endswith(";base64"):
        raise InvalidRequestError("not a data: URL in base64; send data:TYPE;base64,BYTES", code="unsupported_url")
    return base64_bytes(data)


def is_data_url(text: str) -> bool:
    """True if `text` begins as a data: URL does; base64 alone never does."""
    return text[:5].lower() == "data:"
