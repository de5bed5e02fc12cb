"""What a key looks like, and how it is hashed."""

from __future__ import annotations

import hashlib
import re

from gateway.parts.access.keys.records import CONTEXT, PATTERN, digest_of, is_mistyped, new_id, new_key, secret_of


def test_a_key_is_found_by_the_pattern_and_tells_a_typing_error() -> None:
    """Any one wrong, missing or swapped character is told, without a lookup."""
    key = new_key()
    assert re.fullmatch(PATTERN, key)
    assert re.findall(PATTERN, f'export KEY="{key}"; x{key}') == [key]
    assert not is_mistyped(key.encode())
    wrong = [key[:place] + ("a" if key[place] != "a" else "b") + key[place + 1 :] for place in range(3, len(key))]
    wrong += [key[:-1], key + "a", key[:10] + key[11] + key[10] + key[12:] if key[10] != key[11] else key[:-1]]
    assert all(is_mistyped(one.encode()) for one in wrong)


def test_keys_and_ids_do_not_repeat() -> None:
    """A thousand of each differ."""
    assert len({new_key() for _ in range(1000)}) == len({new_id() for _ in range(1000)}) == 1000


def test_a_key_is_hashed_by_the_secret_and_an_imported_one_as_it_was_elsewhere() -> None:
    """Another secret gives another digest; what does not begin with `tl_` has the plain SHA-256."""
    key = new_key().encode()
    assert secret_of({}) == CONTEXT
    assert secret_of({"TIERLINE_KEY_SECRET": "pepper"}) == b"pepper"
    assert digest_of(key, b"pepper") != digest_of(key, CONTEXT)
    assert digest_of(b"sk-1234", b"pepper") == hashlib.sha256(b"sk-1234").digest()
