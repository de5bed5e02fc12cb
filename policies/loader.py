"""From a folder of YAML files, one per surface, to the set of policies a gateway answers by.

What `_defaults.yaml` holds counts for every file of its folder, unless that says otherwise: maps are merged, lists and
single values replaced, and so is `route.start`, whose order has a meaning. `*.test.yaml` are tests of policies.

A set is loaded whole or not at all. A policy's version is the hash of what it says, defaults included: comments,
layout, the description, `rollout`, `learn` and the order of keys do not change it, except the order of `route.start`,
which has a meaning.

Here policies and deployment meet, at the start and at every reload: which of a policy's tiers are configured (its
ladder), and what its stored answers belong to, is worked out once, and no request has to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from policies.endpoints import Endpoints
from policies.errors import ConfigError, Edit, Finding, InvalidContent, KeyPath, Problem, UnreadableFile, did_you_mean
from policies.expression import Expression
from policies.model import SURFACE_HEADER, ClauseLines, DeployedTier, Policy, Rules
from policies.rollout import Sticky
from policies.validation import Section, check_part, validate
from policies.wildcards import STAR, matches, overlap, weight
from policies.yaml_source import MAX_BYTES, Document, read_yaml

DEFAULT_SURFACE = "chat"
AUTO = "auto"
DEFAULTS = "_defaults.yaml"
"""Name of the file with what all policies of its folder have in common."""
SHIPPED = Path(__file__).parent
"""The folder with the policies that come with Tierline."""

CLASSIFIER_SHEET = "difficulty.json"
"""Data sheet of a classifier, in its folder."""

_RULING = tuple(name for name in Rules.model_fields if name not in {"description", "rollout", "learn"})
"""The keys of a policy file that rule anything."""
_LATER = {"endpoints": Endpoints()}
"""Keys that came later, with their defaults: left out of the version where they have those, so that it stays."""


class FileLook(NamedTuple):
    """How one policy file looks: it rests if two looks are equal, and says the same if their contents are."""

    content: bytes
    """Its hash; b"" where it cannot be read."""
    mtime_ns: int
    size: int
    inode: int


Snapshot = Mapping[str, FileLook]
"""A look at every policy file, by its name."""


_MOST_MATCHED: Final = 1024


@dataclass(frozen=True, slots=True)
class RollingPolicy:
    """A candidate that is tried beside the policy in force of its surface."""

    policy: Policy
    share: float
    """The part of the sticky units that get it, 0..1."""
    mode: Literal["evaluate", "shadow", "canary"]
    """Whether it is only decided with, called off the path, or serves its share."""
    sticky: Sticky = "conversation"
    """What stays with one version of the policy."""
    salt: str = ""
    """Distinguishes the units that this candidate gets from those that another would: its whole version."""


@dataclass(frozen=True, slots=True)
class PolicySet:
    """The policies in force, at one moment. Never changed: a reload makes another."""

    by_surface: Mapping[str, Policy]
    default: Policy
    _by_name: Mapping[str, Policy] = field(repr=False)
    _by_header: Mapping[str, Policy] = field(repr=False)
    _patterns: Sequence[tuple[str, Policy]] = field(default=(), repr=False)
    """The wildcards of `match.models` with their policies, the most specific first."""
    rolling: Mapping[str, RollingPolicy] = field(default_factory=dict)
    """The candidates, by surface; empty where policies come from files."""
    _matched: dict[str, Policy | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Names that were held against the wildcards lately."""

    def resolve(self, model: str, surface: str | None = None) -> Policy | None:
        """The policy for a request: by the `x-tierline-surface` header if it was sent, else by `model`.

        Both may be a surface's name or `auto`; `model` may be an alias or match a wildcard, the header a value of
        `match.header`.
        None if nothing has that name; a wrong header is never made up for by the model. `tier:NAME` is the caller's.
        """
        if surface is not None:
            return self._by_header.get(surface)
        policy = self._by_name.get(model)
        return policy if policy is not None or not self._patterns else self._by_pattern(model)

    def _by_pattern(self, model: str) -> Policy | None:
        """Return the policy of the most specific wildcard that matches a name; None if none does."""
        if model in self._matched:
            return self._matched[model]
        if len(self._matched) >= _MOST_MATCHED:
            self._matched.clear()
        found = next((policy for pattern, policy in self._patterns if matches(pattern, model)), None)
        self._matched[model] = found
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The surfaces, sorted."""
        return tuple(self.by_surface)


CheckClassifier = Callable[[Path, str], None]
"""Check the artefact in a folder, of which the hash begins so. Raises ValueError, whose message ends a sentence."""

CrossEncoderKind = Literal["none", "unmeasured", "measured"]
"""A deployment's cross-encoder: none, one without a data sheet, or one whose data sheet states its threshold."""


