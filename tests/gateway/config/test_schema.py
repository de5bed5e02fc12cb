"""The deployment's config: what it may say, what it takes from the environment, and how secrets are kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.config.addresses import check_http_url
from gateway.config.backends import BackendConfig, TierConfig
from gateway.config.loader import default_config, load_deployment
from gateway.config.schema import Deployment, key_digest
from gateway.parts.access.config import AccessSections, AlertsConfig
from gateway.parts.heads.head import ConfidenceHead
from policies.errors import ConfigError, InvalidContent, UnreadableFile
from policies.validation import validate
from policies.yaml_source import Document
from tests.support.heads import mean_scorer, write_head

CANARY = "sk-canary-2718281828"

CONFIG = """\
port: 8000
tiers:
  - name: local
    backends:
      - {base_url: "http://127.0.0.1:9000/v1/", model: small}
  - name: hosted
    backends:
      - base_url: https://a.example/v1
        model: large
        key_env: HOSTED_KEY
        price: {input: 0.15, output: 0.6}
      - base_url: https://b.example/v1
        model: ${MODEL:-large}
"""

Load = Callable[..., Deployment]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def _load(text: str = CONFIG, environ: Mapping[str, str] | None = None) -> Deployment:
        file = tmp_path / "tierline.yaml"
        file.write_text(text)
        return load_deployment(file, environ or {})

    return _load


def problems_of(load: Load, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, environ)
    assert CANARY not in str(caught.value)
    return [f"{problem.line}: {problem.key}: {problem.message}" for problem in caught.value.problems]


def test_the_shipped_config_is_right_with_an_empty_environment() -> None:
    """Nothing need be set: what cannot be used is unconfigured, and names the variable that would change that."""
    deployment = load_deployment(default_config(), {})
    assert [tier.name for tier in deployment.tiers] == ["local", "hosted", "large"]
    assert [tier.unconfigured_reason for tier in deployment.tiers] == [
        "TIERLINE_LOCAL_BASE_URL is not set",
        "OPENAI_API_KEY is not set",
        "TIERLINE_LARGE_KEY is not set",
    ]
    assert deployment.wants_local_model
    assert deployment.store.url is None
    assert deployment.warnings == ()


def test_the_shipped_config_takes_what_the_environment_gives() -> None:
    """Each documented variable reaches its place."""
    deployment = load_deployment(
        default_config(),
        {
            "TIERLINE_LOCAL_BASE_URL": "http://127.0.0.1:9000/v1/",
            "TIERLINE_LOCAL_MODEL": "mine",
            "OPENAI_BASE_URL": "https://proxy.example/v1",
            "OPENAI_API_KEY": CANARY,
            "TIERLINE_HOSTED_MODEL": "huge",
            "TIERLINE_STORE_URL": "redis://127.0.0.1:6379/0",
        },
    )
    local, hosted, _ = (tier.backends[0] for tier in deployment.tiers)
    assert (local.base_url, local.model, local.configured) == ("http://127.0.0.1:9000/v1", "mine", True)
    assert (hosted.base_url, hosted.model, hosted.configured) == ("https://proxy.example/v1", "huge", True)
    assert hosted.key is not None
    assert hosted.key.get_secret_value() == CANARY
    assert deployment.store.url == "redis://127.0.0.1:6379/0"
    assert not deployment.wants_local_model


def test_the_local_models_context_is_known_without_being_written_twice(load: Load) -> None:
    """What `tierline up` says of the model it started holds for the backend at that URL, unless that says otherwise."""
    text = CONFIG.replace('"http://127.0.0.1:9000/v1/"', '"${TIERLINE_LOCAL_BASE_URL}/"')
    environ = {"TIERLINE_LOCAL_BASE_URL": "http://127.0.0.1:9000/v1", "TIERLINE_LOCAL_CONTEXT": "2048"}

    def contexts(text: str, environ: Mapping[str, str]) -> list[int | None]:
        return [backend.context for tier in load(text, environ).tiers for backend in tier.backends]

    assert contexts(text, environ) == [2048, None, None]
    assert contexts(text.replace("model: small", "model: small, context: 512"), environ) == [512, None, None]
    assert contexts(text, environ | {"TIERLINE_LOCAL_CONTEXT": ""}) == [None, None, None]
    assert contexts(CONFIG, environ | {"TIERLINE_LOCAL_BASE_URL": "http://127.0.0.1:1/v1"}) == [None, None, None]


def test_the_environment_names_the_store_where_the_config_does_not(load: Load) -> None:
    """A config without a store section is served by TIERLINE_STORE_URL; one that names a store keeps its own."""
    environ = {"TIERLINE_STORE_URL": "redis://from-the-environment:6379/0"}
    assert load(CONFIG, environ).store.url == environ["TIERLINE_STORE_URL"]
    assert load(CONFIG + "store: {url: redis://own:6379/0}\n", environ).store.url == "redis://own:6379/0"
    assert load().store.url is None


@pytest.mark.parametrize(
    "url", [f"http://u:{CANARY}@h", f"redis://u:{CANARY}@h:notaport", f"redis://u:{CANARY}@h/x?db=y"]
)
def test_a_store_that_the_environment_names_badly_is_a_problem_that_keeps_its_password(load: Load, url: str) -> None:
    """It names the variable, and never the URL."""
    (found,) = problems_of(load, CONFIG, {"TIERLINE_STORE_URL": url})
    assert found.startswith("1: store.url: TIERLINE_STORE_URL: the store's URL must be redis://")


def test_backends_are_named_after_their_tier(load: Load) -> None:
    """One backend has its tier's name, several are numbered."""
    assert [b.name for tier in load().tiers for b in tier.backends] == ["local", "hosted-1", "hosted-2"]


