"""Define the file format of policy tests, `chat.test.yaml` beside `chat.yaml`, and read it; the part's README has it.

A test is a case (one request in a world, with the answers that the tiers would give) or a list of whole requests.
Unknown keys are errors, with file, line and key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import orjson
from pydantic import BeforeValidator, Field, model_validator

from policies.errors import ConfigError, Finding, InvalidContent, KeyPath, Problem, did_you_mean
from policies.expression import Kind
from policies.loader import read_policy
from policies.model import Policy, Verifier
from policies.quantities import read_number, read_share
from policies.validation import Seconds, Section, Share, Whole, raise_findings, validate
from policies.yaml_source import Document, read_yaml
from routing.features import Capability, Further

SUFFIXES: Final = (".test.yaml", ".test.yml")


def listed(value: object) -> object:
    return value if isinstance(value, list | tuple) or value is None else (value,)


_ONE_OF: Final = BeforeValidator(listed)
"""A value, or a list of which one has to be right."""
Count = Annotated[Whole, Field(ge=0)]
Tier = Annotated[str, Field(min_length=1)]
ClientPath = Literal["direct", "escalated", "degraded", "fallback", "hedged", "cache-exact", "cache-semantic"]
Cache = Literal["exact", "semantic", "both", "none"]
Refused = Literal[True, False, "no_tier", "unable", "deadline", "timeout", "full", "rejected", "too_long", "failed"]
MostlyThere = Literal["n", "service_tier_flex", "service_tier_priority", "service_tier_other"]
Aspect = Literal["start", "rule", "tier", "path"]


def confidence(value: object) -> object:
    return None if value == "none" else read_share(value)


Confidence = Annotated[Share | None, BeforeValidator(confidence)]


class TierWorld(Section):
    """The state of one tier: whether it is up, its latency, its queue and what it can do.

    Without latencies its forecast is unknown, and an unknown forecast counts as in time.
    """

    up: bool = True
    failing: bool = False
    """Down only because its calls failed: it is called when nothing else can answer."""
    configured: bool = True
    ttft_p5: Seconds | None = None
    """A lower bound: no call begins that cannot answer in time. Left out, any may begin."""
    ttft_p50: Seconds | None = None
    ttft_p90: Seconds | None = None
    ttft_p95: Seconds | None = None
    ttft_p99: Seconds | None = None
    total_p50: Seconds | None = None
    """Median of the whole answer. Left out, it is that of the first token."""
    total_p90: Seconds | None = None
    total_p95: Seconds | None = None
    total_p99: Seconds | None = None
    cold: bool = False
    queue: Seconds = 0.0
    """How long a new request waits for a place; added to the latencies."""
    waiting: Count = 0
    """How many requests of the surface wait already."""
    backends: Annotated[Whole, Field(ge=1)] = 1
    context: Annotated[Whole, Field(ge=1)] | None = None
    can: frozenset[Capability | Further] = frozenset({"tools", "vision", "json"})
    lacks: frozenset[MostlyThere] = frozenset()
    """What it cannot do of what most tiers can: `n` and service tiers."""
    watch_drafts: bool = False

    @property
    def capabilities(self) -> frozenset[str]:
        """All that the tier can do."""
        return frozenset({*self.can, *(set(get_args(MostlyThere)) - self.lacks)})


class StatedCost(Section):
    """What a test states that a tier would cost a conversation until a harder turn; what is left out is not known."""

    usd: Annotated[float, Field(ge=0)] | None = None
    cold: Count | None = None
    """Tokens of the prompt that it would read cold."""
    cold_time: Seconds = 0.0
    """How much longer that takes than its usual call."""


class Given(Section):
    """The request: the values that rules may ask for, its limits, and its text where the cache reads it."""

    p_adequate: Share | Mapping[Tier, Share] | None = None
    difficulty: Share | None = None
    in_domain: bool | None = None
    kind: Kind | None = None
    quantile: Share | None = None
    effort: Share | None = None
    tokens_in: Count = 100
    turns: Count = 1
    conversation_difficulty: Share | None = None
    """How hard the turns before make it; a turn that is harder by itself stays so."""
    last_tier: Count = 0
    has_tools: bool = False
    wants_json: bool = False
    has_images: bool = False
    reasoning_above: bool = False
    needs: frozenset[Further] = frozenset()
    """Further capabilities that it needs."""
    stream: bool = False
    budget_ms: Annotated[float, BeforeValidator(read_number), Field(gt=0)] | None = None
    ttft_ms: Annotated[float, BeforeValidator(read_number), Field(gt=0)] | None = None
    min_tier: Tier | None = None
    max_tier: Tier | None = None
    holdout: bool = False
    may_hedge: bool = True
    """Whether the budget for hedging allows one now."""
    budget_share: Share | None = None
    """How much of the tightest budget is spent."""
    budget_cap: Tier | None = None
    """The tier beyond which dollars gain least, as it was measured; left out, that is not known."""
    costs: Mapping[Tier, StatedCost] = {}
    """Of a conversation that is warm at the last of these tiers."""
    text: str | None = None
    volatile: bool = False
    """Stands for a text that asks for what changes by the day."""
    temperature: Annotated[float, BeforeValidator(read_number)] | None = None
    top_p: Annotated[float, BeforeValidator(read_number)] | None = None
    n: Annotated[Whole, Field(ge=1)] | None = None
    seed: Whole | None = None
    logprobs: bool = False
    max_tokens: Count | None = None
    stop: tuple[str, ...] = ()
    room: Count | None = None
    """Upper bound of the tokens of prompt and reply; left out, tokens_in plus max_tokens or 256."""


class DraftRules(Section):
    """What one call of a tier gives: a good answer in the tier's median time, but for what is said here."""

    tier: Tier
    confidence: Confidence = 1.0
    calibrated: bool = True
    tokens: Count = 100
    finish: Literal["stop", "length", "content_filter", "tool_calls"] = "stop"
    invalid: Literal["json", "json_schema", "tool_args", "tool_calls"] | None = None
    refusal: bool = False
    repetition: bool = False
    empty: bool = False
    calls_tools: bool = False
    text: str | None = None
    fails: Literal["error", "too_long", "rejected"] | None = None
    ttft: Seconds | None = None
    total: Seconds | None = None
    by: Verifier | None = None
    """Who tells the confidence; it counts only if the policy asks for it."""


