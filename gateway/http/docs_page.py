"""Render an OpenAPI document as a page of its own: plain HTML and one style sheet, without scripts or other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

import orjson

STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
code, pre { font: 14px/1.4 ui-monospace, monospace }
pre { overflow: auto }
details { border: 1px solid #ddd; border-radius: 4px; margin: .4rem 0; padding: .4rem .8rem }
summary { cursor: pointer }
.method { display: inline-block; min-width: 4.5rem; font-weight: bold }
.path { margin-right: 1rem }
table { border-collapse: collapse }
td { padding: .1rem 1rem .1rem 0; vertical-align: top }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #e6e6e6 }
  details { border-color: #444 }
  h2 { border-color: #555 }
  a { color: #8ab4f8 }
}
"""
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


def page(document: Mapping[str, Any]) -> str:
    """Return the HTML of a document that `gateway.http.openapi` made."""
    info = document["info"]
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    sections = (f"<h2>{escape(tag)}</h2>{''.join(entries)}" for tag, entries in by_tag.items())
    schemas = (_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="docs.css">'
        f"<title>{escape(info['title'])}</title></head><body><h1>{escape(info['title'])}</h1>"
        f'<p>Version {escape(info["version"])}. <a href="openapi.json">openapi.json</a> is this as data.</p>'
        f"{''.join(sections)}<h2>Schemas</h2>{''.join(schemas)}</body></html>"
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = []
    if operation["parameters"]:
        rows = "".join(_row(parameter) for parameter in operation["parameters"])
        parts.append(f"<h4>Parameters</h4><table>{rows}</table>")
    if "requestBody" in operation:
        parts.append(f"<h4>Body</h4><p>{_media(operation['requestBody']['content'])}</p>")
    for status, reply in operation["responses"].items():
        content = reply.get("content")
        what = _media(content) if content else _link("Error")
        parts.append(f"<h4>{'Errors' if status == 'default' else escape(status)}</h4><p>{what}</p>")
    name = f'<span class="method">{escape(method.upper())}</span><code class="path">{escape(path)}</code>'
    return f"<details><summary>{name}{escape(operation['summary'])}</summary>{''.join(parts)}</details>"


def _row(parameter: Mapping[str, Any]) -> str:
    if reference := parameter.get("$ref"):
        return f"<tr><td><code>{escape(reference.rpartition('/')[2])}</code><td>header<td>"
    text = escape(parameter.get("description", ""))
    return f"<tr><td><code>{escape(parameter['name'])}</code><td>{escape(parameter['in'])}<td>{text}"


def _media(content: Mapping[str, Any]) -> str:
    return ", ".join(f"<code>{escape(media)}</code> {_named(one['schema'])}" for media, one in content.items())


def _named(schema: Mapping[str, Any]) -> str:
    reference = schema.get("$ref")
    return _link(reference.rpartition("/")[2]) if reference else escape(str(schema.get("type", "")))


def _link(name: str) -> str:
    return f'<a href="#{escape(name)}">{escape(name)}</a>'


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    text = escape(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())
    name = escape(name)
    return f'<details id="{name}"><summary><code>{name}</code></summary><pre>{text}</pre></details>'