def test_anthropics_api_has_no_log_probabilities(load: Load) -> None:
    """So they are never asked of it, and a config that promises them is wrong."""
    claude = "tiers: [{name: local, backends: [{kind: anthropic, base_url: 'https://a.example', model: claude%s}]}]\n"
    (backend,) = load(claude % "").tiers[0].backends
    assert (backend.logprobs, backend.configured) == (False, True)
    (found,) = problems_of(load, claude % ", logprobs: true")
    assert "no log-probabilities" in found
    (found,) = problems_of(load, claude % "-opus-4-6, continuation: prefill")
    assert "claude-opus-4-6 continues no begun message" in found
    assert load(claude % "-haiku-4-5, continuation: prefill").tiers[0].backends[0].continuation == "prefill"
    (found,) = problems_of(load, claude % ", continuation: continue_final_message")
    assert "vLLM" in found


FREE = {"service_tier_flex", "service_tier_priority", "service_tier_other"}


@pytest.mark.parametrize(
    ("keys", "can"),
    [
        ("base_url: 'https://a.example/v1'", {"n", "store", "prompt_cache_key", *FREE}),
        ("base_url: 'http://127.0.0.1:9/v1'", {"n", "prompt_cache_key"}),
        (
            "base_url: 'http://127.0.0.1:9/v1', capabilities: [store, background]",
            {"n", "prompt_cache_key", "store", "background"},
        ),
        (
            "base_url: 'https://a.example/v1', service_tiers: [flex]",
            {"n", "store", "prompt_cache_key", "service_tier_flex"},
        ),
        ("base_url: 'https://a.example/v1', service_tiers: [], omit: [n, store, temperature]", {"prompt_cache_key"}),
        ("base_url: 'https://a.example/v1', omit: [service_tier, prompt_cache_key]", {"n", "store"}),
        ("kind: scripted, script: [{reply: {text: a}}]", {"n", "store", "prompt_cache_key", *FREE}),
        (
            "kind: responses, base_url: 'https://a.example/v1', capabilities: [web_search, hosted_tools]",
            {"store", "prompt_cache_key", "web_search", "responses_hosted_tools", "file_urls", *FREE},
        ),
        (
            "kind: anthropic, base_url: 'https://a.example/v1', capabilities: [tools, web_search, hosted_tools]",
            {"tools", "messages_web_search", "messages_hosted_tools", "file_urls"},
        ),
        ("kind: anthropic, base_url: 'https://a.example', capabilities: [files]", {"files", "file_urls"}),
        (
            "kind: anthropic, base_url: 'https://bedrock-runtime.eu-west-1.amazonaws.com', auth: {kind: aws}, "
            "capabilities: [files]",
            {"files"},
        ),
        (
            "base_url: 'https://openrouter.ai/api/v1', capabilities: [files], service_tiers: []",
            {"n", "store", "prompt_cache_key", "files", "file_urls"},
        ),
        (
            "base_url: 'https://api.openai.com/v1', capabilities: [files], service_tiers: []",
            {"n", "store", "prompt_cache_key", "files"},
        ),
    ],
)
def test_what_a_backend_can_do_beside_what_its_config_lists(load: Load, keys: str, can: set[str]) -> None:
    """Its kind has fields, its address tells what a server of one's own lacks, and `omit` takes what it refuses."""
    (backend,) = load(f"tiers: [{{name: local, backends: [{{model: m, {keys}}}]}}]\n").tiers[0].backends
    assert backend.can == can


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ("kind: responses, capabilities: [n]", "capabilities"),
        ("kind: responses, capabilities: [audio]", "capabilities"),
        ("kind: anthropic, capabilities: [background]", "capabilities"),
        ("kind: anthropic, capabilities: [store]", "capabilities"),
        ("capabilities: [hosted_tools]", "capabilities"),
        ("kind: anthropic, service_tiers: [flex]", "service_tiers"),
        ("kind: responses, omit: [messages.name]", "omit"),
        ("service_tiers: [turbo]", "service_tiers[0]"),
    ],
)
def test_what_a_kind_of_backend_cannot_be_asked_for(load: Load, keys: str, key: str) -> None:
    """A config that promises what no request could say is wrong."""
    text = f"tiers: [{{name: local, backends: [{{base_url: 'https://a.example/v1', model: m, {keys}}}]}}]\n"
    (found,) = problems_of(load, text)
    assert found.startswith(f"1: tiers[0].backends[0].{key}: ")


