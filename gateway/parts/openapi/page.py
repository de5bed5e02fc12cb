"""Render an OpenAPI document as a page of its own: plain HTML and one style sheet, without scripts or other hosts."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

import orjson

HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
STYLE: Final = (Path(__file__).parent / "docs.css").read_bytes()


def docs_page(document: dict[str, Any]) -> bytes:
    """Return the HTML of a document that `gateway.parts.openapi.document` made."""
    components, listed = document["components"], dict[str, list[str]]()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = operation["tags"][0]
            shown = _operation(method, path, operation, components.get("parameters", {}))
            listed.setdefault(tag, [f"<h2>{escape(tag)}</h2>"]).append(shown)
    schemas = (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<pre>{escape(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())}</pre></details>"
        for name, schema in components["schemas"].items()
    )
    text = Template((Path(__file__).parent / "docs.html").read_text("utf-8")).substitute(
        {name: escape(document["info"][name]) for name in ("title", "version")},
        operations="\n".join(line for lines in listed.values() for line in lines),
        schemas="\n".join(schemas),
    )
    return text.encode()


def _operation(method: str, path: str, operation: dict[str, Any], components: dict[str, Any]) -> str:
    summary = escape(operation.get("summary", ""))
    lines = [f'<span class="method">{method.upper()}</span><code class="path">{escape(path)}</code>{summary}</summary>']
    if given := operation.get("parameters"):
        listed = [components[_last(entry["$ref"])] if "$ref" in entry else entry for entry in given]
        told = ([escape(entry.get(key, "")) for key in ("name", "in", "description")] for entry in listed)
        rows = (f"<tr><td><code>{name}</code><td>{place}<td>{description}" for name, place, description in told)
        lines += ["<h4>Parameters</h4>", "<table>", *rows, "</table>"]
    if "requestBody" in operation:
        lines.append(f"<h4>Body</h4><p>{_media(operation['requestBody'])}</p>")
    for status, reply in operation["responses"].items():
        lines.append(f"<h4>{'Errors' if status == 'default' else escape(status)}</h4><p>{_media(reply)}</p>")
    return "<details><summary>" + "\n".join(lines) + "</details>"


def _media(described: dict[str, Any]) -> str:
    content = described.get("content", {}).items()
    return ", ".join(f"<code>{escape(kind)}</code> {_named(one['schema'])}" for kind, one in content)


def _named(schema: dict[str, Any]) -> str:
    if "$ref" not in schema:
        return escape(schema.get("type", ""))
    name = escape(_last(schema["$ref"]))
    return f'<a href="#{name}">{name}</a>'


def _last(reference: str) -> str:
    return reference.rpartition("/")[2]
