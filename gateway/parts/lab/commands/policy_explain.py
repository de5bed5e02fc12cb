"""Run `tierline policy explain`: each step of a request's path."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
from rich.table import Table
from rich.text import Text

from gateway.cli.commands import CommandError
from gateway.cli.flags import add_json_flag, launch_of
from gateway.cli.store_flags import add_store_flags, ledger_folder, take_running
from gateway.exit_codes import Exit
from gateway.parts.lab.commands._recorded_policies import deployed_as, recorded
from gateway.parts.lab.explain.path import PathLine, cache_lines, decision_lines, start_of
from gateway.parts.rollout.commands._live_policies import LiveGateway, LiveView, add_gateway_flags
from gateway.parts.rollout.commands._policies_in_force import policies_in_force
from gateway.parts.rollout.commands._policy_files import policy_in
from gateway.report import Report, show
from policies.errors import KeyPath
from policies.loader import SHIPPED
from policies.model import Policy
from policies.quantities import read_duration, write_share
from policies.wildcards import STAR, matches
from policies.yaml_source import Document
from routing.decide import DecisionInput, TierHealth
from routing.features import Features, features_of, room_wanted
from routing.load.latency import Forecast

if TYPE_CHECKING:
    from cache.planning.plan import Planner
    from gateway.caller import OpenModels, Rights
    from gateway.config.backends import TierConfig
    from gateway.config.launch import Launch
    from gateway.config.schema import Deployment
    from gateway.request.options import RequestOptions
    from routing.difficulty.model import Difficulty
    from routing.embedder import Embedder

_WIDTH: Final = 120
_TENANT: Final = "explain"


@dataclass(frozen=True, slots=True)
class _Explained:
    """What is explained: the policy, the input of the decision, and the lines that come before it."""

    policy: Policy
    given: DecisionInput
    lines: list[PathLine]
    after: list[PathLine]
    document: Document | None
    notes: list[str]
    live: LiveView | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy explain`."""
    parser.add_argument("file", nargs="?", metavar="REQUEST.json")
    parser.add_argument("--request", metavar="ID")
    parser.add_argument("--ledger", type=Path, metavar="DIR", help="the ledger's files (default: STATE/ledger)")
    parser.add_argument("--surface", metavar="NAME")
    parser.add_argument("--policy", metavar="FILE")
    parser.add_argument("-H", "--header", action="append", default=[], metavar="TEXT")
    add_store_flags(parser)
    parser.add_argument("--policies", type=Path, metavar="DIR", help="the folder of policies (default: those shipped)")
    parser.add_argument("--down", action="append", default=[], metavar="TIER")
    parser.add_argument("--expect", action="append", default=[], metavar="TIER=TIME")
    parser.add_argument("--key", metavar="KEY")
    parser.add_argument("--at", choices=("live",))
    add_gateway_flags(parser)
    parser.add_argument("--tenant", metavar="NAME")
    add_json_flag(parser, "text")


def run(args: argparse.Namespace) -> int:
    """Explain and return the exit code. Raises CommandError and ConfigError."""
    if (args.file is None) == (args.request is None):
        raise CommandError("name a file with a request's body, or --request ID for a recorded one")
    if args.at is None and (misplaced := [name for name in ("gateway", "key_env", "tenant") if getattr(args, name)]):
        raise CommandError(f"--{misplaced[0].replace('_', '-')} is for --at live")
    if args.key is not None and (args.file is None or args.at is not None):
        raise CommandError("--key is for a file, without --at live: a recorded request has its own key's tiers")
    take_running(args)
    if args.at == "live":
        explained = _recorded_live(args) if args.request else _body_live(args)
    else:
        explained = _recorded(args) if args.request else _from_body(args)
    show(_report(explained), as_json=args.json)
    return Exit.OK


def _report(explained: _Explained) -> Report:
    policy, given = explained.policy, explained.given
    lines = [*explained.lines, *decision_lines(policy, given), *explained.after]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True, justify="right", style="dim")
    step = ""
    for line in lines:
        indent = len(line.text) - len(line.text.lstrip())
        text = Text(line.text.strip())
        cell = Table.grid(padding=(0, 0, 0, indent))
        cell.add_row(text)
        table.add_row(line.step if line.step != step else "", cell if indent else text, _place(explained, line.at))
        step = line.step
    values: dict[str, Any] = {
        "policy": policy.label,
        "start": start_of(policy, given),
        "steps": [{**asdict(line), "at": list(line.at), "place": _place(explained, line.at)} for line in lines],
    }
    if explained.live is not None:
        values["live"] = explained.live.shown
    return Report(values, [table], explained.notes, width=_WIDTH)