def test_a_key_that_is_not_set_leaves_the_backend_unconfigured(load: Load) -> None:
    """The tier stays usable through its other backend, and an empty variable counts as not set."""
    hosted = load(environ={"HOSTED_KEY": ""}).tiers[1]
    assert hosted.backends[0].unconfigured_reason == "HOSTED_KEY is not set"
    assert not hosted.backends[0].configured
    assert hosted.configured


def test_secrets_never_print(load: Load) -> None:
    """Neither keys nor URLs that may hold a password show in a repr."""
    text = CONFIG + "store: {url: '${STORE}'}\ntenants: {acme: {key_env: ACME_KEY}}\n"
    text = text.replace("model: ${MODEL:-large}", "model: large\n        http: {proxy: '${PROXY}'}")
    environ = {
        "HOSTED_KEY": CANARY,
        "ACME_KEY": CANARY + "2",
        "STORE": f"redis://:{CANARY}@h/0",
        "PROXY": f"http://u:{CANARY}@p:1",
    }
    deployment = load(text, environ)
    assert CANARY in (deployment.store.url or "")
    assert CANARY not in repr(deployment)
    assert CANARY not in str(deployment)


BACKEND = "tiers[1].backends[0]"
KEY_ENV = "key_env: HOSTED_KEY"
URL_A = "https://a.example/v1"


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "says"),
    [
        ("port: 8000", "port: ${PORT}", 1, "port", "the environment variable PORT is not set"),
        ("port: 8000", "port: ${PORT", 1, "port", "'${': write ${VAR} or ${VAR:-default}"),
        ("port: 8000", "port: ${WORD}", 1, "port", "input should be a valid integer"),
        ("port: 8000", "port: 70000", 1, "port", "input should be less than or equal to 65535"),
        ("port: 8000", "prot: 8000", 1, "prot", "unknown key (did you mean 'port'?)"),
        ("price: {input", "price: {inptu", 11, f"{BACKEND}.price.inptu", "unknown key (did you mean 'input'?)"),
        ("0.15", "-1", 11, f"{BACKEND}.price.input", "input should be greater"),
        ("0.15", ".inf", 11, f"{BACKEND}.price.input", "input should be a finite number"),
        ("name: hosted", "name: local", 6, "tiers[1].name", "a second tier named 'local'"),
        (KEY_ENV, f"key: {CANARY}", 10, f"{BACKEND}.key", "a secret is never written here"),
        (KEY_ENV, f"api_key: {CANARY}", 10, f"{BACKEND}.api_key", "a secret is never written here"),
        (KEY_ENV, f"key_env: {CANARY}", 10, f"{BACKEND}.key_env", "not the name of an environment variable"),
        (KEY_ENV, "key_env: NEWLINE", 10, f"{BACKEND}.key_env", "the key in NEWLINE holds whitespace"),
        (KEY_ENV, "key_env: SPACE", 10, f"{BACKEND}.key_env", "the key in SPACE holds whitespace"),
        (KEY_ENV, "key_env: ACCENT", 10, f"{BACKEND}.key_env", "the key in ACCENT holds whitespace"),
        (KEY_ENV, "key_file: nope", 10, f"{BACKEND}.key_file", "no such file"),
        (KEY_ENV, KEY_ENV + "\n        key_file: x", 8, BACKEND, "key_env and key_file are both given"),
        (KEY_ENV, "unconfigured_reason: x", 10, f"{BACKEND}.unconfigured_reason", "set by Tierline"),
        (
            KEY_ENV,
            "kind: responses\n        continuation: prefill",
            11,
            f"{BACKEND}.continuation",
            "write prompt, or none",
        ),
        (URL_A, "ftp://a.example", 8, f"{BACKEND}.base_url", "not an http:// or https:// URL"),
        (URL_A, "http://169.254.169.254/v1", 8, f"{BACKEND}.base_url", "link-local or cloud metadata"),
        (URL_A, f"https://u:{CANARY}@a.example/v1", 8, f"{BACKEND}.base_url", "a password is never written here"),
        (URL_A, "${URL}", 8, f"{BACKEND}.base_url", "a URL may not hold a user or password"),
        ("port: 8000", f"store: {{url: 'redis://:{CANARY}@h'}}", 1, "store.url", "a password is never written here"),
        (
            "port: 8000",
            f"store: {{url: 'redis+sentinel://h/main?sentinel_password={CANARY}'}}",
            1,
            "store.url",
            "a password is never written here",
        ),
        ("port: 8000", "store: {url: 'redis+sentinel://h'}", 1, "store.url", "redis+sentinel://HOST:PORT,HOST:PORT/M"),
        ("port: 8000", "store: {url: 'http://h'}", 1, "store.url", "the store's URL must be redis://"),
        ("port: 8000", "store: {url: 'redis://h:notaport'}", 1, "store.url", "with a valid port"),
        ("port: 8000", "store: {url: 'redis://h/0?nope=1'}", 1, "store.url", "known options"),
        ("port: 8000", "store: {url: '${STORE}'}", 1, "store.url", "the store's URL must be redis://"),
        ("port: 8000", "store: {index: query_engine}", 1, "store.index", "query_engine was taken out; leave it out"),
        ("model: small", 'model: "a\\nb"', 5, "tiers[0].backends[0].model", "holds line breaks"),
        ("model: small", "model: '${CONTROL}'", 5, "tiers[0].backends[0].model", "holds line breaks"),
        ("port: 8000", "limits: {body: 4}", 1, "limits.body", "4 is not a size"),
        ("port: 8000", "classifier: nope.json", 1, "classifier", "no such file"),
        ("port: 8000", "local_model: {gguf: nope.gguf}", 1, "local_model.gguf", "no such file"),
        ("port: 8000", "tenants: {acme: {}}", 1, "tenants.acme", "a tenant needs key_env or key_file"),
        ("port: 8000", "tenants: {acme: {key_env: NOPE}}", 1, "tenants.acme", "NOPE is not set"),
        ("port: 8000", "tenants: {a: {key_env: K}, b: {key_env: [J, K]}}", 1, "tenants.b", "that is also 'a'"),
        ("port: 8000", "tenants: {acme: {key_env: SHORT}}", 1, "tenants.acme", "SHORT has 7 characters, which can be"),
        ("port: 8000", "admin: {key_env: SHORT}", 1, "admin.key_env", "SHORT has 7 characters, which can be guessed"),
        ("port: 8000", "admin: {key_env: NOPE}", 1, "admin.key_env", "NOPE is not set"),
        ("port: 8000", "tenants: {a: {key_env: K}}\nadmin: {key_env: K}", 2, "admin.key_env", "a tenant's key too"),
        ("port: 8000", "port: 8788\nadmin: {key_env: K}", 1, "", "give it another"),
        (
            "price:",
            "http: {client: http1, http2: true}\n        price:",
            11,
            f"{BACKEND}.http",
            "need client: httpx2",
        ),
        ("price:", "http: {client: aiohttp}\n        price:", 11, f"{BACKEND}.http", "aiohttp any more: leave it out"),
    ],
)
def test_what_is_wrong_is_told_with_line_and_key_and_without_secrets(
    load: Load, old: str, new: str, line: int, key: str, says: str
) -> None:
    """Each mistake is refused where it stands; nothing that could be a key is repeated."""
    environ = {
        "WORD": "many",
        "NEWLINE": f"{CANARY}\n",
        "SPACE": f"{CANARY} x",
        "ACCENT": f"{CANARY}é",
        "URL": f"https://u:{CANARY}@a/v1",
        "STORE": f"http://u:{CANARY}@h",
        "CONTROL": "a\x1b[31m",
        "K": CANARY,
        "J": "another-key",
        "SHORT": "1234567",
    }
    assert old in CONFIG
    found = problems_of(load, CONFIG.replace(old, new, 1), environ)
    assert any(text.startswith(f"{line}: {key}: ") and says in text for text in found), found


