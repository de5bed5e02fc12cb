"""What a model costs and how its API differs is known from the config, the user's own file, or the shipped one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.chat.usage import Usage
from gateway.cli.main import main
from gateway.config.backends import BackendConfig, retirement
from gateway.config.loader import load_deployment
from gateway.parts.prices.model_facts import HostedModel, prior_of, shipped_facts
from gateway.parts.prices.price_map import facts_from_price_map
from gateway.parts.prices.steps import SteppedPrice
from policies.errors import ConfigError

HOSTED = "https://api.openai.com/v1"
MAP = {
    "gpt-9": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 2e-06,
        "output_cost_per_token": 8e-06,
        "cache_read_input_token_cost": 2e-07,
        "input_cost_per_token_above_200k_tokens": 4e-06,
        "output_cost_per_token_above_200k_tokens": 1.6e-05,
        "input_cost_per_token_above_400k_tokens": 6e-06,
        "input_cost_per_image_above_128k_tokens": 1e-04,
        "input_cost_per_token_flex": 1e-06,
        "output_cost_per_token_flex": 4e-06,
        "max_input_tokens": 400_000,
        "supports_reasoning": True,
    },
    "trial": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 0, "output_cost_per_token": 0},
    "elsewhere/gpt-9": {"litellm_provider": "nobody", "mode": "chat", "input_cost_per_token": 1},
}


def backend(folder: Path, keys: str, top: str = "") -> BackendConfig:
    """The only backend of a config with these keys."""
    file = folder / "tierline.yaml"
    file.write_text(f"tiers: [{{name: one, backends: [{{{keys}}}]}}]\ncross_encoder: none\n{top}")
    return load_deployment(file, {"KEY": "k"}).tiers[0].backends[0]


def test_a_known_model_has_its_price(tmp_path: Path) -> None:
    """The shipped file knows it by the host and the model; what the config says comes first."""
    known = backend(tmp_path, f"base_url: '{HOSTED}', model: gpt-5.4, key_env: KEY")
    assert known.price is not None and known.price.input == 2.5 and known.context == 1_050_000
    assert known.rename == {"max_tokens": "max_completion_tokens"}
    assert known.service_tiers == ("flex", "priority", "other") and "service_tier_flex" in known.can
    assert backend(tmp_path, f"base_url: '{HOSTED}', model: gpt-4o, key_env: KEY").service_tiers == (
        "priority",
        "other",
    )
    stated = backend(tmp_path, f"base_url: '{HOSTED}', model: gpt-5.4, key_env: KEY, service_tiers: [priority]")
    assert stated.service_tiers == ("priority",) and stated.price == known.price
    stated = backend(tmp_path, f"base_url: '{HOSTED}', model: gpt-5.4, key_env: KEY, price: {{input: 9}}, rename: {{}}")
    assert stated.price == SteppedPrice(input=9) and stated.rename == {}
    always = backend(tmp_path, f"base_url: '{HOSTED}', model: o3, key_env: KEY")
    assert not always.logprobs and "temperature" in always.omit


@pytest.mark.parametrize("url", ["https://models.example.com/v1", "https://api.openai.com.example.com/v1"])
def test_the_same_name_elsewhere_is_unknown(tmp_path: Path, url: str) -> None:
    """A server of one's own that serves a model of that name costs what nobody has stated."""
    assert backend(tmp_path, f"base_url: '{url}', model: gpt-5.4, key_env: KEY").price is None


def test_this_machine_is_free(tmp_path: Path) -> None:
    """What runs here costs nothing per token, unless the config says otherwise."""
    assert backend(tmp_path, "base_url: 'http://127.0.0.1:9/v1', model: small").price == SteppedPrice()


def test_an_unknown_price_can_be_refused(tmp_path: Path) -> None:
    """With `prices: {unknown: refuse}` the gateway does not start, and names the backend's line."""
    keys = "base_url: 'https://models.example.com/v1', model: mine, key_env: KEY"
    with pytest.raises(ConfigError, match=r"nobody states what it costs"):
        backend(tmp_path, keys, "prices: {unknown: refuse}\n")
    assert backend(tmp_path, f"{keys}, price: {{}}", "prices: {unknown: refuse}\n").price == SteppedPrice()
    with pytest.raises(ConfigError, match=r"a hosted model behind an address of this machine.*price: \{\} if nobody"):
        backend(tmp_path, "base_url: 'http://127.0.0.1:9/v1', model: gpt-3.5-turbo", "prices: {unknown: refuse}\n")


