"""From a folder of YAML files, one per surface, to the set of policies a gateway answers by.

What `_defaults.yaml` holds counts for every file of its folder, unless that says otherwise: maps are merged, lists and
single values replaced, and so is `route.start`, whose order has a meaning. `*.test.yaml` are tests of policies.

A set is loaded whole or not at all. A policy's version is the hash of what it says, defaults included: comments,
layout, the description, sections that rule no answer and the order of keys do not change it, except the order of
`route.start`, which has a meaning.

Here policies and deployment meet, at the start and at every reload: which of a policy's tiers are configured (its
ladder), and what its stored answers belong to, is worked out once, and no request has to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from policies import ADDED
from policies.errors import ConfigError, Finding, InvalidContent, KeyPath, Problem, UnreadableFile, did_you_mean
from policies.expression import Expression
from policies.misfits import misfits, names, patterns, problems_together
from policies.model import ClauseLines, CrossEncoderKind, DeployedTier, Policy, Rules
from policies.sections import all_added, policy_model, rules_model
from policies.validation import Section, check_part, validate
from policies.wildcards import matches
from policies.yaml_source import MAX_BYTES, Document, read_yaml

DEFAULT_SURFACE = "chat"
AUTO = "auto"
DEFAULTS = "_defaults.yaml"
"""Name of the file with what all policies of its folder have in common."""
SHIPPED = Path(__file__).parent
"""The folder with the policies that come with Tierline."""

CLASSIFIER_SHEET = "difficulty.json"
"""Data sheet of a classifier, in its folder."""

_UNVERSIONED = frozenset({"description"})
"""The keys of a policy file that rule nothing, beside those that are added."""
_LATER: Final[Mapping[str, object]] = {
    "optional_tiers": (),
    "prompt_cache": "auto",
    "tier_fields": {},
}
"""Keys that came later, with their defaults: left out of the version where they have those, so that it stays."""
_LATER_WITHIN: Final[Mapping[str, object]] = {"set": {}, "force": {}, "instruction": "", "doubt_ttl": 300.0}
"""The same of keys within sections."""
_TAKEN_OUT: Final = (False, "at_once")
"""The values of two keys that were taken out and are in every version, so that it stays."""


class FileLook(NamedTuple):
    """What a look at one policy file saw: two equal looks mean that nobody is writing it."""

    content: bytes
    """Its hash; b"" where it cannot be read."""
    mtime_ns: int
    size: int
    inode: int


Snapshot = Mapping[str, FileLook]
"""A look at every policy file, by its name."""


Sticky = Literal["conversation", "key", "tenant"]
"""What stays with one version of a policy while another is tried."""
_MOST_MATCHED: Final = 1024
CLAUDE: Final = "claude-"
"""Before a surface's name, it makes another name of it: Claude Code lists only models whose ids say who made them."""


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
    by_name: Mapping[str, Policy] = field(repr=False)
    """By surface and by alias; see `resolve`."""
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
        policy = self.by_name.get(model)
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


