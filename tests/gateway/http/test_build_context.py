"""The key of the prompt cache in a client's body."""

from __future__ import annotations

from gateway.http.build_context import namespaced


def test_a_prompt_cache_key_is_the_tenants_own() -> None:
    """What two tenants call alike is another key for each, the same again for the same; the prompt is left alone."""
    body = {"prompt_cache_key": "support", "messages": [{"role": "user", "content": "hi"}]}
    ours, again, theirs = (namespaced(body, tenant) for tenant in ("ours", "ours", "theirs"))
    assert ours == again
    assert ours["prompt_cache_key"] != theirs["prompt_cache_key"] != "support"
    assert ours["messages"] is body["messages"]
    assert namespaced(body | {"prompt_cache_key": None}, "ours")["prompt_cache_key"] is None


def test_tenant_and_key_do_not_run_into_each_other() -> None:
    """`a` with `bc` is not `ab` with `c`."""
    assert namespaced({"prompt_cache_key": "bc"}, "a") != namespaced({"prompt_cache_key": "c"}, "ab")
