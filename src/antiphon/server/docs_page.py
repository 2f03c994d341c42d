"""GET /docs: the OpenAPI document as one page to read, without scripts, fonts or anything from elsewhere.

In: the document. Out: HTML. Does not know: what the routes do.
"""

import json
from collections.abc import Callable, Iterable
from html import escape
from typing import Any

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from antiphon.server.event_schema import SOCKET_EVENTS

Json = dict[str, Any]
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "no-cache"}
_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: auto; padding: 1rem; }
code, .type { font-family: ui-monospace, monospace; font-size: .9em; }
h2 { border-top: 1px solid var(--line); padding-top: 1rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); }
nav li { margin: .2rem 0; } :target { background: var(--soft); }
"""


def docs_router(document: Callable[[], Json]) -> APIRouter:
    """GET /docs; `document` gives the OpenAPI document."""
    router = APIRouter()

    @router.get("/docs", summary="This server's routes and fields, to read", include_in_schema=False)
    async def get_docs() -> Response:
        return HTMLResponse(docs_html(document()), headers=_HEADERS)

    return router


def docs_html(document: Json) -> str:
    """The whole page."""
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = document["components"]["schemas"]
    links = [
        _link(name, operation["operationId"]) + f" {escape(operation['summary'])}" for name, operation in operations
    ]
    links += [_link(f"WebSocket {path}", path) for path in document[SOCKET_EVENTS]]
    parts = [
        f"<h1>{escape(document['info']['title'])}</h1>",
        f"<p>{escape(document['info']['description'])} For programs: {_link('/openapi.json', '/openapi.json', '')}</p>",
        f"<nav><ul>{''.join(f'<li>{link}</li>' for link in links)}</ul></nav>",
        *(_operation(name, operation) for name, operation in operations),
        *(_socket(path, events) for path, events in document[SOCKET_EVENTS].items()),
        "<h1>Fields</h1>",
        *(_schema(name, schema) for name, schema in sorted(schemas.items())),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>antiphon: API</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{"".join(parts)}</body></html>'
    )


def _operation(name: str, operation: Json) -> str:
    parts = [f'<h2 id="{escape(operation["operationId"])}"><code>{escape(name)}</code></h2>']
    parts.append(f"<p>{escape(operation['summary'])}</p>")
    if parameters := operation.get("parameters"):
        rows = [(_code(each["name"]), _type(each["schema"]), escape(each["description"])) for each in parameters]
        parts.append(_table(("parameter", "type", "meaning"), rows))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body: {_code(kind)}, {_type(content['schema'])}</p>")
        if "example" in content:
            parts.append(f"<pre>{escape(json.dumps(content['example'], indent=2))}</pre>")
    rows = [
        (status, _contents(answer.get("content", {})), escape(answer["description"]))
        for status, answer in operation["responses"].items()
    ]
    parts.append(_table(("status", "answer", "when"), rows))
    return "".join(parts)


def _socket(path: str, events: Json) -> str:
    rows = [(_code(name), _type(reference)) for name, reference in events.items()]
    head = f'<h2 id="{escape(path)}"><code>WebSocket {escape(path)}</code></h2>'
    about = "<p>What a client sends; docs/http_api.md says what it is answered.</p>"
    return f"{head}{about}{_table(('event', 'fields'), rows)}"


def _contents(contents: Json) -> str:
    return "<br>".join(f"{_code(kind)} {_type(content['schema'])}" for kind, content in contents.items())


def _schema(name: str, schema: Json) -> str:
    parts = [f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{escape(schema.get("description", ""))}</p>']
    if "properties" not in schema:
        return "".join([*parts, f"<p>{_type(schema)}</p>"])
    rows = [
        (_code(field), _type(child), _presence(field, child, schema), escape(child.get("description", "")))
        for field, child in schema["properties"].items()
    ]
    return "".join([*parts, _table(("field", "type", "default", "meaning"), rows)])


def _presence(field: str, child: Json, schema: Json) -> str:
    if field in schema.get("required", ()):
        return "<b>required</b>"
    default = child.get("default")
    return "" if default is None else _code(str(default))


def _type(schema: Json) -> str:
    """In words: a name, the values there are, or a JSON type with its bounds."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _link(name, name)
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return " | ".join(_code(str(value)) for value in schema["enum"])
    if "const" in schema:
        return _code(str(schema["const"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}{_bounds(schema)}"
    return f"{escape(schema.get('type', 'anything'))}{_bounds(schema)}"


def _bounds(schema: Json) -> str:
    signs = {
        "minimum": "&ge;",
        "exclusiveMinimum": "&gt;",
        "maximum": "&le;",
        "minLength": "length &ge;",
        "minItems": "length &ge;",
        "maxItems": "length &le;",
    }
    found = [f"{sign} {schema[name]:g}" for name, sign in signs.items() if name in schema]
    return f" ({', '.join(found)})" if found else ""


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _link(text: str, target: str, sign: str = "#") -> str:
    return f'<a href="{sign}{escape(target)}"><code>{escape(text)}</code></a>'
