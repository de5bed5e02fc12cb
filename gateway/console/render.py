"""Turn a view's data into the page, or into JSON for a path that ends in `.json`."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
import orjson
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from gateway.telemetry.reasons import milliseconds

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.console.assets import Assets

_TEMPLATES: Final = Path(__file__).parent / "templates"
_LEAST_USD: Final = 1e-9
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_WRITTEN: Final[Mapping[str, str]] = {
    "clock": "%H:%M:%S", "date": "%Y-%m-%d %H:%M:%S", "minute": "%H:%M", "day": "%a %d %b %H:%M", "month": "%b %d",
}  # fmt: skip
"""How times are written, by form; `console.js` has the same forms for the browser's zone."""


class Renderer:
    """Render pages by their templates. One per process."""

    def __init__(self, assets: Assets, shared: Mapping[str, Any]) -> None:
        """Prepare the templates; each of them sees `shared`."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.globals |= {"asset": assets.url, "utc": utc, "form_for": form_for, **shared}
        self._scripted = list(shared.get("scripted", ()))
        environment.filters |= {
            "ms": _ms, "usd": usd, "ago": ago, "clock": shown, "stamp": _stamp, "percent": percent,
            "count": _count, "either": _either, "unit": _unit, "shown_of": _guarded,
            "date": partial(shown, form="date"), "moment": lambda at, span: shown(at, form_for(span)),
        }  # fmt: skip
        environment.filters |= {"ms_signed": _ms_signed, "bytes": _bytes}
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
        html = self._environment.get_template(template).render(
            request=request, path=request.url.path, script=script, **data
        )
        return HTMLResponse(html, status)

    def part(self, template: str, data: Mapping[str, Any]) -> str:
        """Return a part of a page that has a template of its own, for an update of a page that is open."""
        return self._environment.get_template(template).render(data)


def json_of(data: Mapping[str, Any], status: int = 200) -> Response:
    """Return data as a JSON reply."""
    return Response(json_text(data), status, media_type="application/json")


def json_text(data: Mapping[str, Any]) -> bytes:
    """Return data as JSON; what is no JSON by itself is an object of its fields, or its text."""
    return orjson.dumps(data, default=_plain, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


def _ms(value: float | None) -> str:
    return "–" if value is None else milliseconds(value)


def usd(value: float | None, signed: bool = False) -> str:
    """Format an amount of US dollars: two decimals, below $1 three significant digits. `signed`: with a plus, too."""
    if value is None:
        return "–"
    amount = abs(value)
    if amount < _LEAST_USD:
        return "$0"
    digits = 2 if amount >= 1 else max(2, 2 - math.floor(math.log10(amount)))
    return f"{'−' if value < 0 else '+' if signed else ''}${amount:,.{digits}f}"


def _ms_signed(value: float) -> str:
    return f"−{milliseconds(-value)}" if value < 0 else milliseconds(value)


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share of 1."""
    return "–" if value is None else f"{value * 100:.{digits}f}%"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _unit(value: float | None, unit: str, signed: bool = False) -> str:
    """Format a figure of a replay, whose unit is share, ms or usd."""
    if value is None:
        return "–"
    sign = "+" if signed else ""
    if unit == "share":
        return f"{round(value * 100, 2) + 0.0:{sign}.2f}%"  # no minus before a zero
    return f"{value:{sign}.1f} ms" if unit == "ms" else usd(value, signed)


def _guarded(value: float | None, guard: str) -> str:
    """Format what a guard compares of one arm: a share, seconds, or dollars."""
    if value is None:
        return "–"
    if guard == "ttft_p95":
        return milliseconds(value * 1000)
    return usd(value) if guard == "cost" else percent(value, 2)


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


def shown(at_s: float, form: str = "clock") -> Markup:
    """Return an element that shows a Unix time: in UTC, or in the browser's own zone where scripts run."""
    iso = stamp(at_s)["data_time"]
    whole = f"{utc(at_s, 'date')} UTC"
    return Markup('<time datetime="{}" data-utc="{}" title="{}">{}</time>').format(iso, form, whole, utc(at_s, form))


def form_for(span: str) -> str:
    """Return the form of times that a page over a span, such as 7d, needs."""
    return "day" if span.endswith("d") else "minute"


def _stamp(at_s: float, form: str) -> Markup:
    """Return the attributes of `stamp` for an element that can hold no other, such as an option."""
    return Markup(" ").join(
        Markup('{}="{}"').format(name.replace("_", "-"), value) for name, value in stamp(at_s, form).items()
    )