def _sheet_states(folder: Path, version: str) -> None:
    """Raise ValueError unless the artefact's data sheet states this hash."""
    try:
        stated = json.loads((folder / CLASSIFIER_SHEET).read_bytes())["sha256"]
    except OSError:
        raise ValueError(
            f"there is no classifier in {folder}; `tierline fit learn --out {folder.parent}` makes one"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{folder / CLASSIFIER_SHEET} is not the data sheet of a classifier") from None
    if not str(stated).startswith(version):
        raise ValueError(f"{folder} holds the classifier {str(stated)[:12]}, not {version[:12]}")


@dataclass(frozen=True, slots=True)
class PolicySource:
    """The folder of policies, and all that policies must fit: what a reload needs."""

    directory: Path
    tiers: tuple[DeployedTier, ...]
    default_surface: str = DEFAULT_SURFACE
    teamless: tuple[str, ...] = ()
    """The tenants that have no team: where there is one, no surface may share its cache within teams."""
    backends: Mapping[str, str] = field(default_factory=dict)
    """The backends that a policy may name, each with its model."""
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What else a policy may name, by the section of the config that has them, such as `services`."""
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
        files = policy_files(self.directory)
        if not files:
            reason = "no policy files (*.yaml) here" if self.directory.is_dir() else "no such folder"
            raise UnreadableFile([Problem(self.directory, 0, "", reason)])
        defaults, defaults_look = read_defaults(self.directory), seen.get(DEFAULTS)
        read: list[tuple[Policy, Document]] = []
        problems: list[Problem] = []
        for file in files:
            known, look = self._read.get(file.name), seen.get(file.name)
            says = (look and look.content, defaults_look and defaults_look.content)
            if known is None or known.says != says:
                try:
                    known = _Read(says, *policy_with(defaults, file, self.tiers))
                except ConfigError as error:
                    problems += error.problems
                    continue
                if look is not None and look.content:
                    self._read[file.name] = known
            read.append((known.policy, known.document))
        return self._joined(read, problems)

    def made(self, content: Mapping[str, Any], name: str) -> tuple[Policy, Document]:
        """Return the policy with the `content` of a file, as this deployment runs it. Raises ConfigError.

        `name` stands for the file in the problems.
        """
        document = Document(Path(name), dict(content), {})
        rules = _rules_in(document)
        return _made(rules, document, _deployed(rules, self.tiers)), document

    def joined(self, policies: Sequence[tuple[Policy, Document]]) -> PolicySet:
        """Return the set of these policies, which may come from elsewhere than the folder. Raises ConfigError."""
        return self._joined(policies, [])

    def _joined(self, read: Sequence[tuple[Policy, Document]], problems: list[Problem]) -> PolicySet:
        problems_found = [*problems, *problems_together(read), *self.misfits(read), *self._unusable_classifiers(read)]
        problems = list(dict.fromkeys(problems_found))  # a mistake in the defaults is one of every policy
        by_name, by_header = names(read, [])
        if not problems and self.default_surface not in {policy.surface for policy, _ in read}:
            near = did_you_mean(self.default_surface, by_name)
            message = f"no policy for the default surface {self.default_surface!r}{near}"
            problems.append(Problem(self.directory, 0, "", message))
        if problems:
            raise InvalidContent(problems)
        by_surface = {policy.surface: policy for policy, _ in sorted(read, key=lambda pair: pair[0].surface)}
        default = by_surface[self.default_surface]
        return PolicySet(
            MappingProxyType(by_surface),
            default,
            MappingProxyType({**{CLAUDE + name: one for name, one in by_surface.items()}, **by_name, AUTO: default}),
            MappingProxyType({**by_surface, **by_header, AUTO: default}),
            patterns([policy for policy, _ in read]),
        )

    def misfits(self, policies: Sequence[tuple[Policy, Document]]) -> list[Problem]:
        """Return what of these policies does not fit the deployment."""
        return list(misfits(policies, self))

    def _unusable_classifiers(self, read: Sequence[tuple[Policy, Document]]) -> Iterator[Problem]:
        """Yield a problem for each pinned classifier that is missing, or is another than the policy says."""
        for policy, document in read:
            if (pinned := policy.route.pinned) is not None:
                try:
                    self.check_classifier(self.directory / pinned.folder, pinned.version)
                except ValueError as error:
                    yield document.locate(Finding(("route", "classifier"), str(error), "T715"))

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
    """Return the policy in `file` on top of these defaults, and the document of both. Raises ConfigError."""
    document = read_yaml(file)
    if defaults is not None:
        document = _merged(document, defaults)
    rules = _rules_in(document)
    deployed = {} if tiers is None else _deployed(rules, tiers)
    return _made(rules, document, deployed), document


def read_defaults(directory: Path) -> Document | None:
    """What all policies of a folder have in common; None if it has no such file. Raises ConfigError."""
    file = directory / DEFAULTS
    if not file.exists():
        return None
    document = read_yaml(file)
    check_part(rules_model(), _as_read(document), _refuse_in_defaults)
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
    return _made(_rules_in(document), document, deployed)


def _rules_in(document: Document) -> Rules:
    return validate(rules_model(), _as_read(document), _refuse_version)


def _as_read(document: Document) -> Document:
    """Return the document without what was taken out of policies."""
    reading = ADDED.reading()
    return document if reading is None else replace(document, value=reading.without_taken_out(document.value))


def _made(rules: Rules, document: Document, deployed: Mapping[str, Any]) -> Policy:
    version = version_of(rules, document.value)
    made = {**dict(rules), "version": version, "content": document.value, "lines": ClauseLines(document.places)}
    made["labelled"] = any(part.labels(rules) for part in all_added())
    if rules.optional_tiers and deployed:
        made |= _without_missing(rules, rules.tiers_with({*deployed["ladder"], *deployed["unconfigured"]}))
    return policy_model().model_validate({**made, **deployed})


def _without_missing(rules: Rules, tiers: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a policy that name tiers, for these of its tiers alone."""
    start = {name: rule for name, rule in rules.route.start.items() if name in tiers}
    fields = {name: fields for name, fields in rules.tier_fields.items() if name in tiers}
    optional = tuple(name for name in rules.optional_tiers if name in tiers)
    route = rules.route.model_copy(update={"start": start})
    added = (part.without_tiers(rules, tiers) for part in all_added())
    return {
        **{name: section for sections in added for name, section in sections.items()},
        "tiers": tuple(tiers),
        "optional_tiers": optional,
        "route": route,
        "tier_fields": fields,
    }


def _deployed(rules: Rules, tiers: Sequence[DeployedTier]) -> dict[str, Any]:
    """The fields of a policy that are the deployment's doing. A tier that it does not have is left out."""
    by_name = {tier.name: tier for tier in tiers}
    own = [by_name[name] for name in rules.tiers if name in by_name]
    ladder = [tier for tier in own if not tier.unconfigured]
    makers = [[tier.name, *tier.models, *tier.fields] for tier in ladder]
    made_by = [makers, _canonical(rules.output), _canonical(rules.cache)]
    for part in all_added():
        values = (getattr(rules, name) for name in part.model_fields if name in part.of_answers)
        made_by += [_canonical(value) for value in values if value is not None]
    if rules.tier_fields:
        made_by.append({name: _canonical(fields) for name, fields in rules.tier_fields.items()})
    return {
        "ladder": tuple(tier.name for tier in ladder),
        "unconfigured": {tier.name: tier for tier in own if tier.unconfigured},
        "models": tuple(" or ".join(tier.models) for tier in ladder),
        "answers_version": _hashed(made_by),
    }


def version_of(policy: Rules, content: Mapping[str, Any]) -> str:
    """Return the version of a policy: the SHA-256, in hex, of all its rules that change what requests get."""
    unversioned = _UNVERSIONED.union(*(part.unversioned for part in all_added()))
    added = {name: field for part in all_added() for name, field in part.model_fields.items()}
    later = {**_LATER, **{name: field.get_default() for name, field in added.items()}}
    ruling = {name: getattr(policy, name) for name in rules_model().model_fields if name not in unversioned}
    canonical = {name: _canonical(value) for name, value in ruling.items() if value != later.get(name)}
    canonical["escalate"]["speculate"]["during_lookup"], canonical["cache"]["replay"] = _TAKEN_OUT
    if (reading := ADDED.reading()) is not None:
        reading.add_taken_out(canonical, content)
    return _hashed(canonical)


def _hashed(canonical: Any) -> str:
    content = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Section):
        return {
            name: part if name in _LATER_WITHIN else _canonical(part)  # a field's value is JSON already
            for name, part in value
            if name not in _LATER_WITHIN or part != _LATER_WITHIN[name]
        }
    if isinstance(value, Mapping):
        return [[key, _canonical(part)] for key, part in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_canonical(part) for part in value]
    return value.source if isinstance(value, Expression) else value


def policy_files(directory: Path) -> list[Path]:
    """The policy files of a folder, sorted; none if there is no such folder.

    A shipped one with a section that nobody adds here belongs to what is not installed, and is left out.
    """
    try:
        files = sorted(file for file in directory.iterdir() if _is_policy(file.name))
    except OSError:
        return []
    if directory == SHIPPED and (lacking := ADDED.lacking()):
        needs = re.compile(rf"^(?:{'|'.join(lacking)}):", re.MULTILINE)
        files = [file for file in files if not needs.search(file.read_text(encoding="utf-8"))]
    return files


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
    if path == ("version",):
        return "set by Tierline from the file's content; remove it"
    return ADDED.lacking().get(str(path[0])) if len(path) == 1 else None
