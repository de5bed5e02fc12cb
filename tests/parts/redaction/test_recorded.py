from __future__ import annotations

from pathlib import Path

import pytest

from gateway.telemetry import names
from policies.errors import ConfigError
from tests.gateway.telemetry.test_recorded import app_of, recorded
from tests.support.app import in_process
from tests.support.store import LocalStore
from tests.support.upstream import Upstream


async def test_a_hook_that_raises_keeps_no_text(tmp_path: Path, upstream: Upstream, store: LocalStore) -> None:
    """The record is there, and nothing of the texts."""
    async with app_of(tmp_path, upstream, store, prompts=True, redact_with="json:loads") as app:
        record = await recorded(app, await app.ask("not JSON"))
        assert not any(name in hop["attributes"] for hop in record["hops"] for name in names.TEXTS)
        assert b'reason="redaction_failed"} 1' in app.steps.metrics.render()


@pytest.mark.parametrize(
    ("telemetry", "says"),
    [
        ({"redact": ["a", "("]}, "telemetry.redact[1]: '(' is not a regular expression"),
        ({"redact_with": "html:no_such"}, "telemetry.redact_with: 'html:no_such' cannot be imported"),
    ],
)
async def test_what_cannot_redact_is_refused(
    telemetry: dict[str, object], says: str, tmp_path: Path, upstream: Upstream
) -> None:
    """At its place in the config, before anything is served."""
    with pytest.raises(ConfigError) as refused:
        async with in_process(tmp_path, upstream.url, settings={"telemetry": telemetry}):
            pass
    assert says in str(refused.value)
