"""Draw SVG in Python: no script, no inline styles (the page's policy forbids them), colours by class from the sheet.

Every function is pure and returns `markupsafe.Markup`, with all texts escaped. Places are in percent of the width where
a drawing stretches with the page, so texts and line widths keep their size.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape


def tag(name: str, content: str | Markup = "", /, **attributes: object) -> Markup:
    """Return one element; `class_` is `class`, and an underscore in a name is a hyphen. None leaves one out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{escape(content)}</{name}>")  # noqa: S704  everything is escaped above


def joined(parts: Sequence[Markup]) -> Markup:
    """Return the elements one after the other."""
    return Markup("").join(parts)


def share(value: float) -> str:
    """Return a place of 0 to 1 as percent."""
    return f"{max(0.0, min(value, 1.0)) * 100:.3f}%"