def _sheet_states(folder: Path, version: str) -> None:
    """Raise ValueError unless the artefact's data sheet states this hash."""
    try:
        stated = json.loads((folder / CLASSIFIER_SHEET).read_bytes())["sha256"]
    except OSError:
        raise ValueError(
            f"there is no classifier in {folder}; `tierline learn --out {folder.parent}` makes one"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{folder / CLASSIFIER_SHEET} is not the data sheet of a classifier") from None
    if not str(stated).startswith(version):
        raise ValueError(f"{folder} holds the classifier {str(stated)[:12]}, not {version[:12]}")


@dataclass(frozen=True, slots=True)
class PolicySource:
    """Where policies come from, and what they must fit: all that a reload needs."""

    directory: Path
    tiers: tuple[DeployedTier, ...]
    default_surface: str = DEFAULT_SURFACE
    teamless: tuple[str, ...] = ()
    """The tenants that have no team: where there is one, no surface may share its cache within teams."""
    backends: Mapping[str, str] = field(default_factory=dict)
    """The backends that a policy may name, each with its model."""
    services: tuple[str, ...] = ()
    """The services that a policy may name under `endpoints`."""
    cross_encoder: CrossEncoderKind = "none"
    """Which cross-encoder the deployment has."""
    check_classifier: CheckClassifier = _sheet_states
    """How the artefact that a policy pins (`route.classifier`) is checked; a worker also loads it."""
    _read: dict[str, _Read] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was last read, by file name: a file that looks the same since then is not read again, unless the folder's
    defaults have changed."""

    def load(self, seen: Snapshot | None = None) -> PolicySet:
        """The set as the files state it now; raises ConfigError. Not for two threads at once.

        `seen` is a snapshot made just before, if there is one.
        """
        seen = self.snapshot() if seen is None else seen
        for name in self._read.keys() - seen.keys():
            del self._read[name]
        defaults_look = seen.get(DEFAULTS)

        def reader(file: Path, tiers: Sequence[DeployedTier], defaults: Document | None) -> tuple[Policy, Document]:
            known, look = self._read.get(file.name), seen.get(file.name)
            says = (look and look.content, defaults_look and defaults_look.content)
            if known is not None and known.says == says:
                return known.policy, known.document
            policy, document = policy_with(defaults, file, tiers)
            if look is not None and look.content:
                self._read[file.name] = _Read(says, policy, document)
            return policy, document

        return load_policies(
            self.directory,
            self.tiers,
            self.default_surface,
            self.teamless,
            backends=self.backends,
            services=self.services,
            cross_encoder=self.cross_encoder,
            check_classifier=self.check_classifier,
            reader=reader,
        )

    def made(self, content: Mapping[str, Any], name: str) -> tuple[Policy, Document]:
        """Return the policy with the `content` of a file, as this deployment runs it. Raises ConfigError.

        `name` stands for the file in the problems.
        """
        document = Document(Path(name), dict(content), {})
        rules = validate(Rules, document, _refuse_version)
        return _made(rules, document, _deployed(rules, self.tiers)), document

    def joined(self, policies: Sequence[tuple[Policy, Document]]) -> PolicySet:
        """Return the set of these policies, which may come from elsewhere than the folder. Raises ConfigError."""
        return _joined(
            policies, [], self.directory, self.tiers, self.default_surface, self.teamless, self.backends,
            self.services, self.cross_encoder, self.check_classifier,
        )  # fmt: skip

    def misfits(self, policies: Sequence[tuple[Policy, Document]]) -> list[Problem]:
        """Return what of these policies does not fit the deployment."""
        return list(_misfits(policies, self.tiers, self.teamless, self.backends, self.services, self.cross_encoder))

    def snapshot(self) -> Snapshot:
        """Look at every policy file and the defaults: one listing, and for each file a stat and a hash of its content.

        Time and size alone miss a file edited in place within the clock's step, or whose time was set back.
        """
        found = {}
        with contextlib.suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                if not _is_policy(name := entry.name) and name != DEFAULTS:
                    continue
                try:
                    stat = entry.stat()
                except OSError:  # renamed since it was listed: it shows in the next snapshot
                    continue
                found[name] = FileLook(_content_hash(entry.path, stat), stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return found


@dataclass(frozen=True, slots=True)
class _Read:
    """One file that has been read, and the hashes of its content and of the defaults' then."""

    says: tuple[bytes | None, bytes | None]
    policy: Policy
    document: Document


def read_policy(file: Path, tiers: Sequence[DeployedTier] | None = None) -> tuple[Policy, Document]:
    """The policy in `file` with the defaults beside it, and the document of both; raises ConfigError.

    `tiers` are the deployment's; without them every tier counts as configured.
    """
    return policy_with(read_defaults(file.parent), file, tiers)


def policy_with(
    defaults: Document | None, file: Path, tiers: Sequence[DeployedTier] | None = None
) -> tuple[Policy, Document]:
    """The policy in `file` with these defaults, and the document of both; raises ConfigError."""
    document = read_yaml(file)
    if defaults is not None:
        document = _merged(document, defaults)
    rules = validate(Rules, document, _refuse_version)
    deployed = {} if tiers is None else _deployed(rules, tiers)
    return _made(rules, document, deployed), document


def read_defaults(directory: Path) -> Document | None:
    """What all policies of a folder have in common; None if it has no such file. Raises ConfigError."""
    file = directory / DEFAULTS
    if not file.exists():
        return None
    document = read_yaml(file)
    check_part(Rules, document, _refuse_in_defaults)
    return document


def _refuse_in_defaults(path: KeyPath, value: Any) -> str | None:
    if path in (("surface",), ("match",)):
        return f"is of one surface, and {DEFAULTS} counts for all; write it in the surface's own file"
    return _refuse_version(path, value)


def _merged(document: Document, defaults: Document) -> Document:
    """The document with what it lacks of the defaults, each value with its own place."""
    places = dict(document.places)

    def merge(own: dict[str, Any], common: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        merged = dict(own)
        for key, value in common.items():
            here = (*path, key)
            if key not in own:
                merged[key] = value
                places.update((at, place) for at, place in defaults.places.items() if at[: len(here)] == here)
            elif isinstance(value, dict) and isinstance(own[key], dict) and here != ("route", "start"):
                merged[key] = merge(own[key], value, here)
        return merged

    return Document(document.file, merge(document.value, defaults.value, ()), places)


def made_policy(content: Mapping[str, Any], source: Path, deployed: Mapping[str, Any]) -> Policy:
    """Return the policy with a file's `content`; raises ConfigError, whose problems name `source`.

    `deployed` has the fields of the policy that are the deployment's doing.
    """
    document = Document(source, dict(content), {})
    return _made(validate(Rules, document, _refuse_version), document, deployed)


def _made(rules: Rules, document: Document, deployed: Mapping[str, Any]) -> Policy:
    version = version_of(rules)
    made = {**dict(rules), "version": version, "content": document.value, "lines": ClauseLines(document.places)}
    return Policy.model_validate({**made, **deployed})


def _deployed(rules: Rules, tiers: Sequence[DeployedTier]) -> dict[str, Any]:
    """The fields of a policy that are the deployment's doing. A tier that it does not have is left out."""
    by_name = {tier.name: tier for tier in tiers}
    own = [by_name[name] for name in rules.tiers if name in by_name]
    ladder = [tier for tier in own if not tier.unconfigured]
    makers = [[tier.name, *tier.models] for tier in ladder]
    return {
        "ladder": tuple(tier.name for tier in ladder),
        "unconfigured": {tier.name: tier for tier in own if tier.unconfigured},
        "models": tuple(" or ".join(tier.models) for tier in ladder),
        "answers_version": _hashed([makers, _canonical(rules.output), _canonical(rules.cache)]),
    }


def load_policies(
    directory: Path,
    tiers: Sequence[DeployedTier],
    default_surface: str = DEFAULT_SURFACE,
    teamless: Sequence[str] = (),
    *,
    backends: Mapping[str, str] = MappingProxyType({}),
    services: Collection[str] = (),
    cross_encoder: CrossEncoderKind = "none",
    check_classifier: CheckClassifier | None = None,
    reader: Callable[[Path, Sequence[DeployedTier], Document | None], tuple[Policy, Document]] | None = None,
) -> PolicySet:
    """The policies of every YAML file in `directory`; raises ConfigError with the problems of all of them."""
    files = policy_files(directory)
    if not files:
        reason = "no policy files (*.yaml) here" if directory.is_dir() else "no such folder"
        raise UnreadableFile([Problem(directory, 0, "", reason)])
    defaults = read_defaults(directory)
    read: list[tuple[Policy, Document]] = []
    problems: list[Problem] = []
    for file in files:
        try:
            read.append(reader(file, tiers, defaults) if reader else policy_with(defaults, file, tiers))
        except ConfigError as error:
            problems += error.problems
    return _joined(
        read, problems, directory, tiers, default_surface, teamless, backends, services, cross_encoder,
        check_classifier or _sheet_states,
    )  # fmt: skip


def _joined(
    read: Sequence[tuple[Policy, Document]],
    problems: list[Problem],
    directory: Path,
    tiers: Sequence[DeployedTier],
    default_surface: str,
    teamless: Sequence[str],
    backends: Mapping[str, str],
    services: Collection[str],
    cross_encoder: CrossEncoderKind,
    check_classifier: CheckClassifier,
) -> PolicySet:
    """Return the set of policies that fit the deployment and each other. Raises ConfigError with all `problems`."""
    problems = [
        *problems,
        *problems_together(read),
        *_misfits(read, tiers, teamless, backends, services, cross_encoder),
        *_unusable_classifiers(read, directory, check_classifier),
    ]
    problems = list(dict.fromkeys(problems))  # a mistake in the defaults is one of every policy
    by_name, by_header = _names(read, [])
    if not problems and default_surface not in {policy.surface for policy, _ in read}:
        message = f"no policy for the default surface {default_surface!r}{did_you_mean(default_surface, by_name)}"
        problems.append(Problem(directory, 0, "", message))
    if problems:
        raise InvalidContent(problems)
    by_surface = {policy.surface: policy for policy, _ in sorted(read, key=lambda pair: pair[0].surface)}
    default = by_surface[default_surface]
    return PolicySet(
        MappingProxyType(by_surface),
        default,
        MappingProxyType({**by_name, AUTO: default}),
        MappingProxyType({**by_surface, **by_header, AUTO: default}),
        _patterns([policy for policy, _ in read]),
    )


def _misfits(
    read: Sequence[tuple[Policy, Document]],
    tiers: Sequence[DeployedTier],
    teamless: Sequence[str],
    backends: Mapping[str, str],
    services: Collection[str],
    cross_encoder: CrossEncoderKind,
) -> Iterator[Problem]:
    """What of the policies does not fit the deployment."""
    yield from _unknown_tiers(read, [tier.name for tier in tiers])
    yield from _too_wide(read, teamless)
    yield from _out_of_reach(read, backends, cross_encoder)
    yield from _partial_judges(read, tiers, backends)
    yield from _unknown_services(read, services)


def problems_together(read: Sequence[tuple[Policy, Document]]) -> list[Problem]:
    """The names that more than one of these policies stands for."""
    problems: list[Problem] = []
    _names(read, problems)
    return problems


def version_of(policy: Rules) -> str:
    """SHA-256, in hex, of everything the policy rules."""
    ruling = {name: getattr(policy, name) for name in _RULING}
    return _hashed({name: _canonical(value) for name, value in ruling.items() if value != _LATER.get(name)})


def _hashed(canonical: Any) -> str:
    content = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Section):
        return {name: _canonical(part) for name, part in value}
    if isinstance(value, Mapping):
        return [[key, _canonical(part)] for key, part in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_canonical(part) for part in value]
    return value.source if isinstance(value, Expression) else value


def policy_files(directory: Path) -> list[Path]:
    """The policy files of a folder, sorted; none if there is no such folder."""
    try:
        return sorted(file for file in directory.iterdir() if _is_policy(file.name))
    except OSError:
        return []


def _content_hash(file: str, stat: os.stat_result) -> bytes:
    """Return the hash of a file's content; b"" if it is no regular file, is larger than is read, or cannot be read."""
    if not S_ISREG(stat.st_mode) or stat.st_size > MAX_BYTES:
        return b""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return hashlib.blake2b(os.read(descriptor, MAX_BYTES + 1), digest_size=16).digest()
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _is_policy(name: str) -> bool:
    # Editors keep their half-written and backup copies in hidden files.
    if name[0] == "." or name == DEFAULTS:
        return False
    return name.endswith((".yaml", ".yml")) and not name.endswith((".test.yaml", ".test.yml"))


def _refuse_version(path: KeyPath, _value: Any) -> str | None:
    return "set by Tierline from the file's content; remove it" if path == ("version",) else None


def _unknown_tiers(read: Sequence[tuple[Policy, Document]], known: Collection[str]) -> Iterator[Problem]:
    for policy, document in read:
        for i, tier in enumerate(policy.tiers):
            if tier not in known:
                have = did_you_mean(tier, known) or f"; it has {', '.join(known)}"
                message = f"the deployment has no tier {tier!r}{have}"
                near = next((name for name in get_close_matches(tier, known, n=1) if name not in policy.tiers), None)
                edits = (Edit(("tiers", i), near), Edit(("route", "start", tier), rename=near)) if near else ()
                yield document.locate(Finding(("tiers", i), message, "T701", "", edits))


def _too_wide(read: Sequence[tuple[Policy, Document]], teamless: Sequence[str]) -> Iterator[Problem]:
    """A cache may be as wide as what a key may see, and no wider."""
    for policy, document in read:
        if policy.cache.scope == "team" and teamless:
            who = f"tenant {teamless[0]!r} has" if len(teamless) == 1 else f"tenants {', '.join(teamless)} have"
            at = ("cache", "scope")
            message = f"{who} no team to share a cache with"
            mend = "name one under tenants, or say scope: tenant"
            yield document.locate(Finding(at, message, "T704", mend, (Edit(at, "tenant"),)))


def _out_of_reach(
    read: Sequence[tuple[Policy, Document]], backends: Collection[str], cross_encoder: CrossEncoderKind
) -> Iterator[Problem]:
    """Models that a semantic cache needs, and that the deployment does not have as it needs them."""
    for policy, document in read:
        semantic, at = policy.cache.semantic, ("cache", "semantic")
        if semantic is None:
            continue
        if cross_encoder == "none" and "cross_encoder" in semantic.model_fields_set:
            here: KeyPath = (*at, "cross_encoder")
            mend = "say default or the path of one there, or leave this out"
            yield document.locate(Finding(here, "the config says cross_encoder: none", "T705", mend, (Edit(here),)))
        if cross_encoder == "unmeasured" and semantic.verify == "default" and semantic.cross_encoder.min_score is None:
            message = "the config's cross-encoder has no sheet.json that states its threshold"
            mend = "set cross_encoder: {min_score: ...} here (`tools.measure_cache` measures it), or verify: fast"
            edits = (Edit((*at, "verify"), "fast"),)
            yield document.locate(Finding((*at, "cross_encoder"), message, "T705", mend, edits))
        judge = semantic.audit_judge
        if judge is not None and judge.backend not in backends:
            here = (*at, "audit_judge", "backend")
            near = get_close_matches(judge.backend, backends, n=1)
            edits = (Edit(here, near[0]) if near else Edit(here[:-1]),)
            message = _no_backend(judge.backend, backends)
            yield document.locate(Finding(here, message, "T702", "", edits))


def _partial_judges(
    read: Sequence[tuple[Policy, Document]], tiers: Sequence[DeployedTier], backends: Mapping[str, str]
) -> Iterator[Problem]:
    """Judges of `learn` that do not exist, or whose model would judge its own answers."""
    models = {tier.name: tier.models for tier in tiers}
    for policy, document in read:
        if policy.learn is None:
            continue
        judge, at = policy.learn.judge, ("learn", "judge")
        if judge not in backends:
            near = get_close_matches(judge, backends, n=1)
            edits = (Edit(at, near[0]) if near else Edit(("learn",)),)
            yield document.locate(Finding(at, _no_backend(judge, backends), "T702", "", edits))
            continue
        own = [tier for tier in policy.tiers if backends[judge] in models.get(tier, ())]
        if own:
            yield document.locate(
                Finding(
                    at,
                    f"{judge} is {backends[judge]}, which answers here as {own[0]!r}: models prefer their own answers, "
                    "so it cannot judge them",
                    "T714",
                    "name a backend of another model, in a tier that this surface does not use",
                    (Edit(("learn",)),),
                )
            )


def _unknown_services(read: Sequence[tuple[Policy, Document]], services: Collection[str]) -> Iterator[Problem]:
    """Services of `endpoints` that the deployment does not have."""
    for policy, document in read:
        for at, name in policy.endpoints.services():
            if name in services:
                continue
            have = did_you_mean(name, services) or (f"; it has {', '.join(services)}" if services else "")
            near = get_close_matches(name, services, n=1)
            message = f"the deployment has no service {name!r}{have}"
            mend = "" if near or services else f"write services: {{{name}: {{base_url: ...}}}} in the config"
            edits = (Edit(at, near[0]) if near else Edit(at),)
            yield document.locate(Finding(at, message, "T702", mend, edits))


def _unusable_classifiers(
    read: Sequence[tuple[Policy, Document]], directory: Path, check: CheckClassifier
) -> Iterator[Problem]:
    """Pinned classifiers that are missing, or are others than the policy says."""
    for policy, document in read:
        if (pinned := policy.route.pinned) is not None:
            try:
                check(directory / pinned.folder, pinned.version)
            except ValueError as error:
                yield document.locate(Finding(("route", "classifier"), str(error), "T715"))


def _no_backend(name: str, backends: Collection[str]) -> str:
    have = did_you_mean(name, backends) or f"; it has {', '.join(backends)}"
    return f"the deployment has no backend {name!r}{have}"


def _patterns(policies: Sequence[Policy]) -> list[tuple[str, Policy]]:
    """Return the wildcards with their policies, the most specific first."""
    found = [(name, policy) for policy in policies for name in policy.match.models if STAR in name]
    return sorted(found, key=lambda pair: weight(pair[0]), reverse=True)


def _names(
    read: Sequence[tuple[Policy, Document]], problems: list[Problem]
) -> tuple[dict[str, Policy], dict[str, Policy]]:
    """Policies by what `model` may say and by what the header may say; a name taken twice is a problem."""
    by_name: dict[str, Policy] = {}
    by_header: dict[str, Policy] = {}
    owner: dict[str, Document] = {}
    for policy, document in read:
        if policy.surface in by_name:
            first = owner[policy.surface].file.name
            message = (
                f"surface {policy.surface!r} is already in {first}; choose another name, or delete one of the files"
            )
            free = document.file.name.split(".")[0]
            edits = () if free in {one.surface for one, _ in read} else (Edit(("surface",), free),)
            problems.append(document.locate(Finding(("surface",), message, "T703", "", edits)))
        by_name.setdefault(policy.surface, policy)
        owner.setdefault(policy.surface, document)
    surfaces = dict(by_name)
    wild: dict[str, Policy] = {}
    for policy, document in read:
        named: list[tuple[KeyPath, str, dict[str, Policy]]] = [
            (("match", "models", i), name, by_name) for i, name in enumerate(policy.match.models)
        ]
        named += [(("match", "header", SURFACE_HEADER), name, by_header) for name in policy.match.header.values()]
        for path, name, table in named:
            other = surfaces.get(name) or table.get(name)
            if other is not None and other is not policy:
                message = f"{name!r} already stands for the surface {other.surface!r}"
                problems.append(document.locate(Finding(path, message, "T703", "leave it out here", (Edit(path),))))
            table.setdefault(name, policy)
            if other is None and table is by_name and STAR in name:
                rival = next((at for at in wild if weight(at) == weight(name) and overlap(at, name)), None)
                if rival is not None and wild[rival] is not policy:
                    message = (
                        f"{name!r} and {rival!r} of the surface {wild[rival].surface!r} can match the same name, and "
                        "neither is more specific"
                    )
                    mend = "write more of the name, or leave it out here"
                    problems.append(document.locate(Finding(path, message, "T703", mend, (Edit(path),))))
                wild.setdefault(name, policy)
    return by_name, by_header