@pytest.mark.parametrize(
    ("model", "price"),
    [
        *((name, None) for name in (
            "gpt-4o-mini", "openai/gpt-6-luna", "claude-haiku-5-5", "bedrock/us.anthropic.claude-haiku-4-5-v1:0",
            "gemini/gemini-3.5-flash", "xai/grok-4.7", "o3", "azure/gpt-5.5", "deepseek-chat", "mistral-large-latest",
        )),
        *((name, SteppedPrice()) for name in (
            "m", "SmolLM2-135M-Instruct", "openai/gpt-oss-120b", "gpt-oss:20b", "gpt2", "gemma-3-27b-it",
            "deepseek-r1:8b", "mistral:7b", "qwen/qwen3.8-27b", "meta-llama/Llama-3.3-70B-Instruct", "o3d-7b",
        )),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["", ", key_env: KEY"], ids=["no key", "key"])
def test_a_proxy_on_this_machine_is_not_free(tmp_path: Path, model: str, price: SteppedPrice | None, key: str) -> None:
    """One that serves a model which its maker alone serves: somebody pays for it. A server of open models is free."""
    made = backend(tmp_path, f"base_url: 'http://localhost:4000/v1', model: '{model}'{key}")
    assert made.price == price
    assert made.price_source == ("" if price is None else "on this machine")
    stated = backend(tmp_path, f"base_url: 'http://localhost:4000/v1', model: '{model}'{key}, price: {{}}")
    assert stated.price == SteppedPrice() and stated.price_source == ("config" if price is None else "on this machine")


def test_check_says_why_a_proxy_on_this_machine_is_not_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to write if it is."""
    file = tmp_path / "tierline.yaml"
    file.write_text(
        "tiers: [{name: hosted, backends: [{base_url: 'http://127.0.0.1:4000/v1', model: gpt-4o-mini}]}]\n"
        "cross_encoder: none\n"
    )
    assert main(["prices", "check", "--config", str(file), "--json"]) == 1
    [row] = orjson.loads(capsys.readouterr().out)["backends"]
    assert row["price"] is None and row["source"] == "unknown"
    assert "a hosted model behind an address of this machine" in row["finding"] and "price: {}" in row["finding"]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("", "a request whose key has a budget of money is refused with 403 (price_unknown) if it may come to this"),
        ("keys: {unknown_price: {ceiling: 0.5}}\n", "of a budget of money each call takes $0.5 (keys.unknown_price"),
    ],
    ids=["refused", "a ceiling"],
)
def test_check_says_what_an_unknown_price_does_to_budgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: str, told: str
) -> None:
    """At the tier of the policy that has it."""
    file, policies = tmp_path / "tierline.yaml", tmp_path / "policies"
    policies.mkdir()
    (policies / "chat.yaml").write_text(
        "surface: chat\nslo: {deadline: 9s}\ntiers: [one, two]\nroute: {start: {one: otherwise}}\n"
    )
    file.write_text(
        "tiers:\n"
        "  - {name: one, backends: [{base_url: 'http://127.0.0.1:9/v1', model: small}]}\n"
        "  - {name: two, backends: [{base_url: 'http://127.0.0.1:4000/v1', model: gpt-3.5-turbo}]}\n"
        f"cross_encoder: none\n{keys}"
    )
    main(["check", "--config", str(file), "--policies", str(policies)])
    [line] = [one for one in capsys.readouterr().out.splitlines() if "[T713]" in one]
    assert "tiers[1]" in line and told in line and "a hosted model behind an address of this machine" in line
    assert "write there price: {} if nobody pays for it" in line


def test_check_tells_where_the_two_files_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both figures, and that the own file's counts; nothing where they agree."""
    shipped = shipped_facts().models["openai"]["gpt-5.4"].price
    assert shipped is not None
    file = tmp_path / "tierline.yaml"
    file.write_text(
        f"tiers: [{{name: hosted, backends: [{{base_url: '{HOSTED}', model: gpt-5.4, key_env: KEY}}]}}]\n"
        "cross_encoder: none\nprices: {file: prices.json}\n"
    )
    found = []
    for price in ({"input": 10, "output": 60}, shipped.model_dump(mode="json", exclude_none=True)):
        own = {"dated": date.today(), "models": {"openai": {"gpt-5.4": {"price": price}}}}
        (tmp_path / "prices.json").write_bytes(orjson.dumps(own))
        main(["prices", "check", "--config", str(file), "--json"])
        found.append(orjson.loads(capsys.readouterr().out)["backends"][0])
    assert found[0]["price"]["input"] == 10
    assert "$10 in, $60 out" in found[0]["finding"] and "$2.5, 0.25 cached" in found[0]["finding"]
    assert "the first counts, as prices.file names it" in found[0]["finding"] and found[1]["finding"] == ""


def test_an_own_file_comes_first(tmp_path: Path) -> None:
    """A file of one's own adds hosts and models, and replaces what the shipped one says."""
    own = {
        "dated": "2026-11-01",
        "hosts": {"models.example.com": "mine"},
        "models": {"mine": {"m": {"price": {"input": 1, "output": 2}}}, "openai": {"gpt-5.4": {"price": {"input": 7}}}},
    }
    (tmp_path / "prices.json").write_bytes(orjson.dumps(own))
    top = "prices: {file: prices.json}\n"
    assert backend(tmp_path, "base_url: 'https://models.example.com/v1', model: m", top).price == SteppedPrice(
        input=1, output=2
    )
    assert backend(tmp_path, f"base_url: '{HOSTED}', model: gpt-5.4", top).price == SteppedPrice(input=7)


def test_a_map_of_prices_is_read() -> None:
    """Rates are per million tokens; long prompts and service tiers have their own; a price of 0 is no price."""
    facts = facts_from_price_map(MAP, {"api.openai.com": "openai"}, date(2026, 11, 22), "a map")
    assert list(facts.models["openai"]) == ["gpt-9"]
    known = facts.models["openai"]["gpt-9"]
    assert known.price is not None
    assert (known.price.input, known.price.output, known.price.cached_input) == (2, 8, 0.2)
    assert [(one.over, one.input) for one in known.price.long] == [(200_000, 4), (400_000, 6)]
    assert known.price.service_tiers["flex"].output == 4
    with pytest.raises(ValueError, match="no model of a known provider"):
        facts_from_price_map({}, {"api.openai.com": "openai"}, date(2026, 11, 22), "")


def imported(entry: dict[str, Any]) -> SteppedPrice | None:
    """The price of a chat model of OpenAI's whose entry in the map has these fields."""
    price_map = {"m": {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": 9, **entry}}
    return facts_from_price_map(price_map, {"h": "openai"}, date.today(), "").models["openai"]["m"].price


@pytest.mark.parametrize("suffix", ["", "_flex"])
def test_a_step_or_a_tier_without_a_price_of_the_prompt_is_kept(suffix: str) -> None:
    """What it states counts, and the rest is as for shorter prompts, or ordinary calls; nothing stated is no step."""
    base = {"input_cost_per_token": 2e-06, "output_cost_per_token": 8e-06, "cache_read_input_token_cost": 1e-06}
    own = {f"output_cost_per_token_above_200k_tokens{suffix}": 9e-06}
    own |= {f"cache_read_input_token_cost_above_300k_tokens{suffix}": 1.5e-06}
    own |= {f"input_cost_per_image_above_128k_tokens{suffix}": 1.0}
    if suffix:
        own |= {"output_cost_per_token_flex": 4e-06}
    price = imported(base | own)
    assert price is not None
    of_tier = price.service_tiers["flex"] if suffix else price
    steps = [(one.over, one.input, one.output, one.cached_input) for one in of_tier.long]
    assert steps == [(200_000, 2, 9, 1), (300_000, 2, 9, 1.5)]
    assert (of_tier.input, of_tier.output, of_tier.cached_input) == (2, 4 if suffix else 8, 1)


def test_ranges_with_rates_of_their_own_are_steps() -> None:
    """A range begins above its lower end, in whatever order they stand; a rate that it leaves out is the entry's."""
    ranges = [
        {"range": [128_000, 1_000_000], "input_cost_per_token": 3e-06},
        {
            "range": [32_000, 128_000], "input_cost_per_token": 2e-06, "output_cost_per_token": 8e-06,
            "cache_creation_input_token_cost_above_1hr": 5e-06,
        },
        {"range": [0, 32_000], "input_cost_per_token": 1e-06, "output_cost_per_token": 4e-06},
    ]  # fmt: skip
    price = imported(
        {"output_cost_per_token": 9e-06, "input_cost_per_token_above_1k_tokens": 1, "tiered_pricing": ranges}
    )
    assert price is not None and (price.input, price.output) == (1, 4)
    steps = [(one.over, one.input, one.output, one.cache_write_1h) for one in price.long]
    assert steps == [(32_000, 2, 8, 5), (128_000, 3, 9, None)]
    assert [price.of(Usage(tokens, 0)) for tokens in (32_000, 32_001)] == [0.032, pytest.approx(0.064002)]


@pytest.mark.parametrize("ranges", [[{"input_cost_per_token": 1e-06}], [{"range": [], "input_cost_per_token": 1}], "x"])
def test_ranges_that_are_not_understood_leave_the_price_unknown(ranges: Any) -> None:
    """A price of the first tokens alone would be too low for the others."""
    assert imported({"input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06, "tiered_pricing": ranges}) is None


def test_writes_for_an_hour_have_their_own_rate() -> None:
    """Also those of long prompts."""
    key = "cache_creation_input_token_cost_above_1hr"
    price = imported(
        {**MAP["gpt-9"], "cache_creation_input_token_cost": 2.5e-06, key: 7e-06, f"{key}_above_200k_tokens": 9e-06}
    )
    assert price is not None and (price.cache_write_1h, price.long[0].cache_write_1h) == (7, 9)


def test_an_import_says_which_rates_it_does_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name, with the models that have them: calls that they are about are charged by other rates."""
    more = {
        "input_cost_per_audio_token": 3e-05, "output_cost_per_token_batches": 1e-06, "off_peak_pricing": {"hours": []},
        "input_cost_per_character": 0, "cache_creation_input_token_cost_above_1hr": 8e-06,
    }  # fmt: skip
    price_map = {"gpt-9": {**MAP["gpt-9"], **more}, "gpt-8": {**MAP["gpt-9"], "input_cost_per_audio_token": 1e-05}}
    ranges = [{"range": [0, 9], "input_cost_per_token": 1e-06, "output_cost_per_reasoning_token": 9e-06}]
    price_map["gpt-7"] = {**MAP["gpt-9"], "tiered_pricing": ranges}
    (tmp_path / "map.json").write_bytes(orjson.dumps(price_map))
    assert main(["prices", "import", str(tmp_path / "map.json"), "--write", str(tmp_path / "prices.json")]) == 0
    printed = capsys.readouterr().out
    told = printed.partition("not read: ")[2]
    assert max(map(len, told.splitlines())) <= 80
    told = " ".join(told.split())
    assert told.startswith("input_cost_per_image (3 models), input_cost_per_audio_token (2 models), ")
    assert "output_cost_per_reasoning_token (1 model)" in told and "off_peak_pricing (1 model)" in told
    assert "output_cost_per_token_batches (1 model)" in told
    assert not any(name in told for name in ("character", "1hr", "flex", "above_200k"))


def test_no_shipped_price_leaves_the_answer_out() -> None:
    """Of a model that answers: neither its own, nor that of long prompts, nor of a service tier."""
    free = [
        (provider, name)
        for provider, models in shipped_facts().models.items()
        for name, known in models.items()
        if known.price is not None and known.context is not None
        for rates in (
            known.price,
            *known.price.long,
            *(one for tier in known.price.service_tiers.values() for one in (tier, *tier.long)),
        )
        if not rates.output
    ]
    assert free == []


def test_a_price_without_that_of_the_answer_is_not_imported() -> None:
    """Some models of a map state the prompt's alone; an embedding has no answer."""
    lacks = {name: value for name, value in MAP["gpt-9"].items() if name != "output_cost_per_token"}
    price_map = {"half": lacks, "embeds": {**lacks, "mode": "embedding"}}
    models = facts_from_price_map(price_map, {"api.openai.com": "openai"}, date(2026, 11, 22), "a map").models["openai"]
    assert models["half"].price is None
    assert models["embeds"].price is not None and models["embeds"].price.input == 2


def test_the_shipped_file_is_dated() -> None:
    """Its date and source are told with its prices."""
    assert shipped_facts().dated >= date(2026, 11, 22) and "LiteLLM" in shipped_facts().source


def test_check_tells_what_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each backend has a line with its price and who states it; an unknown one makes the exit code 1."""
    file = tmp_path / "tierline.yaml"
    file.write_text(
        "tiers:\n"
        "  - {name: local, backends: [{base_url: 'http://127.0.0.1:9/v1', model: small}]}\n"
        f"  - {{name: hosted, backends: [{{base_url: '{HOSTED}', model: gpt-5.4}}]}}\n"
        "  - {name: other, backends: [{base_url: 'https://models.example.com/v1', model: mine}]}\n"
        "cross_encoder: none\n"
    )
    assert main(["prices", "check", "--config", str(file), "--max-age", "100000"]) == 1
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    shown = " ".join(printed.split())
    assert "small free on this machine" in shown
    assert "$2.5, 0.25 cached, 5 over 272000 tokens in, $15 out per million" in shown and "file of 2026" in shown
    assert "mine unknown" in shown and "write price: {input: ..., output: ...}" in shown
    assert main(["prices", "check", "--config", str(file), "--json"]) == 1
    rows = orjson.loads(capsys.readouterr().out)["backends"]
    assert [row["price"] is None for row in rows] == [False, False, True]


def test_check_tells_where_each_price_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A price that the config states for a model that the file knows is a finding, unless both say the same."""
    file = tmp_path / "tierline.yaml"
    priority = "service_tiers: {priority: {input: 0.25, output: 1, cached_input: 0.125}}"
    same = f"{{input: 0.15, output: 0.6, cached_input: 0.075, {priority}}}"

    def rows(price: str, model: str) -> tuple[int, dict[str, Any]]:
        file.write_text(
            f"tiers: [{{name: hosted, backends: [{{base_url: '{HOSTED}', model: {model}{price}}}]}}]\n"
            "cross_encoder: none\n"
        )
        code = main(["prices", "check", "--config", str(file), "--max-age", "100000", "--json"])
        return code, orjson.loads(capsys.readouterr().out)["backends"][0]

    code, row = rows("", "gpt-4o-mini")
    assert (code, row["price"]["input"], row["finding"]) == (0, 0.15, "") and row["source"].startswith("file of 20")
    code, row = rows(", price: {input: 0.15, output: 0.6}", "gpt-6.1-sol")
    assert (code, row["source"]) == (1, "config") and "says $" in row["finding"]
    code, row = rows(f", price: {same}", "gpt-4o-mini")
    assert (code, row["source"], row["finding"]) == (0, "config", "")


def test_the_default_config_leaves_prices_to_the_facts() -> None:
    """Whatever model is the hosted tier's, it is charged by its own price, or by none; the local one is free."""

    def price(model: str, url: str = "https://api.openai.com/v1") -> tuple[SteppedPrice | None, SteppedPrice | None]:
        env = {"TIERLINE_HOSTED_MODEL": model, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k"}
        local, hosted, _ = (tier.backends[0] for tier in load_deployment(None, env).tiers)
        return local.price, hosted.price

    for model in ("gpt-4o-mini", "gpt-6.1-sol"):
        facts = shipped_facts().find("https://api.openai.com/v1", model)
        assert facts is not None and facts.price is not None
        assert price(model) == (SteppedPrice(), facts.price)
    assert price("nobody-knows") == (SteppedPrice(), None)
    assert price("gpt-4o-mini", "https://models.example.com/v1") == (SteppedPrice(), None)


def test_a_stated_price_that_is_another_models_is_told(tmp_path: Path) -> None:
    """By more than twice, in a warning at its place; a contract of one's own is nobody's business."""
    file = tmp_path / "tierline.yaml"

    def warned(price: str) -> list[str]:
        backend = f"{{base_url: '{HOSTED}', model: gpt-6.1-sol, key_env: K, price: {price}}}"
        file.write_text(f"tiers: [{{name: hosted, backends: [{backend}]}}]\n")
        return [str(one) for one in load_deployment(file, {"K": "k"}).warnings]

    [told] = warned("{input: 0.15, output: 0.6}")
    assert "tiers[0].backends[0].price: gpt-6.1-sol is known to cost $2 per million tokens of input, not $0.15" in told
    assert "$10 per million tokens of output, not $4" in warned("{input: 2, output: 4}")[0]
    assert warned("{input: 1.1, output: 6}") == []


def test_a_model_is_switched_off_with_the_last_of_its_snapshots() -> None:
    """Where each of them has a date; a name with a date of its own keeps it."""
    chat = MAP["gpt-9"]
    ends = {"gpt-9-2026-01-02": "2027-01-14", "gpt-9-2026-05-06": "2027-03-01", "gpt-8-20260101": "2026-12-01"}
    by_name = {name: {**chat, "deprecation_date": day} for name, day in ends.items()}
    price_map = {"gpt-9": chat, "gpt-8": chat, "gpt-8-20260202": chat, "o9": {**chat, "deprecation_date": "2027-02-03"}}
    facts = facts_from_price_map(price_map | by_name, {"api.openai.com": "openai"}, date(2026, 7, 1), "a test")
    retires = {name: one.retires for name, one in facts.models["openai"].items()}
    assert retires["gpt-9"] == retires["gpt-9-2026-05-06"] == date(2027, 3, 1)
    assert (retires["o9"], retires["gpt-8"], retires["gpt-8-20260101"]) == (date(2027, 2, 3), None, date(2026, 12, 1))


@pytest.mark.parametrize(
    ("days", "told"),
    [(91, ""), (90, "is switched off on {}, in 90 days"), (1, "is switched off on {}, tomorrow"),
     (0, "is switched off on {}, today"), (-3, "has been switched off since {}")],
)  # fmt: skip
def test_a_model_that_is_about_to_go_is_told(tmp_path: Path, days: int, told: str) -> None:
    """From 90 days before, by `check` at its place; the day itself is known earlier."""
    day = datetime.now(UTC).date() + timedelta(days=days)
    (tmp_path / "facts.json").write_bytes(
        orjson.dumps({"dated": "2026-07-01", "models": {"openai": {"gpt-9": {"retires": day}}}})
    )
    file = tmp_path / "tierline.yaml"
    file.write_text(
        f"tiers: [{{name: hosted, backends: [{{base_url: '{HOSTED}', model: gpt-9, price: {{input: 1}}}}]}}]\n"
        "prices: {file: facts.json}\n"
    )
    deployment = load_deployment(file, {})
    assert deployment.tiers[0].backends[0].retires == day
    found = [str(one) for one in deployment.warnings]
    assert retirement(day) == told.format(day)
    assert found == [] if not told else f"backends[0].model: gpt-9 {told.format(day)}; choose another" in found[0]


def test_the_default_hosted_model_is_no_old_one() -> None:
    """Nobody who begins today is to change the model next month."""
    hosted = load_deployment(None, {"OPENAI_API_KEY": "k"}).tiers[1].backends[0]
    assert hosted.price is not None and retirement(hosted.retires, timedelta(days=365)) == ""


def test_import_writes_a_file_that_a_config_can_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file that `prices import` writes holds the map's prices for the known providers."""
    (tmp_path / "map.json").write_bytes(orjson.dumps(MAP))
    written = tmp_path / "prices.json"
    assert main(["prices", "import", str(tmp_path / "map.json"), "--write", str(written)]) == 0
    assert "1 models of 1 providers" in capsys.readouterr().out
    top = "prices: {file: prices.json}\n"
    price = backend(tmp_path, f"base_url: '{HOSTED}', model: gpt-9", top).price
    assert price is not None and price.input == 2
    (tmp_path / "map.json").write_text("[]")
    assert main(["prices", "import", str(tmp_path / "map.json"), "--write", str(written)]) == 2


@pytest.mark.parametrize(
    ("url", "model", "usd"),
    [
        ("https://bedrock-runtime.eu-west-1.amazonaws.com", "anthropic.claude-haiku-5-5", 0.1),
        ("https://bedrock-runtime.us-east-1.amazonaws.com", "us.anthropic.claude-haiku-4-5-20251001-v1:0", 1.1),
        ("https://bedrock-mantle.us-east-1.api.aws/v1", "openai.gpt-6-luna", 0.1),
        ("https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5", "claude-opus-4-5@20251101", 5),
        (
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi",
            "google/gemini-3.5-flash",
            1.5,
        ),
        ("https://r.services.ai.azure.com/anthropic", "claude-haiku-5-5", 0.1),
        ("https://r.cognitiveservices.azure.com/openai/v1", "gpt-6-luna", 0.1),
        ("https://mine.us-east-1.elb.amazonaws.com/v1", "openai.gpt-6-luna", None),
        ("https://bedrock-runtime.us-east-1.amazonaws.com.example.com", "openai.gpt-6-luna", None),
    ],
)
def test_models_of_clouds_are_known(tmp_path: Path, url: str, model: str, usd: float | None) -> None:
    """By the platform's host in any region, and the model as requests name it there; a server of one's own is none."""
    price = backend(tmp_path, f"base_url: '{url}', model: '{model}', key_env: KEY").price
    assert (None if price is None else price.input) == usd


def test_a_map_names_platforms_by_api_and_maker() -> None:
    """Bedrock's and Vertex's models are one provider's each, without the map's prefixes, commitments and regions."""
    entry = {"mode": "chat", "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}
    made = facts_from_price_map(
        {
            "us.anthropic.claude-9": {**entry, "litellm_provider": "bedrock_converse"},
            "bedrock_mantle/openai.gpt-9": {
                **entry, "litellm_provider": "bedrock_mantle", "supports_reasoning": True,
            },
            "bedrock/eu-west-1/1-month-commitment/m": {**entry, "litellm_provider": "bedrock"},
            "vertex_ai/claude-9@default": {**entry, "litellm_provider": "vertex_ai-anthropic_models"},
            "gemini-9": {**entry, "litellm_provider": "vertex_ai-language-models"},
        },
        {"a": "bedrock", "b": "vertex_ai"},
        date.today(),
        "",
    )  # fmt: skip
    assert {*made.models["bedrock"]} == {"us.anthropic.claude-9", "openai.gpt-9"}
    assert made.models["bedrock"]["openai.gpt-9"].omit
    assert {*made.models["vertex_ai"]} == {"claude-9@default", "google/gemini-9"}


def test_what_strict_apis_refuse_is_known(tmp_path: Path) -> None:
    """Groq's and Mistral's refuse fields that they do not know, whatever the model; requests that need them go on."""
    groq = backend(tmp_path, "base_url: 'https://api.groq.com/openai/v1', model: openai/gpt-oss-120b, key_env: KEY")
    assert {"logprobs", "n", "messages.reasoning_content"} <= {*groq.omit}
    assert not groq.logprobs and "n" not in groq.can
    mistral = backend(tmp_path, "base_url: 'https://api.mistral.ai/v1', model: codestral-2508, key_env: KEY")
    assert {"store", "stream_options", "messages.name", "messages.reasoning_details"} <= {*mistral.omit}
    assert mistral.rename == {"max_completion_tokens": "max_tokens", "seed": "random_seed"}
    assert mistral.can == {"n", "prompt_cache_key"}
    made = facts_from_price_map(
        {"mistral/m": {"litellm_provider": "mistral", "mode": "chat"}}, {"api.mistral.ai": "mistral"}, date.today(), ""
    )
    assert made.models["mistral"]["m"].omit == mistral.omit


@pytest.mark.parametrize(
    ("model", "lacks"),
    [
        ("gpt-4o-mini", {"reasoning_effort", "verbosity"}),
        ("gpt-4.1-2025-04-14", {"reasoning_effort", "verbosity"}),
        ("o3", {"verbosity", "temperature"}),
        ("gpt-5.4", set()),
        ("gpt-6.1-sol", {"temperature"}),
    ],
)
def test_facts_say_which_fields_a_model_takes(tmp_path: Path, model: str, lacks: set[str]) -> None:
    """An effort is none of a model that does not reason, and sampling none of one that always does."""
    omit = set(backend(tmp_path, f"base_url: '{HOSTED}', model: {model}, key_env: KEY").omit)
    assert omit & {"reasoning_effort", "verbosity", "temperature"} == lacks


def test_facts_say_which_roles_a_model_takes(tmp_path: Path) -> None:
    """OpenAI's models take any, servers of open models one system message; the config comes first."""
    assert backend(tmp_path, f"base_url: '{HOSTED}', model: nobody-knows, key_env: KEY").roles == "any"
    local = "base_url: 'http://127.0.0.1:9/v1', model: small"
    assert backend(tmp_path, local).roles == "one_system"
    assert backend(tmp_path, f"{local}, roles: any").roles == "any"


@pytest.mark.parametrize(
    ("model", "fields", "ttft_s"),
    [
        ("gpt-6-luna", {}, 0.6),
        ("gpt-6-luna", {"reasoning_effort": "high"}, 25.6),
        ("gpt-6-luna", {"reasoning": {"effort": "low"}}, 3.6),
        ("gpt-5", {}, 10.5),  # takes no sampling parameters, as it always reasons
        ("gpt-5", {"reasoning_effort": "minimal"}, 2.0),
    ],
)
def test_a_model_has_a_prior_by_its_price_and_effort(model: str, fields: dict[str, Any], ttft_s: float) -> None:
    """Effort is what counts most; what the facts say of a model itself comes before its class."""
    facts = shipped_facts().models["openai"][model]
    prior = prior_of(facts, fields)
    assert prior is not None and prior.ttft_s == pytest.approx(ttft_s)
    own = prior_of(facts.model_copy(update={"ttft": 0.2, "tpot": 0.004}), {**fields, "reasoning_effort": "none"})
    assert own is not None and (own.ttft_s, own.whole_s) == (0.2, pytest.approx(1.0))
    assert prior_of(HostedModel(), {}) is None


def test_a_budget_of_thinking_counts_by_its_half() -> None:
    """Claude's models are told how many tokens they may think, which mostly is more than they need."""
    haiku = shipped_facts().models["anthropic"]["claude-haiku-4-5"]
    prior = prior_of(haiku, {"thinking": {"type": "enabled", "budget_tokens": 2000}})
    assert prior is not None and prior.ttft_s == pytest.approx(1.0 + 15.0)


def test_prompts_are_kept_as_long_as_their_provider_says(tmp_path: Path) -> None:
    """By the host of a backend; the config's own word counts first, and of other hosts nothing is known."""

    def lifetime(base_url: str, **more: Any) -> float | None:
        backend = {"base_url": base_url, "model": "a-model", "key_env": "A_KEY", **more}
        file = tmp_path / "tierline.yaml"
        file.write_bytes(orjson.dumps({"tiers": [{"name": "one", "backends": [backend]}]}) + b"\n")
        return load_deployment(file, {"A_KEY": "sk-a-key-of-a-test"}).tiers[0].backends[0].prompt_lifetime

    assert lifetime("https://api.openai.com/v1") == lifetime("https://api.anthropic.com/v1", kind="anthropic") == 300
    assert lifetime("https://api.groq.com/openai/v1") == 7200
    assert lifetime("https://api.openai.com/v1", prompt_lifetime="1h") == 3600
    assert lifetime("http://127.0.0.1:9/v1") is None
    assert lifetime("http://127.0.0.1:9/v1", prompt_lifetime="10m") == 600
