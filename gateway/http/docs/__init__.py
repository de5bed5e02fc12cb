"""Render an OpenAPI document as a page of its own: plain HTML and one style sheet, without scripts or other hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import jinja2
import orjson

HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
STYLE: Final = (Path(__file__).parent / "docs.css").read_bytes()


def page(document: dict[str, Any]) -> bytes:
    """Return the HTML of a document that `gateway.http.openapi` made."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    tags = dict.fromkeys(entry["tags"][0] for operations in document["paths"].values() for entry in operations.values())
    return environment.get_template("docs.html").render(**document, tags=tags, last=_last, as_json=_as_json).encode()


def _last(reference: str) -> str:
    return reference.rpartition("/")[2]


def _as_json(schema: Any) -> str:
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode()