def test_all_problems_are_told_at_once(load: Load) -> None:
    """One start tells everything that is wrong, missing variables first."""
    broken = CONFIG.replace("port: 8000", "port: 99999").replace("large\n", "large\n        foo: 1\n", 1)
    assert len(problems_of(load, broken.replace("https://a", "ftp://a"))) == 3
    assert len(problems_of(load, CONFIG.replace("8000", "${A}").replace("model: large", "model: ${B}"))) == 2


def test_interpolation_defaults_and_escapes(load: Load) -> None:
    """A default stands for what is not set or empty, may be empty itself, and `$${` is a literal `${`."""
    text = CONFIG.replace("model: ${MODEL:-large}", "model: '${A:-x}-${B:-}-$${C}-${D:-y:z}'")
    assert load(text, {"A": ""}).tiers[1].backends[1].model == "x--${C}-y:z"
    assert load(text, {"A": "1", "B": "2"}).tiers[1].backends[1].model == "1-2-${C}-y:z"


def test_a_value_of_the_environment_is_not_read_as_yaml(load: Load) -> None:
    """What a variable holds stays one piece of text, whatever characters are in it."""
    held = "a, b: {c} # &d ${E}"
    assert load(environ={"MODEL": held}).tiers[1].backends[1].model == held


def test_key_files_are_read_and_their_mode_looked_at(load: Load, tmp_path: Path) -> None:
    """A key comes from a file beside the config; one that others can read is used, with a warning."""
    file = tmp_path / "key"
    file.write_text(CANARY + "\n")
    file.chmod(0o600)
    text = CONFIG.replace("key_env: HOSTED_KEY", "key_file: key")
    private = load(text)
    assert private.tiers[1].backends[0].key is not None
    assert private.tiers[1].backends[0].key.get_secret_value() == CANARY
    assert private.warnings == ()
    file.chmod(0o644)
    (warning,) = load(text).warnings
    assert (warning.line, warning.key) == (10, "tiers[1].backends[0].key_file")
    assert "can be read by other users" in warning.message
    file.write_text(f"{CANARY}\n{CANARY}2\n")
    assert any("holds 2 keys" in problem for problem in problems_of(load, text))


