"""Serve the console's style sheet and its scripts, each made of the files that stand in `static/`.

Their URLs hold a hash of their content, so browsers keep them for ever. Vendored files are what their authors publish,
with licences beside them; `static/vendor/VENDORED.json` holds name, version, source, licence and SHA-256 of each.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"
_SCRIPTS: Final = ("vendor/htmx.min.js", "vendor/hx-sse.min.js", "console.js")
_BUNDLES: Final[Mapping[str, tuple[str, ...]]] = {
    "console.css": (
        "css/base.css",
        *sorted(f"css/{file.name}" for file in STATIC.glob("css/*.css") if file.stem != "base"),
        "vendor/uplot.min.css",
    ),
    "console.js": _SCRIPTS,
    "charts.js": (*_SCRIPTS, "vendor/uplot.min.js", "charts.js"),
    "policy.js": (*_SCRIPTS, "vendor/codemirror.min.js", "policy.js"),
}
"""What each bundle is made of. A page loads one script alone, so every bundle begins with what all pages need."""
_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as browsers get it. `name` is the last part of its URL."""

    name: str
    media_type: str
    body: bytes
    gzipped: bytes


class Assets:
    """All assets, read once."""

    def __init__(self) -> None:
        self._by_name: dict[str, Asset] = {}
        self._names: dict[str, str] = {}
        for bundle, parts in _BUNDLES.items():
            body = b"\n".join((STATIC / part).read_bytes() for part in parts)
            stem, dot, extension = bundle.partition(".")
            name = f"{stem}-{hashlib.sha256(body).hexdigest()[:12]}{dot}{extension}"
            self._names[bundle] = name
            self._by_name[name] = Asset(name, _TYPES[dot + extension], body, gzip.compress(body, 9, mtime=0))

    def url(self, bundle: str) -> str:
        """Return the URL of a bundle, such as `console.css`."""
        return f"/static/{self._names[bundle]}"

    def find(self, name: str) -> Asset | None:
        """Return the asset of that name; None if there is none, or only another version of it."""
        return self._by_name.get(name)
