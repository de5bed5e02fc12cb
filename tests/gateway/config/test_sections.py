"""The sections that parts add to the config."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.backends import TierConfig
from gateway.config.loader import load_deployment
from gateway.config.schema import Deployment
from gateway.config.sections import deployment_model, sections_of_parts
from gateway.parts.ledger.config import LedgerSections
from gateway.parts.standard import PARTS
from policies.errors import ConfigError


def test_the_list_of_parts_names_the_sections_that_their_modules_define() -> None:
    defined = [name for of in sections_of_parts() for name in of.model_fields if name not in of.resolved]
    assert defined == [name for part in PARTS for name in part.sections]


def test_the_sections_of_parts_come_behind_those_of_the_core() -> None:
    names = list(deployment_model().model_fields)
    assert names[: len(Deployment.model_fields)] == list(Deployment.model_fields)


def test_no_two_parts_have_a_section_of_one_name() -> None:
    names = [*Deployment.model_fields, *(name for part in PARTS for name in part.sections)]
    assert len(names) == len(set(names))


def test_a_loaded_config_has_the_section_of_a_part(tmp_path: Path) -> None:
    file = tmp_path / "tierline.yaml"
    file.write_text("tiers: [{name: t, backends: [{model: m}]}]\nledger: {keep: 0s}\n")
    assert load_deployment(file, {}).of(LedgerSections).ledger.keep == 0


def test_a_config_of_the_core_alone_has_no_section_of_a_part() -> None:
    tier = TierConfig.model_validate({"name": "t", "backends": [{"model": "m"}]})
    with pytest.raises(TypeError, match="no LedgerSections"):
        Deployment(tiers=(tier,)).of(LedgerSections)


def test_a_part_s_check_is_told_at_its_key(tmp_path: Path) -> None:
    file = tmp_path / "tierline.yaml"
    login = "{issuer: https://id.example, client_id: c, url: https://console.example}"
    file.write_text(f"tiers: [{{name: t, backends: [{{model: m}}]}}]\nconsole:\n  login: {login}\n")
    with pytest.raises(ConfigError) as caught:
        load_deployment(file, {})
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["console.login", "console.login.issuer"]
