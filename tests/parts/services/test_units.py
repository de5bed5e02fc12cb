"""What a request to a service costs follows from its body, however it is cut into parts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.parts.services.side_exchange import Units

JSON = {b"content-type": b"application/json"}
FORM = {b"content-type": b"multipart/form-data; boundary=x"}


def units_of(endpoint: str, body: bytes, headers: dict[bytes, bytes], path: str = "/v1/images/generations") -> Units:
    units = Units(endpoint, path, headers)
    units.feed(body)
    return units


@pytest.mark.parametrize(
    ("body", "headers", "images"),
    [
        (b'{"prompt": "a", "n": 10}', JSON, 10),
        (b'{"n":3,"prompt":"\\"n\\": 9"}', JSON, 3),
        (b'{"prompt": "a"}', JSON, 1),
        (b'--x\r\nContent-Disposition: form-data; name="n"\r\n\r\n4\r\n--x--', FORM, 4),
        (b'--x\r\nContent-Disposition: form-data; name="n"\r\nContent-Type: text/plain\r\n\r\n7\r\n--x--', FORM, 7),
    ],
)
def test_images_are_counted_by_n(body: bytes, headers: dict[bytes, bytes], images: int) -> None:
    assert units_of("images", body, headers).count() == images


async def test_n_is_found_across_parts() -> None:
    """A form goes on as it comes, and is counted while it passes; until then ten images are reserved."""
    body = b'--x\r\nContent-Disposition: form-data; name="n"\r\n\r\n8\r\n--x\r\n' + b"\x89PNG" * 1000

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 7):
            yield body[at : at + 7]

    units = Units("images", "/v1/images/edits", FORM)
    assert units.most() == 10
    passed = units.of_parts(parts())
    assert isinstance(passed, AsyncIterator)
    assert b"".join([part async for part in passed]) == body
    assert units.count() == 8


def test_a_long_recording_costs_more_than_a_short_one() -> None:
    """By the MiB: its minutes are known to the service alone. Speech that is made from a text is one request."""
    upload = Units("audio", "/v1/audio/transcriptions", {**FORM, b"content-length": b"10000000"})
    assert upload.most() == 10
    assert Units("audio", "/v1/audio/transcriptions", FORM).most() == 25, "the longest that there can be"
    assert units_of("audio", bytes(3 << 20), FORM).count() == 3
    assert units_of("audio", b"{}", JSON).count() == 1


@pytest.mark.parametrize(
    ("endpoint", "path"), [("batches", "/v1/batches"), ("messages/batches", "/v1/messages/batches")]
)
def test_nobody_knows_what_a_batch_costs(endpoint: str, path: str) -> None:
    assert Units(endpoint, path, JSON).unknown
