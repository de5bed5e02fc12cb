"""Read the key list of LiteLLM: what `/key/list?return_full_object=true` answers, or an export of its table of keys.

The file is JSON, JSON lines or CSV. Keys go on being valid as they are: a token there is the SHA-256 of a key, and so
is the digest here. What has no counterpart is said for each key, and nothing is guessed to be wider than it was.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from pydantic import ValidationError

from gateway.parts.access.config import NAME
from gateway.parts.access.keys.moving import MovedKeys
from gateway.parts.access.keys.records import NO_NAMES, KeyRecord
from gateway.parts.access.keys.registry import KeysRefused
from gateway.parts.access.quotas.terms import Terms

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ALL: Final = frozenset({"all-proxy-models", "*"})
_OF_TEAM: Final = "all-team-models"
_WINDOWS: Final = (("day", 86400), ("week", 7 * 86400), ("month", 31 * 86400))
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "mo": 30 * 86400}
_UNTAKEN: Final = (
    "aliases", "allowed_cache_controls", "allowed_routes", "config", "guardrails", "model_max_budget",
    "model_rpm_limit", "model_tpm_limit", "object_permission_id", "permissions", "policies", "soft_budget",
)  # fmt: skip
"""What keys may have there that nothing here stands for."""


def litellm_keys(text: str, tenant: str) -> MovedKeys:
    """Return the keys of a list as keys of a tenant. Raises KeysRefused for a file that is none."""
    records: list[KeyRecord] = []
    notes: dict[str, list[str]] = {}
    for number, row in enumerate(_rows(text), start=1):
        token = str(row.get("token") or row.get("api_key") or "")
        label = str(row.get("key_alias") or row.get("key_name") or token[:12] or f"entry {number}")
        if not _DIGEST.fullmatch(token):
            notes[label] = ["left out: it has no token, the 64 hex digits of its SHA-256"]
            continue
        said: list[str] = []
        try:
            records.append(_record(token, label if label != token[:12] else "", row, tenant, said))
        except (ValueError, OverflowError) as error:
            said = [f"left out: one of its numbers cannot be read ({error})"]
        if said:
            notes[label] = said
    if not records and not notes:
        raise KeysRefused("the file lists no keys; ask LiteLLM for /key/list?return_full_object=true")
    return MovedKeys(records, notes)


def _rows(text: str) -> Iterator[Mapping[str, Any]]:
    try:
        if text.lstrip()[:1] not in ("{", "["):
            yield from csv.DictReader(io.StringIO(text))
            return
        try:
            value = orjson.loads(text)
        except ValueError:
            value = [orjson.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, csv.Error) as error:
        raise KeysRefused(f"the file is neither JSON nor CSV: {error}") from None
    if isinstance(value, dict):
        value = value.get("keys", [value])
    for row in value if isinstance(value, list) else []:
        yield {"token": row} if isinstance(row, str) else row if isinstance(row, dict) else {}


def _record(token: str, name: str, row: Mapping[str, Any], tenant: str, notes: list[str]) -> KeyRecord:
    metadata = _object(row.get("metadata"))
    notes += _untaken(row, metadata)
    return KeyRecord(
        f"k_{base64.b32encode(bytes.fromhex(token)[:10]).decode().lower()}",
        token,
        tenant,
        team=_team(row, notes),
        name=name,
        owner=str(row.get("user_id") or ""),
        state="disabled" if str(row.get("blocked")).lower() in ("true", "t") else "active",
        models=_models(row, notes),
        terms=_terms(row, notes),
        expires=_time(row.get("expires"), notes),
        created=_time(row.get("created_at"), []) or 0.0,
        created_by=str(row.get("created_by") or ""),
        imported=True,
        metadata={
            str(key): value if isinstance(value, str) else orjson.dumps(value).decode()
            for key, value in metadata.items()
            if key not in _UNTAKEN and value
        },
    )


def _untaken(row: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[str]:
    for name in _UNTAKEN:
        value = row.get(name) or metadata.get(name)
        if value and value not in ("{}", "[]"):
            yield f"{name} has no counterpart and does not hold here"
    if spend := float(row.get("spend") or 0):
        yield f"${spend:.2f} that it has spent there does not count here"


def _models(row: Mapping[str, Any], notes: list[str]) -> tuple[str, ...]:
    """Return the models that a key and its team may both use; none where the list does not tell what they are."""
    own, team = (tuple(str(model) for model in _list(row.get(name))) for name in ("models", "team_models"))
    if _OF_TEAM in own and not team:
        notes.append(
            "its models are those of its team, which this list does not tell, so these are closed to it; open them by "
            "`tierline keys update KEY --model NAME`"
        )
        return tuple(name for name in own if name != _OF_TEAM) or NO_NAMES
    if not team and (row.get("team_id") or row.get("team_alias")) and (not own or _ALL.intersection(own)):
        notes.append("what models its team may use is not in this list, and does not hold here")
    if not own or not _ALL.union({_OF_TEAM}).isdisjoint(own):
        own = ()
    if not team or not _ALL.isdisjoint(team):
        return own
    return team if not own else tuple(name for name in own if name in team) or NO_NAMES


def _team(row: Mapping[str, Any], notes: list[str]) -> str:
    team = str(row.get("team_alias") or row.get("team_id") or "")
    name = re.sub(r"[^a-z0-9_.-]+", "-", team.lower()).strip("-._")[:64]
    if team and name != team:
        notes.append(f"its team {team!r} is called {name!r} here" if name else f"its team {team!r} is left out")
    return name if re.fullmatch(NAME, name) else ""


def _terms(row: Mapping[str, Any], notes: list[str]) -> Terms:
    counts = {
        "requests_per_minute": "rpm_limit",
        "tokens_per_minute": "tpm_limit",
        "concurrent": "max_parallel_requests",
    }
    values: dict[str, Any] = {}
    for name, theirs in counts.items():
        if (limit := row.get(theirs)) not in (None, ""):
            values[name] = max(1, int(float(limit)))
            if not float(limit):
                notes.append(f"{theirs} 0 is 1 here; disable the key to let nothing through")
    if (budget := row.get("max_budget")) not in (None, ""):
        values["budgets"] = [{"usd": float(budget), "per": _window(row, notes)}]
    try:
        return Terms.model_validate(values)
    except ValidationError as error:
        raise KeysRefused(f"the limits of a key cannot be read: {error.errors()[0]['msg']}") from None


def _window(row: Mapping[str, Any], notes: list[str]) -> str:
    """Return the calendar window of a budget, the next longer one where there is none of its length."""
    text = str(row.get("budget_duration") or "")
    if not text:
        return "total"
    match = re.fullmatch(r"(\d+)(mo|[smhdw])", text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    window = next((name for name, length in _WINDOWS if 0 < seconds <= length), "total")
    if text not in ("24h", "1d", "7d", "1w", "30d", "1mo"):
        notes.append(f"its budget per {text} holds per {window} here, which is stricter")
    return window


def _time(value: Any, notes: list[str]) -> float | None:
    if not value:
        return None
    try:
        at = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        notes.append(f"its end {value!r} cannot be read, so it has ended")
        return 1.0
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _object(value: Any) -> Mapping[str, Any]:
    found = _json(value)
    return found if isinstance(found, dict) else {}


def _list(value: Any) -> list[Any]:
    found = _json(value.replace("{", "[", 1).replace("}", "]", 1)) if isinstance(value, str) else value
    if found is None and isinstance(value, str):  # an array as PostgreSQL writes it in CSV: {gpt-4o,claude}
        found = [word.strip('"') for word in value.strip("{}").split(",") if word]
    return found if isinstance(found, list) else []


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except ValueError:
        return None