def _place(explained: _Explained, at: KeyPath) -> str:
    document = explained.document
    if document is None or not at:
        return ""
    problem = document.problem(at, "")
    return f"{problem.file.name}:{problem.line}" if problem.line else ""


# A recorded request.


def _recorded(args: argparse.Namespace) -> _Explained:
    record = recorded(ledger_folder(args), args.request)
    policy, document, notes = record.basis.policy, None, list[str]()
    if args.policy is not None:
        policy, document = policy_in(args.policy, args)
        policy, unknown = deployed_as(record.basis, policy)
        notes += [f"{name} is left out: the record does not hold its state" for name in unknown]
    else:
        launch = launch_of(args)
        deployment = launch.deployment(reads=True)
        in_force = policies_in_force(args, deployment, launch.policy_source(deployment))
        now = in_force.by_surface.get(policy.surface)
        if now is not None and now[0].version == policy.version:
            document = now[1]
        else:
            notes.append(f"{policy.label} is not in force in {in_force.where}, so there are no line numbers")
    lines = [PathLine("surface", f"{policy.surface}, decided by {policy.label}", ("surface",))]
    after = [PathLine("cache", "unknown: a record holds no text", ("cache",))]
    given = replace(record.given, health=_state(args, record.given.health, record.given.features))
    return _Explained(policy, given, lines, after, document, notes)


# What a running gateway would do.


def _recorded_live(args: argparse.Namespace) -> _Explained:
    """Explain a recorded request as if it came again now: its own features, the policy and tiers of now."""
    record = recorded(ledger_folder(args), args.request)
    before, features = record.basis.policy, record.given.features
    asked = {"surface": before.surface, "tokens_in": features.approx_tokens}
    gateway = LiveGateway.of(args)
    view = gateway.explain(asked, args.policy)
    candidate = view.answer["candidate"]
    if args.policy is None and candidate is not None and candidate["version"] == before.version:
        view = gateway.explain(asked, f"{before.surface}@{before.version}")  # who is in, stays in
        arm = [PathLine("surface", "the candidate decided it then, and would again", ("rollout",))]
    else:
        arm = _arm_line(view)
    policy, notes = view.policy, _live_notes(view)
    if policy.version != before.version:
        notes.append(f"it was decided by {before.label} then")
    lines = [PathLine("surface", f"{policy.surface}, now {policy.label}", ("surface",)), *arm]
    after = [PathLine("cache", "unknown: a record holds no text", ("cache",))]
    given = replace(record.given, health=_state(args, view.given.health, features))
    return _Explained(policy, given, lines, after, view.document, notes, view)


def _body_live(args: argparse.Namespace) -> _Explained:
    from cache.planning.plan import Planner
    from gateway.request.options import TIER_PREFIX, known_headers, read_options
    from routing.features import effective_body

    gateway = LiveGateway.of(args)
    try:
        body = orjson.loads(_read(args.file, args.surface))
    except orjson.JSONDecodeError as error:
        raise CommandError(f"{args.file} is not JSON: {error}") from None
    pairs = _headers(args)
    asked = {"body": body, "headers": {name.decode(): value.decode() for name, value in pairs}}
    view = gateway.explain(asked | ({"tenant": args.tenant} if args.tenant else {}), args.policy)
    policy, model, options = view.policy, body["model"], read_options(known_headers(pairs))
    pinned = model[len(TIER_PREFIX) :] if model.startswith(TIER_PREFIX) else None
    if args.policy is None:
        named = _named(policy, model, options, pinned)
    else:
        named = PathLine("surface", f"the policy of {args.policy}", ("surface",))
    encoder = view.answer["encoder"]
    planner = Planner(
        b"", encoder["name"], encoder["whole_chars"], {}, lambda _, __: 0, by_turns=bool(encoder["by_turns"])
    )
    effective, _ = effective_body(body, policy.output)
    features = features_of(effective)
    lines = [replace(named, text=f"{policy.label}: {named.text}"), *_arm_line(view)]
    lines += _cache(planner, policy, effective, features, options, pinned)
    given = replace(view.given, health=_state(args, view.given.health, features))
    return _Explained(policy, given, lines, [], view.document, _live_notes(view), view)


def _arm_line(view: LiveView) -> list[PathLine]:
    return [PathLine("surface", view.arm, ("rollout",))] if view.arm else []


def _live_notes(view: LiveView) -> list[str]:
    notes = [f"as the worker {view.answer['worker']} knows it now; others may expect somewhat different times"]
    if view.policy.held_out:
        share = write_share(view.policy.held_out)
        notes.append(f"chance sends {share} of requests to the strongest tier instead (holdout); that is left out")
    return notes