class StoredAnswerRules(Section):
    """An answer in the store: to the same request, or, with a similarity or a question, to another one."""

    age: Seconds = 0.0
    tier: Tier | None = None
    question: str | None = None
    """The other question's text: the guards compare it with `given.text`."""
    similarity: Share | None = None
    """Cosine of the two questions; left out beside a `question`, it is computed."""
    score: Share | None = None
    """What the cross-encoder gives the pair or, with `verify: fast`, the verifier."""
    verifier_score: Share = 1.0
    """What the verifier gives the pair before the cross-encoder is asked."""


class Expect(Section):
    """What the client gets. A list stands for "one of these", except at `called` and `stop`."""

    start: Annotated[tuple[Tier, ...] | None, _ONE_OF] = None
    rule: str | None = None
    tier: Annotated[tuple[Tier, ...] | None, _ONE_OF] = None
    path: Annotated[tuple[ClientPath, ...] | None, _ONE_OF] = None
    attempts: Annotated[tuple[Count, ...] | None, _ONE_OF] = None
    called: tuple[Tier, ...] | None = None
    seen_of_draft: Count | None = None
    held: Count | None = None
    why: str | None = None
    first_token_within: Seconds | None = None
    within: Seconds | None = None
    refused: Annotated[tuple[Refused, ...] | None, _ONE_OF] = None
    status: Whole | None = None
    cache: Annotated[tuple[Cache, ...] | None, _ONE_OF] = None
    cache_why: str | None = None
    stored: bool | None = None
    max_tokens: Count | None = None
    stop: tuple[str, ...] | None = None
    priority: Literal["interactive", "batch"] | None = None
    deadline: Seconds | None = None


