"""A JSON object that is built to be sent, or has been read and is not yet looked into."""

Json = dict[str, object]