def test_a_tenant_may_have_several_keys(load: Load, tmp_path: Path) -> None:
    """From several variables, and from a file with one a line, so that a key can be replaced without a gap."""
    (tmp_path / "keys").write_text("c-c-c-c-c\n\nd-d-d-d-d\n")
    text = CONFIG + "tenants: {acme: {key_env: [A, B], key_file: keys}, other: {key_env: O}}\n"
    environ = {name: "-".join(name.lower() * 5) for name in "ABO"}
    tenants = load(text, environ).of(AccessSections).tenants
    assert tenants["acme"].key_digests == tuple(key_digest(b"-".join([key] * 5)) for key in (b"a", b"b", b"c", b"d"))
    assert tenants["other"].key_digests == (key_digest(b"o-o-o-o-o"),)
    (tmp_path / "keys").write_text("c-c-c-c-c\nx\n")
    assert any("keys has 1 character, which can be guessed" in one for one in problems_of(load, text, environ))


def test_a_key_over_plain_http_is_warned_about(load: Load) -> None:
    """A key that would cross the network readable is pointed out; on loopback it is not."""
    environ = {"HOSTED_KEY": "k"}
    assert load(environ=environ).warnings == ()
    assert load(CONFIG.replace("https://a.example", "http://localhost:1"), environ).warnings == ()
    (warning,) = load(CONFIG.replace("https://a", "http://a"), environ).warnings
    assert "unencrypted" in warning.message


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://169.254.43518/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://metadata.google.internal./v1",
        "http://METADATA/",
        "http://100.100.100.200/",
        "file:///etc/passwd",
        "//host/v1",
        "http://",
        "http:///v1",
        "http://host:99999/",
        "http://host:x/",
        "http://a b/",
        "http://host/\nx",
        "http://host/v1?key=1",
        "http://[::1/v1",
        "",
    ],
)
def test_addresses_that_no_backend_may_have(url: str) -> None:
    """Metadata services in every notation, other schemes and broken URLs are refused."""
    with pytest.raises(ValueError, match=r"."):
        check_http_url(url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080/v1", "https://api.openai.com/v1", "http://[::1]:1/", "http://10.0.0.7"]
)
def test_addresses_that_a_backend_may_have(url: str) -> None:
    """Loopback and private networks are where local models live."""
    check_http_url(url)