class Expected(Expect):
    """What is expected of a test: of its case, or of its requests together."""

    not_: Expect | None = Field(default=None, alias="not")
    same: Aspect | None = None
    different: Aspect | None = None
    not_cached_together: bool | None = None
    cached_together: bool | None = None


class CaseRow(Section):
    """What one row of `each` changes of its test."""

    given: Given = Given()
    world: Mapping[Tier, TierWorld] = {}
    draft: DraftRules | None = None
    drafts: tuple[DraftRules, ...] = ()
    stored: StoredAnswerRules | None = None
    expect: Expect = Expect()


class TestRules(Section):
    """One test."""

    __test__ = False
    name: Annotated[str, Field(min_length=1)]
    surface: str | None = None
    """Test only the policy of this surface."""
    given: Given = Given()
    world: Mapping[Tier, TierWorld] = {}
    draft: DraftRules | None = None
    drafts: tuple[DraftRules, ...] = ()
    stored: StoredAnswerRules | None = None
    each: tuple[CaseRow, ...] = ()
    requests: tuple[str | Mapping[str, Any], ...] = ()
    expect: Expected = Expected()

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> TestRules:
        findings: list[Finding] = []
        expected = self.expect.model_fields_set
        if self.each and self.requests:
            findings.append(Finding(("each",), "rows go with cases, not with requests"))
        if not expected and not any(row.expect.model_fields_set for row in self.each):
            findings.append(Finding(("expect",), "says nothing, so the test can never fail"))
        together = {"same", "different", "not_cached_together", "cached_together"}
        if len(self.requests) < 2:
            message = "compares requests; list two or more under `requests`"
            findings += [Finding(("expect", name), message) for name in sorted(expected & together)]
        raise_findings(findings)
        return self