# A request's body.


def _from_body(args: argparse.Namespace) -> _Explained:
    from cache.planning.plan import Planner
    from gateway.errors import ApiError
    from gateway.http.build_context import chosen_policy, clamp_of, deadline_s, ttft_deadline
    from gateway.request.body import ChatBodies
    from gateway.request.options import TIER_PREFIX, known_headers, read_options
    from routing.features import effective_body

    launch = launch_of(args)
    deployment = launch.deployment(reads=True)
    source = launch.policy_source(deployment)
    chosen = policy_in(args.policy, args, source) if args.policy else None
    raw = _read(args.file, chosen[0].surface if chosen else args.surface)
    rights = _rights(args)
    folder = Path(args.policy).parent if args.policy else args.policies or SHIPPED
    headers = known_headers(_headers(args))
    try:
        body = ChatBodies(deployment.limits).parse(raw)
        options = read_options(headers)
        model = body["model"]
        pinned = model[len(TIER_PREFIX) :] if model.startswith(TIER_PREFIX) else None
        document: Document | None
        if chosen is not None:
            (policy, document), named = chosen, PathLine("surface", f"the policy of {args.policy}", ("surface",))
        else:
            in_force = policies_in_force(args, deployment, source)
            name = "auto" if pinned is not None else model
            found = chosen_policy(in_force.joined(source), name, options.surface, rights)
            if found is None:
                raise CommandError(f"there is no surface or model {options.surface or model!r}; name one by --surface")
            policy, file = found, in_force.by_surface.get(found.surface)
            document, named = (file[1] if file else None), _named(found, model, options, pinned)
        effective, own_limit = effective_body(body, policy.output)
        features = features_of(effective)
        health = _state(args, _healthy(deployment, policy), features)
        largest = max([tier.context or 0 for tier in health.values()], default=0)
        clamp = clamp_of(policy, options, pinned, rights, _models(args, rights, policy, body, launch))
        ladder = policy.ladder if clamp is None else clamp.of(policy)
        embedder = _embedder(deployment)
        asked = policy.route.classifier != "none" and len(ladder) > 1
        difficulty: Difficulty | None = None
        if asked:
            difficulty, features = _rated(deployment, embedder, policy, features, folder)
        given = DecisionInput(
            difficulty,
            features,
            health,
            deadline_s(policy, options),
            ttft_deadline(policy, options, 0.0) if features.stream else None,
            clamp,
            room=room_wanted(effective, largest, own_limit=own_limit) if largest else 0,
        )
    except ApiError as error:
        raise CommandError(f"the gateway would refuse this request: {error}") from None
    before = [replace(named, text=f"{policy.label}: {named.text}")]
    by_turns = deployment.cross_encoder_folder is not None
    planner = Planner(b"", embedder.name, embedder.whole_chars, {}, lambda _, __: 0, by_turns=by_turns)
    before += _cache(planner, policy, effective, features, options, pinned)
    notes = (
        []
        if args.down or args.expect
        else ["all configured tiers are taken to be up; --down and --expect say otherwise"]
    )
    return _Explained(policy, given, before, [], document, notes)


def _rights(args: argparse.Namespace) -> Rights | None:
    """Return what the key opens that --key names; None without one."""
    if args.key is None:
        return None
    from gateway.parts.access.commands._owned import with_keys
    from gateway.parts.access.keys.key_caller import KeyRights

    return KeyRights(with_keys(args, lambda registry: registry.find(args.key)))


def _models(
    args: argparse.Namespace, rights: Rights | None, policy: Policy, body: Mapping[str, Any], launch: Launch
) -> OpenModels | None:
    """Return the models that a key's list opens; None where all may answer. Raises Forbidden."""

    if rights is None or not rights.some_models:
        return None
    rights.check_fields(body)
    deployment = launch.deployment(reads=True)
    source = launch.policy_source(deployment)
    policies = policies_in_force(args, deployment, source).joined(source)
    tiers = [tier for tier in deployment.tiers if tier.name in policy.tiers]
    ladder = {tier.name: frozenset(backend.model for backend in tier.backends) for tier in tiers}
    return rights.open_models(policy, policies, ladder)