HEADED = """\
tiers:
  - name: local
    backends:
      - {base_url: "http://127.0.0.1:9000/v1", model: small, confidence_head: head.json}
"""


def test_a_head_of_ones_own_is_read_from_beside_the_config(load: Load, tmp_path: Path) -> None:
    """And `none`, or a model that no head ships for, is none."""
    write_head(tmp_path / "head.json", "small", whole=mean_scorer(0.0))
    backend = load(HEADED).tiers[0].backends[0]
    assert backend.head is not None
    assert backend.head.version == ConfidenceHead.load(tmp_path / "head.json").version
    for without in ("none", "default"):
        assert load(HEADED.replace("head.json", without)).tiers[0].backends[0].head is None


def test_a_head_that_cannot_be_read_is_a_problem_with_its_place(load: Load, tmp_path: Path) -> None:
    """A file that is not there, is no head, or has been changed since it was fitted."""
    [missing] = problems_of(load, HEADED)
    assert missing.startswith("4: tiers[0].backends[0].confidence_head:")
    assert "No such file" in missing
    assert "tierline fit train confidence" in missing
    file = write_head(tmp_path / "head.json", "small", whole=mean_scorer(0.25))
    file.write_text(file.read_text().replace("0.25", "0.75"))
    assert "SHA-256" in problems_of(load, HEADED)[0]
    file.write_text("{}")
    assert "is not a tierline-confidence-1 artefact" in problems_of(load, HEADED)[0]


def test_a_head_of_another_model_is_warned_about(load: Load, tmp_path: Path) -> None:
    """It may be meant, and it is doubtful."""
    write_head(tmp_path / "head.json", "another", whole=mean_scorer(0.0))
    [warning] = load(HEADED).warnings
    assert (warning.line, warning.key) == (4, "tiers[0].backends[0].confidence_head")
    assert "was fitted to another" in warning.message