class TestFileRules(Section):
    """The contents of a test file."""

    __test__ = False
    policies: Annotated[tuple[str, ...], Field(min_length=1)]
    world: Mapping[Tier, TierWorld] = {}
    tests: Annotated[tuple[TestRules, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Tested:
    """A policy under test, and the document it came from."""

    policy: Policy
    document: Document

    def line(self, at: Sequence[str | int]) -> int:
        """Return the line of a key, or of the nearest key around it."""
        return self.document.problem(tuple(at), "").line


@dataclass(frozen=True, slots=True)
class Case:
    """One request of a test: its line, and the plain values of what is given; `row` counts from 1, 0 without rows."""

    name: str
    line: int
    given: Mapping[str, Any]
    world: Mapping[str, TierWorld]
    drafts: Mapping[str, tuple[DraftRules, ...]]
    stored: StoredAnswerRules | None
    expect: Mapping[str, Any]
    expect_not: Mapping[str, Any]
    surface: str | None = None


@dataclass(frozen=True, slots=True)
class RequestsTest:
    """Whole requests, and what is expected of each and of all together."""

    name: str
    line: int
    bodies: tuple[tuple[str, Mapping[str, Any]], ...]
    case: Case
    together: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TestFile:
    """One test file, read: the policies that it tests, and its tests in their order."""

    __test__ = False
    file: Path
    document: Document
    policies: tuple[Tested, ...]
    tests: tuple[Case | RequestsTest, ...]


def is_test_file(name: str) -> bool:
    """Return whether a file of this name holds policy tests."""
    return name.endswith(SUFFIXES) and not name.startswith(".")


def read_tests(file: Path) -> TestFile:
    """Read a test file and the policies that it names. Raises ConfigError with all problems."""
    document = read_yaml(file)
    rules = validate(TestFileRules, document, _left)
    policies = _policies(rules, document)
    problems = list(_unknown_tiers(rules, document, policies))
    tests: list[Case | RequestsTest] = []
    shared = _Shared()
    for i, test in enumerate(rules.tests):
        at = ("tests", i)
        line = document.problem((*at, "name"), "").line
        case = _case(test.name, line, rules, test, None, shared)
        if test.requests:
            bodies = _bodies(test, document, at, problems)
            together = _set(test.expect, {"same", "different", "not_cached_together", "cached_together"})
            tests.append(RequestsTest(test.name, line, bodies, case, together))
        elif test.each:
            for j, row in enumerate(test.each):
                place = document.problem((*at, "each", j), "").line
                tests.append(_case(f"{test.name} [{j + 1}]", place, rules, test, row, shared))
        else:
            tests.append(case)
    if problems:
        raise InvalidContent(problems)
    return TestFile(file, document, policies, tuple(tests))


_OF_FORALL: Final = frozenset({"never_falls", "never_rises", "as", "always", "never"})


def _left(path: KeyPath, _value: object) -> str | None:
    """Refuse the keys of searches over ranges, which test files had."""
    if len(path) == 3 and path[2] == "forall":
        return "is no longer searched; write the values that matter as rows of `each`, on both sides of each limit"
    if len(path) == 4 and path[2] == "expect" and path[3] in _OF_FORALL:
        return "went with `forall`; say in each row of `each` what it expects"
    return None


def _policies(rules: TestFileRules, document: Document) -> tuple[Tested, ...]:
    found: dict[Path, Tested] = {}
    problems: list[Problem] = []
    for i, pattern in enumerate(rules.policies):
        folder = document.file.parent
        absolute = Path(pattern)
        files = [absolute] if absolute.is_absolute() else sorted(folder.glob(pattern))
        files = [file for file in files if file.is_file() and not is_test_file(file.name) and file.name[0] not in "._"]
        if not files:
            problems.append(document.problem(("policies", i), f"no policy file matches {pattern!r} in {folder}"))
        for file in files:
            try:
                found.setdefault(file, Tested(*read_policy(file)))
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise InvalidContent(problems)
    return tuple(found.values())


def _unknown_tiers(rules: TestFileRules, document: Document, policies: Sequence[Tested]) -> list[Problem]:
    """Find tiers that none of the tested policies has: what is said of them would change nothing."""
    tiers = {tier for tested in policies for tier in tested.policy.tiers}
    surfaces = {tested.policy.surface for tested in policies}
    problems = []

    def look(at: KeyPath, tier: str | None) -> None:
        if tier is not None and tier not in tiers:
            hint = did_you_mean(tier, tiers) or f"; there are {', '.join(sorted(tiers))}"
            problems.append(document.problem(at, f"no tested policy has a tier {tier!r}{hint}"))

    for name in rules.world:
        look(("world", name), name)
    for i, test in enumerate(rules.tests):
        at = ("tests", i)
        if test.surface is not None and test.surface not in surfaces:
            hint = did_you_mean(test.surface, surfaces) or f"; they are of {', '.join(sorted(surfaces))}"
            problems.append(document.problem((*at, "surface"), f"no tested policy is of {test.surface!r}{hint}"))
        parts: list[tuple[TestRules | CaseRow, KeyPath]] = [(test, at)]
        parts += [(row, (*at, "each", j)) for j, row in enumerate(test.each)]
        for part, here in parts:
            for name in part.world:
                look((*here, "world", name), name)
            if part.draft is not None:
                look((*here, "draft", "tier"), part.draft.tier)
            for k, draft in enumerate(part.drafts):
                look((*here, "drafts", k, "tier"), draft.tier)
            for key in ("start", "tier"):
                for tier in getattr(part.expect, key) or ():
                    look((*here, "expect", key), tier)
            for key in ("min_tier", "max_tier"):
                look((*here, "given", key), getattr(part.given, key))
            for name in part.given.costs:
                look((*here, "given", "costs", name), name)
    return problems


_OF_MANY: Final = frozenset(Expected.model_fields) - frozenset(Expect.model_fields)


class _Shared:
    """The worlds, drafts and stored answers of a file: cases that say the same share one object.

    A run knows them again by it (`PolicyUnderTest`).
    """

    def __init__(self) -> None:
        self._worlds: dict[Any, Mapping[str, TierWorld]] = {}
        self._drafts: dict[Any, Mapping[str, tuple[DraftRules, ...]]] = {}
        self._stored: dict[StoredAnswerRules | None, StoredAnswerRules | None] = {}

    def world(self, world: Mapping[str, TierWorld]) -> Mapping[str, TierWorld]:
        return self._worlds.setdefault(frozenset(world.items()), world)

    def drafts(self, drafts: Mapping[str, tuple[DraftRules, ...]]) -> Mapping[str, tuple[DraftRules, ...]]:
        return self._drafts.setdefault(tuple(drafts.items()), drafts)

    def stored(self, stored: StoredAnswerRules | None) -> StoredAnswerRules | None:
        return self._stored.setdefault(stored, stored)


def _case(name: str, line: int, rules: TestFileRules, test: TestRules, row: CaseRow | None, shared: _Shared) -> Case:
    """Return a case: the file's world, then what the test says, then its row."""
    given = _set(test.given)
    world: Mapping[str, TierWorld] = rules.world
    drafts = [draft for draft in (test.draft, *test.drafts) if draft is not None]
    stored = test.stored
    expect = {key: value for key, value in _set(test.expect).items() if key not in _OF_MANY}
    world = _changed(world, test.world)
    if row is not None:
        given |= _set(row.given)
        world = _changed(world, row.world)
        if row.drafts:
            drafts = list(row.drafts)
        elif row.draft is not None:
            same = [draft for draft in drafts if draft.tier == row.draft.tier]
            others = [draft for draft in drafts if draft.tier != row.draft.tier]
            drafts = [*others, _merged(same[0] if same else None, row.draft)]
        stored = _merged(stored, row.stored) if row.stored is not None else stored
        expect |= _set(row.expect)
    by_tier: dict[str, tuple[DraftRules, ...]] = {}
    for draft in drafts:
        by_tier[draft.tier] = (*by_tier.get(draft.tier, ()), draft)
    refuted = {} if test.expect.not_ is None else _set(test.expect.not_)
    if world is not rules.world:
        world = shared.world(world)
    return Case(name, line, given, world, shared.drafts(by_tier), shared.stored(stored), expect, refuted, test.surface)


def _changed(world: Mapping[str, TierWorld], change: Mapping[str, TierWorld]) -> Mapping[str, TierWorld]:
    """Return the world with what `change` says laid over it; the same object where that is nothing."""
    return {**world, **{tier: _merged(world.get(tier), part) for tier, part in change.items()}} if change else world


S = TypeVar("S", bound=Section)


def _merged(before: S | None, change: S) -> S:
    """Return a section with the keys that `change` sets replaced."""
    return change if before is None else before.model_copy(update=_set(change))


def _set(section: Section, only: set[str] | None = None) -> dict[str, Any]:
    """Return the keys that are written, with their values, in the order of the section's fields."""
    names = section.model_fields_set if only is None else section.model_fields_set & only
    return {name: getattr(section, name) for name in type(section).model_fields if name in names}


def _bodies(
    test: TestRules, document: Document, at: KeyPath, problems: list[Problem]
) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Read the requests: chat-completions bodies in JSON files, or written out."""
    bodies: list[tuple[str, Mapping[str, Any]]] = []
    for i, request in enumerate(test.requests):
        here, name = (*at, "requests", i), f"request {i + 1}"
        body: Any = request
        if isinstance(request, str):
            name = request
            try:
                body = orjson.loads((document.file.parent / request).read_bytes())
            except (OSError, ValueError) as error:
                problems.append(document.problem(here, f"cannot be read: {error}"))
                continue
        messages = body.get("messages") if isinstance(body, Mapping) else None
        if (
            not isinstance(messages, list)
            or not messages
            or not all(isinstance(m, dict) and "role" in m for m in messages)
        ):
            problems.append(
                document.problem(here, "is no chat-completions request: it needs messages, each with a role")
            )
            continue
        bodies.append((name, body))
    return tuple(bodies)
