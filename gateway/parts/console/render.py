"""Turn a view's data into the page, or into JSON for a path that ends in `.json`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import jinja2
import orjson
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from policies.quantities import byte_size, dollars, figure, milliseconds, percent, points, write_share

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.parts.console.assets import Assets
    from gateway.parts.console.page import ConsoleUser

_TEMPLATES: Final = Path(__file__).parent / "templates"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_WRITTEN: Final[Mapping[str, str]] = {
    "clock": "%H:%M:%S", "date": "%Y-%m-%d %H:%M:%S", "minute": "%H:%M", "day": "%a %d %b %H:%M", "month": "%b %d",
}  # fmt: skip
"""How times are written, by form; `console.js` has the same forms for the browser's zone."""


class _ShownPage(Protocol):
    """What is known of a page where the navigation is drawn."""

    @property
    def path(self) -> str: ...
    @property
    def does(self) -> str: ...


class Renderer:
    """Render pages by their templates. One per process."""

    def __init__(self, assets: Assets, folders: Sequence[Path], shared: Mapping[str, Any]) -> None:
        """Prepare the templates, of parts' folders too; each of them sees `shared`."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader([_TEMPLATES, *folders]),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.globals |= {"asset": assets.url, **shared}
        self._scripted = list(shared.get("scripted", ()))
        self._needs_key = bool(shared.get("signed_in"))
        self._views: Sequence[_ShownPage] = shared.get("views", ())
        said: dict[str, Callable[..., str]] = {
            "ms": milliseconds, "usd": dollars, "percent": percent, "count": "{:,.0f}".format, "unit": figure,
            "bytes": byte_size, "points": points, "as_written": write_share,
        }  # fmt: skip
        environment.filters |= {name: _known(say) for name, say in said.items()}
        environment.filters |= {
            "ago": ago, "clock": time_element, "either": _either, "shown_of": _guarded,
            "date": partial(time_element, form="date"), "moment": lambda at, span: time_element(at, form_for(span)),
        }  # fmt: skip
        self._environment = environment

    def page(
        self,
        request: Request,
        template: str,
        data: Mapping[str, Any],
        *,
        status: int = 200,
        script: str = "console.js",
    ) -> Response:
        """Return the page of a view, which loads the bundle `script`, or its data if the path ends in `.json`.

        A request of the page's own script for a part of it (header `HX-Target`) gets the whole page: htmx selects.
        Where models are scripted the data says so too, by `scripted`, as every page does.
        """
        if request.url.path.endswith(".json"):
            return json_of({**data, "scripted": self._scripted} if self._scripted else data, status)
        person: ConsoleUser | None = getattr(request.state, "person", None)
        known = person is not None or not self._needs_key

        def shown_to(view: _ShownPage) -> bool:
            return known and (person is None or person.may_some(view.does))

        html = self._environment.get_template(template).render(
            request=request,
            path=request.url.path,
            script=script,
            shown_to=shown_to,
            seen={view.path for view in self._views if shown_to(view)},
            known=known,
            signed_by=person.name if person is not None and person.id else "",
            **data,
        )
        return HTMLResponse(html, status)

    def part(self, template: str, data: Mapping[str, Any]) -> str:
        """Return a part of a page that has a template of its own, for an update of a page that is open."""
        return self._environment.get_template(template).render(data)


def json_of(data: Mapping[str, Any], status: int = 200) -> Response:
    """Return data as a JSON reply."""
    return Response(page_json(data), status, media_type="application/json")


def page_json(data: Mapping[str, Any]) -> bytes:
    """Return data as JSON; what is no JSON by itself is an object of its fields, or its text."""
    return orjson.dumps(data, default=_plain, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


def _known(say: Callable[..., str]) -> Callable[..., str]:
    """Return a filter that says a number, or a dash for None."""
    return lambda value, *how, **named: "–" if value is None else say(value, *how, **named)


def _guarded(value: float | None, guard: str) -> str:
    """Format what a guard compares of one arm: a share, seconds, or dollars."""
    if value is None:
        return "–"
    if guard == "ttft_p95":
        return milliseconds(value * 1000)
    return dollars(value) if guard == "cost" else percent(value, 2)


def _either(value: object) -> str:
    return "–" if value is None or value == "" else str(value)


def ago(started_s: float) -> str:
    """Format how long ago a Unix time was."""
    age = max(0.0, time.time() - started_s)
    if age < _MINUTE:
        return f"{age:.0f} s ago"
    if age < _HOUR:
        return f"{age / _MINUTE:.0f} min ago"
    return f"{age / _HOUR:.0f} h ago" if age < 2 * _DAY else f"{age / _DAY:.0f} days ago"


def utc(at_s: float, form: str = "clock") -> str:
    """Format a Unix time in UTC, in one of the forms clock, date, minute, day and month."""
    return time.strftime(_WRITTEN[form], time.gmtime(at_s))


def stamp(at_s: float, form: str = "clock") -> dict[str, str]:
    """Return the attributes by which the script writes an element's `utc` text again in the browser's own zone."""
    return {"data_utc": form, "data_time": datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")}


def time_element(at_s: float, form: str = "clock") -> Markup:
    """Return an element that shows a Unix time: in UTC, or in the browser's own zone where scripts run."""
    iso = stamp(at_s)["data_time"]
    whole = f"{utc(at_s, 'date')} UTC"
    return Markup('<time datetime="{}" data-utc="{}" title="{}">{}</time>').format(iso, form, whole, utc(at_s, form))


def form_for(span: str) -> str:
    """Return the form of times that a page over a span, such as 7d, needs."""
    return "day" if span.endswith("d") else "minute"