def _read(file: str, model: str | None) -> bytes:
    """Return the body's bytes; one that names no model gets `model`. Raises CommandError."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    with contextlib.suppress(orjson.JSONDecodeError):
        body = orjson.loads(raw)
        if isinstance(body, dict) and "model" not in body:
            return orjson.dumps({"model": model or "auto", **body})
    return raw


def _headers(args: argparse.Namespace) -> list[tuple[bytes, bytes]]:
    written = [f"x-tierline-surface: {args.surface}"] if args.surface else []
    pairs = []
    for text in [*written, *args.header]:
        name, colon, value = text.partition(":")
        if not colon:
            raise CommandError(f"{text!r} is not a header; write 'x-tierline-max-tier: local'")
        pairs.append((name.strip().lower().encode(), value.strip().encode()))
    return pairs


def _named(policy: Policy, model: str, options: RequestOptions, pinned: str | None) -> PathLine:
    """Return what named the surface."""
    if options.surface is not None:
        text = f"the header x-tierline-surface says {options.surface}"
        return PathLine("surface", text, ("surface" if options.surface == policy.surface else "match",))
    if pinned is not None:
        return PathLine("surface", f"the default surface, for the model {model}", ("surface",))
    if model in policy.match.models:
        return PathLine("surface", f"{model} is one of its match.models", ("match", "models"))
    if pattern := next((glob for glob in policy.match.models if STAR in glob and matches(glob, model)), ""):
        return PathLine("surface", f"{model} matches {pattern} of its match.models", ("match", "models"))
    default = ", which is the default surface" if model == "auto" else ""
    return PathLine("surface", f"the model is {model}{default}", ("surface",))


def _healthy(deployment: Deployment, policy: Policy) -> dict[str, TierHealth]:
    """Return the state of the policy's tiers when all is well."""
    by_name = {tier.name: tier for tier in deployment.tiers}
    return {name: _well(by_name[name]) for name in policy.ladder}


def _well(tier: TierConfig) -> TierHealth:
    backends = [backend for backend in tier.backends if backend.configured] or list(tier.backends)
    capabilities = frozenset[str].intersection(*(backend.can for backend in backends))
    context = min((backend.context for backend in backends if backend.context is not None), default=None)
    return TierHealth(tier.name, capabilities, len(backends), context=context)


def _state(args: argparse.Namespace, health: Mapping[str, TierHealth], features: Features) -> dict[str, TierHealth]:
    """Return the tiers' state with what --down and --expect say. Raises CommandError."""
    changed = dict(health)
    for text in [*args.down, *args.expect]:
        name, _, time = text.partition("=")
        if name not in changed:
            raise CommandError(f"there is no configured tier {name!r} here; there are {', '.join(changed) or 'none'}")
        if not time:
            changed[name] = replace(changed[name], unavailable="down", forecast=None)
            continue
        try:
            taken = read_duration(time)
        except ValueError as error:
            raise CommandError(f"--expect {text}: {error}") from None
        first = taken if features.stream else 0.0
        changed[name] = replace(changed[name], forecast=Forecast(first, first, taken, 0.0, known=True))
    return changed


def _embedder(deployment: Deployment) -> Embedder:
    """Return the encoder of the deployment's texts. Raises CommandError."""
    from gateway.encoders import load_embedder
    from routing.embedder import EmbedderUnavailable

    try:
        return load_embedder(deployment.embedding.kind, deployment.embedding.state)
    except EmbedderUnavailable as error:
        raise CommandError(str(error)) from None


def _rated(
    deployment: Deployment, embedder: Embedder, policy: Policy, features: Features, folder: Path
) -> tuple[Difficulty, Features]:
    """Return what the policy's classifier says of a request, and its features in its conversation.

    A classifier that the policy pins is in `folder`. Raises CommandError.
    """
    from gateway.cascade.router import Classifiers
    from gateway.parts.agents.turns import rated_in_conversation
    from routing.difficulty.model import ArtefactError, DifficultyModel, shipped_artefact

    try:
        artefact = deployment.classifier or shipped_artefact(deployment.embedding.kind)
        classifiers = Classifiers(DifficultyModel.load(artefact, embedder), embedder)
        if policy.route.pinned is not None:
            classifiers.load(folder / policy.route.pinned.folder, policy.route.pinned.version)
        return rated_in_conversation(policy, classifiers.of(policy), embedder, features)
    except (ArtefactError, ValueError) as error:
        raise CommandError(f"the classifier cannot be asked: {error}") from None


def _cache(
    planner: Planner,
    policy: Policy,
    body: Mapping[str, Any],
    features: Features,
    options: RequestOptions,
    pinned: str | None,
) -> list[PathLine]:
    model = policy.surface if pinned is None else None
    plan = planner.plan(
        body, policy, _TENANT, features, model=model, read=options.cache.read, write=options.cache.write
    )
    return cache_lines(policy, plan, body)
