"""The API keys of a server: read once at start, then known only by their SHA-256.

In: keys from the command line, the environment and a file. Out: digests. Does not know: HTTP, who sends a key.
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from antiphon import env
from antiphon.errors import ConfigError


def read_key_digests(given: Sequence[str], file: str) -> tuple[str, ...]:
    """SHA-256 (hex) of `given`, of ANTIPHON_API_KEY and of each line of `file` ("" = none) that is no # comment.

    ConfigError for a file that cannot be read or has no key, and for what no client can send as a key. Its text names
    where a key stands, never the key.
    """
    keys = [(key, f"--api-key number {number}") for number, key in enumerate(given, start=1)]
    own = env.api_key()
    if own is not None:
        keys.append((own, f"the environment variable {env.API_KEY}"))
    if file:
        keys += _keys_of(file)
    problems = [
        f"{where} is no API key; use letters, digits and signs, without spaces"
        for key, where in keys
        if not _is_key(key)
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(dict.fromkeys(sha256(key.encode()).hexdigest() for key, _ in keys))


def _keys_of(file: str) -> list[tuple[str, str]]:
    """Key and place of every line that has one; an empty file would open the server to all."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError([f"server.api_key_file {file}: {reason}"]) from None
    keys = [
        (line.strip(), f"line {number} of server.api_key_file {file}")
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.startswith("#")
    ]
    if not keys:
        raise ConfigError([f"server.api_key_file {file} has no key; write one a line, or leave the setting out"])
    return keys


def _is_key(key: str) -> bool:
    """What an Authorization header can carry as one word."""
    return bool(key) and key.isascii() and all("!" <= sign <= "~" for sign in key)
