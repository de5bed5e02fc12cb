"""Ask a running gateway, by its admin API, what a request would be decided by right now."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.cli.commands import CommandError
from gateway.parts.recorder.decision_record import DecisionBasis
from policies.model import Policy
from policies.quantities import write_share
from policies.yaml_source import Document, parse_yaml
from routing.decide import DecisionInput

_TIMEOUT_S: Final = 10.0
_VERSION: Final = re.compile(r"([a-z0-9][a-z0-9_-]*)@([0-9a-f]{4,64})")
_UNITS: Final = {"conversation": "conversations", "key": "API keys", "tenant": "tenants"}


@dataclass(frozen=True, slots=True)
class LiveView:
    """What one worker of a running gateway answered: the policy, the decision's input, and the candidate tried beside.

    `document` is the policy's text, for line numbers; None where the gateway cannot find it.
    """

    policy: Policy
    given: DecisionInput
    document: Document | None
    answer: Mapping[str, Any]

    @property
    def arm(self) -> str:
        """Which policy the request gets and why, where a candidate is tried on its surface; '' where none is."""
        candidate = self.answer["candidate"]
        if candidate is None:
            return ""
        label, mode = candidate["policy"], candidate["mode"]
        if mode != "canary":
            return f"{label} is tried by {mode} beside it, and answers nobody"
        share = f"{label} is tried on {write_share(candidate['share'])} of {_UNITS[candidate['sticky']]}"
        if self.answer["arm"] is None:
            return f"{share}; which policy this request would get is not known"
        unit = candidate["sticky"] if candidate["sticky"] != "key" else "API key"
        return f"{share}; this {unit} is {'one' if self.answer['arm'] == 'candidate' else 'none'} of them"

    @property
    def shown(self) -> dict[str, Any]:
        """What --json says of it."""
        return {name: self.answer[name] for name in ("worker", "at", "arm", "candidate")}


class LiveGateway:
    """The admin API of a running gateway."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key

    @classmethod
    def of(cls, args: argparse.Namespace) -> LiveGateway:
        """Return the gateway that --gateway, --config or --state names. Raises CommandError."""
        url, key_env = admin_address(args)
        key = os.environ.get(key_env, "")
        if not key:
            raise CommandError(f"{key_env} is not set; put the gateway's admin key there, or name another by --key-env")
        return cls(url, key)

    def explain(self, asked: Mapping[str, Any], named: str | None) -> LiveView:
        """Return what a request would meet now, with the policy `named` (a file or version) in place of that in force.

        Raises CommandError.
        """
        text = None if named is None else self._text(named)
        answer = self._ask("POST", "/explain", {**asked, **({} if text is None else {"text": text})})
        label = Path(Path(named).name if named is not None else f"{answer['policy']}")
        try:
            basis = DecisionBasis.decode(orjson.dumps(answer["basis"]))
            given = basis.input_of(answer["in"])
            document = None if answer["text"] is None else parse_yaml(answer["text"], label)
        except (ValueError, KeyError) as error:
            raise CommandError(f"the gateway is of another version of Tierline: {error}") from None
        return LiveView(basis.policy, given, document, answer)

    def _text(self, named: str) -> str:
        """Return the text of a policy file, or of a version such as chat@f00d in the gateway's store."""
        version = _VERSION.fullmatch(named)
        if version is not None and not Path(named).exists():
            return str(self._ask("GET", f"/{version[1]}/versions/{version[2]}")["text"])
        try:
            return Path(named).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise CommandError(f"{named}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise CommandError(f"{named} is not UTF-8") from None

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the answer to one question. Raises CommandError for none, and for one that is an error."""
        import httpx2  # slow to import, and not needed otherwise

        url = f"{self._url}/admin/policies{path}"
        content = None if body is None else orjson.dumps(body)
        headers = {"authorization": f"Bearer {self._key}"}
        try:
            with httpx2.Client(headers=headers, timeout=_TIMEOUT_S, trust_env=False) as client:
                reply = client.request(method, url, content=content)
            answer = orjson.loads(reply.content)
        except httpx2.HTTPError as error:
            raise CommandError(
                f"no gateway answers at {self._url} ({str(error) or type(error).__name__}); is it running? "
                "--gateway names the address of its admin API"
            ) from None
        except ValueError:
            raise CommandError(f"what answers at {self._url} is no gateway of Tierline") from None
        if reply.status_code == 200 and isinstance(answer, dict):
            return answer
        refused = answer.get("error", {}) if isinstance(answer, dict) else {}
        if (
            reply.status_code == 401
            and refused.get("code") == "invalid_api_key"
            and "admin" in refused.get("message", "")
        ):
            raise CommandError(f"the gateway at {self._url} refuses the admin key; --key-env names its variable")
        if refused.get("code") == "unknown_url":
            raise CommandError(
                f"{self._url} has no {path.strip('/')} of policies: it is not the admin API, which has a port of its "
                "own (`admin` in the config), or that gateway is older"
            )
        if refused.get("param") == "text":
            raise CommandError(f"the gateway cannot hold this policy: {refused['message']}")
        raise CommandError(f"the gateway would refuse this request: {refused.get('message', reply.status_code)}")


def add_gateway_flags(parser: argparse.ArgumentParser) -> None:
    """Add --gateway and --key-env to a command that asks a running gateway's admin API."""
    parser.add_argument(
        "--gateway",
        metavar="URL",
        help="the address of the gateway's admin API (default: that of --config, else that of `tierline up`)",
    )
    parser.add_argument(
        "--key-env",
        metavar="VAR",
        help="the variable with its admin key (default: the one that the config names, else TIERLINE_ADMIN_KEY)",
    )


def admin_address(args: argparse.Namespace) -> tuple[str, str]:
    """Return the URL of a running gateway's admin API, and the variable with its key. Raises CommandError, ConfigError.

    See `add_gateway_flags`.
    """
    url: str | None = args.gateway
    key_env: str | None = None
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise CommandError(f"--gateway {url}: an address begins with http:// or https://")
        url = url.rstrip("/").removesuffix("/admin")
    elif args.config is not None:
        from gateway.config.loader import load_deployment  # not needed otherwise, and slow to import

        admin = load_deployment(args.config, reads=True).admin_place
        if admin is None:
            raise CommandError(f"{args.config} has no admin API to ask; add `admin: {{key_env: TIERLINE_ADMIN_KEY}}`")
        url, key_env = admin.url, admin.key_env
    else:
        url, key_env = _admin_of_up(Path(args.state) / "up.json")
    return url, args.key_env or key_env or "TIERLINE_ADMIN_KEY"


def _admin_of_up(up: Path) -> tuple[str, str | None]:
    try:
        running = orjson.loads(up.read_bytes())
    except (OSError, ValueError):
        raise CommandError(
            f"no gateway to ask: {up} is not there, so `tierline up` is not running here. Start it, or name the "
            "address of a gateway's admin API by --gateway, or its config by --config"
        ) from None
    if not running.get("admin_url"):
        raise CommandError(
            "the gateway of `tierline up` has no admin API to ask; add `admin: {key_env: TIERLINE_ADMIN_KEY}` to its "
            "config, set that variable to a key, and start it again"
        )
    return running["admin_url"], running.get("admin_key_env")