def test_the_cross_encoder_that_ships_is_the_default(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that lacks it does not start, unless the config does without."""
    shipped = load().cross_encoder_folder
    assert shipped is not None
    assert (shipped / "model.onnx").is_file()
    monkeypatch.setattr("gateway.config.loader.shipped_cross_encoder", lambda: shipped / "gone")
    (problem,) = problems_of(load, CONFIG)
    assert "cross_encoder: the one that ships is not at " in problem
    assert "set cross_encoder: none" in problem
    assert load(CONFIG + "cross_encoder: none\n").cross_encoder_folder is None


def test_a_config_can_be_made_in_code() -> None:
    """Embedding and tests need no file."""
    backend = BackendConfig(base_url="http://127.0.0.1:1/v1", model="m")
    deployment = Deployment(tiers=(TierConfig(name="local", backends=(backend,)),))
    assert deployment.tiers[0].backends[0].name == "local"
    assert deployment.tiers[0].configured


def test_no_tiers_is_refused(tmp_path: Path) -> None:
    """There must be something to route to."""
    with pytest.raises(InvalidContent, match="tiers"):
        validate(Deployment, Document(tmp_path, {"tiers": []}, {}))


def test_a_missing_config_is_one_clear_problem(tmp_path: Path) -> None:
    """It names the file."""
    with pytest.raises(UnreadableFile, match=r"nope\.yaml: no such file"):
        load_deployment(tmp_path / "nope.yaml", {})


def test_a_tenant_may_have_a_team(load: Load) -> None:
    """The config says who is in which team, and who is in none."""
    text = CONFIG + "tenants: {acme: {key_env: A, team: red}, zeta: {key_env: Z}}\n"
    deployment = load(text, {"A": "key-of-a", "Z": "key-of-z"})
    assert deployment.team_of == {"acme": "red"}
    assert set(deployment.tenant_names).difference(deployment.team_of) == {"zeta"}
    assert load().tenant_names == (), "teams of keys are groups within a tenant"


def test_there_is_an_admin_api_only_where_the_config_says_so(load: Load) -> None:
    """With a key from the environment, on loopback, on a port of its own."""
    assert load().admin_place is None
    deployment = load(CONFIG + "admin: {key_env: ADMIN_KEY}\n", {"ADMIN_KEY": CANARY})
    admin = deployment.of(AccessSections).admin
    assert deployment.addresses[1:] == (("127.0.0.1", 8788),)
    assert admin is not None
    assert admin.key is not None
    assert (admin.key.get_secret_value(), admin.host, admin.port) == (CANARY, "127.0.0.1", 8788)
    assert CANARY not in repr(admin)


@pytest.mark.parametrize(
    ("backend", "problem"),
    [
        ("auth: {kind: aws, scope: x}", "3: tiers[0].backends[0].auth.scope: kind: aws has no scope; leave it out"),
        (
            "auth: {kind: entra, region: x}",
            "3: tiers[0].backends[0].auth.region: kind: entra has no region; leave it out",
        ),
        ("auth: {kind: aws}, key_env: K", "3: tiers[0].backends[0]: auth and key_env are both given; keep one"),
        (f"auth: {{kind: entra, secret: {CANARY}}}", "a secret is never written here"),
    ],
)
def test_an_identity_says_what_is_of_its_kind(load: Load, backend: str, problem: str) -> None:
    """Each cloud has keys of its own, and an identity stands in place of a key."""
    text = f"tiers:\n  - name: cloud\n    backends: [{{base_url: https://a.example/v1, model: m, {backend}}}]\n"
    (found,) = problems_of(load, text)
    assert problem in found


@pytest.mark.parametrize(
    ("kind", "package"), [("aws", "botocore"), ("google", "google.auth"), ("entra", "azure.identity")]
)
def test_an_identity_needs_its_extra(load: Load, monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    """A missing package is told when the config is read, with the command that installs it; with it all is well."""
    backend = f"{{base_url: https://a.example/v1, model: m, auth: {{kind: {kind}}}}}"
    text = f"tiers:\n  - name: cloud\n    backends: [{backend}]\n"
    assert load(text).tiers[0].configured
    monkeypatch.setitem(sys.modules, package, None)
    (problem,) = problems_of(load, text)
    assert f"auth.kind: {kind} needs {package}, which is not installed: pip install 'tierline[{kind}]'" in problem


def test_tokens_need_their_extra(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway without issuers does without the library."""
    issuers = "identity: {issuers: [{issuer: https://login.example.com, audience: tierline}]}\n"
    assert load(CONFIG + issuers).identity.issuers
    monkeypatch.setitem(sys.modules, "joserfc", None)
    (problem,) = problems_of(load, CONFIG + issuers)
    assert "joserfc, which is not installed: pip install 'tierline[identity]'" in problem
    assert not load(CONFIG).identity.issuers


def test_a_role_says_which_of_several_issuers_gives_it(load: Load) -> None:
    """Else a partner's provider could make anybody an admin by the name of a group."""
    issuers = "".join(f"{{issuer: https://{name}.example.com, audience: a}}, " for name in ("own", "partner"))
    text = f"{CONFIG}identity: {{issuers: [{issuers}]}}\nroles: [{{role: admin, where: {{groups: platform}}MORE}}]\n"
    (problem,) = problems_of(load, text.replace("MORE", ""))
    assert "roles[0]" in problem and "name the one that may as `issuer`" in problem
    assert load(text.replace("MORE", ", issuer: https://own.example.com")).roles


def test_a_service_is_not_signed(load: Load) -> None:
    """AWS's signatures cover whole bodies, and a service's are passed on in parts."""
    (problem,) = problems_of(load, CONFIG + "services: {a: {base_url: https://a.example/v1, auth: {kind: aws}}}\n")
    assert "AWS signs whole ones" in problem


def test_a_token_over_plain_http_is_a_warning(load: Load) -> None:
    """As a key is."""
    backend = "{base_url: http://a.example/v1, model: m, auth: {kind: google}}"
    (warning,) = load(f"tiers: [{{name: cloud, backends: [{backend}]}}]\n").warnings
    assert "unencrypted" in warning.message


@pytest.mark.parametrize(
    ("backend", "refused"),
    [
        (
            "{kind: responses, base_url: 'https://a.example/v1', model: m, set: {thinking: {type: adaptive}}}",
            "thinking",
        ),
        ("{base_url: 'https://api.openai.com/v1', model: m, force: {output_config: {effort: low}}}", "output_config"),
        (
            "{base_url: 'https://mine.openai.azure.com/openai/v1', model: m, set: {thinking: {type: adaptive}}}",
            "thinking",
        ),
    ],
)
def test_a_field_of_anthropics_cannot_be_set_where_it_is_refused(load: Load, backend: str, refused: str) -> None:
    """Each call would fail once; the message says what to write. Servers of open models have taken the field over."""
    (problem,) = problems_of(load, f"tiers: [{{name: t, backends: [{backend}]}}]\n")
    assert f".{refused}: " in problem and "write reasoning_effort instead" in problem
    here = backend.replace("kind: responses, ", "").replace("api.openai.com", "b.example")
    here = here.replace("mine.openai.azure.com", "b.example")
    assert load(f"tiers: [{{name: t, backends: [{here}]}}]\n").tiers[0].backends[0].not_settable == frozenset()


def test_alerts_are_signed() -> None:
    """A webhook without a secret is refused, and so is a share of nothing; the shares are sorted, each once."""
    assert AlertsConfig.model_validate({"shares": ["90%", "50%", 0.9]}).shares == (0.5, 0.9)
    for given in ({"webhook": "https://a.example/x"}, {"secret_env": "X"}, {"shares": [0]}, {"webhook": "ftp://a"}):
        with pytest.raises(ValidationError):
            AlertsConfig.model_validate(given)


def test_the_secret_of_alerts_comes_from_the_environment(load: Load) -> None:
    """It is never written in the config, and without it the gateway does not start."""
    text = f"{CONFIG}alerts: {{webhook: 'https://hooks.example/x', secret_env: HOOK}}\n"
    secret = load(text, {"HOOK": CANARY}).of(AccessSections).alerts.secret
    assert secret is not None and secret.get_secret_value() == CANARY
    with pytest.raises(ConfigError, match="HOOK is not set; without it no alert could be signed"):
        load(text)


@pytest.mark.parametrize("base_url", ['base_url: "", ', "", 'base_url: "${ANOTHER_URL:-}", '])
def test_a_backend_without_a_url_is_none_that_up_starts(load: Load, base_url: str) -> None:
    """To `up` as to `serve`: only the variable that `up` sets stands for its own model."""
    text = CONFIG.replace('base_url: "http://127.0.0.1:9000/v1/", ', base_url)
    assert text != CONFIG
    deployment = load(text, {})
    assert not deployment.wants_local_model and not deployment.tiers[0].configured
