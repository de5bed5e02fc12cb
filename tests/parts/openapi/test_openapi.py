"""Our own OpenAPI document: valid, of every route and no other, true of the replies; its page needs no other host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import ValidationError

from gateway.parts.services.passthrough import METHODS, PATHS, endpoint_of
from gateway.parts.services.policy import Endpoints
from gateway.request.context import REPLY_HEADERS
from gateway.request.options import REQUEST_HEADERS
from tests.gateway.http.test_api_route import admin_of
from tests.support.app import InProcess, in_process
from tests.support.upstream import Upstream

METHOD_NAMES = ("GET", "POST", "PUT", "PATCH", "DELETE")


async def documents(app: InProcess) -> tuple[dict[str, Any], dict[str, Any]]:
    """The documents of the public and of the admin port."""
    public = (await app.get("/openapi.json")).json()
    async with admin_of(app) as client:
        return public, (await client.get("/openapi.json")).json()


def operations(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


async def test_the_documents_are_valid(app: InProcess) -> None:
    for document in await documents(app):
        assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []
        assert document["openapi"] == "3.1.0"


async def test_what_is_served_is_described_and_nothing_else(app: InProcess) -> None:
    """Every described operation answers, and every other method of those paths does not."""
    public, admin = await documents(app)
    assert operations(public).isdisjoint(
        operations(admin) - {("GET", p) for p in ("/docs", "/docs.css", "/openapi.json")}
    )
    async with admin_of(app) as client:
        for document, asked in ((public, app.client), (admin, client)):
            described = operations(document)
            for path in document["paths"]:
                url = re.sub(r"{\w+}", "x", path.replace("{response_id}", "resp_x"))
                passed = endpoint_of(url) is not None
                for method in METHOD_NAMES:
                    reply = await asked.request(method, url)
                    code = reply.json()["error"]["code"] if reply.is_error else None
                    if is_described(described, method, url):
                        assert code != "method_not_supported", (method, path)
                        assert code != "unknown_url" or passed, (method, path)
                    elif not (passed and method in METHODS):
                        assert code == "method_not_supported", (method, path)


def is_described(described: set[tuple[str, str]], method: str, url: str) -> bool:
    """Whether one of the templates is this URL's, such as `/v1/responses/{response_id}`; `compact` is no id."""
    name = "(?!compact$)[^/]+"
    return any(method == other and re.fullmatch(re.sub(r"{\w+}", name, path), url) for other, path in described)


async def test_every_route_is_described(app: InProcess) -> None:
    """The 404 lists the paths of all routes, and the document has each of them."""
    public, admin = await documents(app)
    async with admin_of(app) as client:
        for document, asked in ((public, app.client), (admin, client)):
            message = (await asked.get("/no-such-thing-here")).json()["error"]["message"]
            listed = set(message.partition("described at /docs: ")[2].rstrip(".").split(", "))
            assert listed == set(document["paths"])
    assert {endpoint_of(path) for path in public["paths"]} - {None} == set(PATHS.values())


async def test_no_policy_may_pass_on_what_is_served(app: InProcess) -> None:
    """`endpoints.other` refuses every path of the document: the grammar knows them all."""
    public, _ = await documents(app)
    for path in public["paths"]:
        plain = re.sub(r"{\w+}", "x", path)
        if plain.startswith("/v1/"):
            with pytest.raises(ValidationError):
                Endpoints(other={plain: "a"})


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/chat/completion", "Do you mean /v1/chat/completions?"),
        ("/v1/embedding", "Do you mean /v1/embeddings?"),
        ("/v1/model", "Do you mean /v1/models?"),
        ("/admin/cache/stats", "The admin API has a port of its own: `admin` in the config."),
    ],
)
async def test_a_404_says_what_is_meant(app: InProcess, path: str, says: str) -> None:
    error = (await app.get(path)).json()["error"]
    assert error["code"] == "unknown_url" and says in error["message"]


async def test_replies_are_as_described(app: InProcess) -> None:
    """The bodies that were sent, the replies to them and their headers fit the document."""
    document, _ = await documents(app)
    chat = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/chat/completions", chat),
        ("POST", "/v1/completions", {"model": "chat", "prompt": ["a", "b"], "logprobs": 1}),
        ("POST", "/v1/responses", {"model": "chat", "input": "hi"}),
        ("POST", "/v1/messages", chat | {"max_tokens": 10}),
        ("POST", "/v1/messages", None),
        ("POST", "/v1/messages/count_tokens", None),
        ("POST", "/v1/embeddings", {"model": "auto", "input": ["a", "b"]}),
        ("POST", "/v1/embeddings", {"model": "auto", "input": "a", "encoding_format": "base64"}),
        ("POST", "/v1/embeddings", {"model": "auto", "input": ""}),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/chat", None),
        ("GET", "/v1/models/none", None),
        ("GET", "/health", None),
        ("GET", "/readyz", None),
        ("POST", "/v1/feedback", {"request_id": "none", "score": 1}),
        ("POST", "/v1/audio/speech", {"input": "hi"}),
    ]
    for method, path, body in asked:
        template = "/v1/models/{model}" if path.startswith("/v1/models/") else path
        operation = document["paths"][template][method.lower()]
        if body is not None and body.get("input") != "":
            check(document, operation["requestBody"]["content"]["application/json"]["schema"], body)
        reply = await app.client.request(method, path, json=body)
        described = operation["responses"]["200"]
        if reply.is_error:
            described = operation["responses"]["default"]
        check(document, described["content"]["application/json"]["schema"], reply.json())
        assert reply.headers.keys() - {"content-length", "content-type"} <= described["headers"].keys(), path


def check(document: Mapping[str, Any], schema: Mapping[str, Any], value: Any) -> None:
    """Assert that a value fits a schema of the document."""
    jsonschema_rs.validate({**schema, "components": document["components"]}, value)


async def test_the_page_needs_nothing_else(app: InProcess) -> None:
    """No script and no other host; what it links to is served; every operation and schema is on it."""
    public, admin = await documents(app)
    async with admin_of(app) as client:
        for document, asked in ((public, app.client), (admin, client)):
            reply = await asked.get("/docs")
            assert reply.headers["content-type"].startswith("text/html")
            assert reply.headers["content-security-policy"].startswith("default-src 'self';")
            assert "<script" not in reply.text and "http://" not in reply.text and "https://" not in reply.text
            for target in set(re.findall(r'(?:href|src)="([^"#]+)"', reply.text)):
                assert (await asked.get(f"/{target}")).status_code == 200, target
            anchors = set(re.findall(r'href="#([^"]+)"', reply.text))
            assert anchors <= set(re.findall(r'id="([^"]+)"', reply.text))
            for path in document["paths"]:
                assert f">{path}<" in reply.text


async def test_a_key_is_asked_for_where_there_are_tenants(local_upstream: Upstream, tmp_path: Path) -> None:
    """The document says so, and is itself readable without one."""
    (tmp_path / "acme").write_text("acme-key")
    settings = {"tenants": {"acme": {"key_file": str(tmp_path / "acme")}}}
    async with in_process(tmp_path, local_upstream.url, settings=settings) as app:
        paths = (await app.get("/openapi.json")).json()["paths"]
        assert paths["/v1/chat/completions"]["post"]["security"] == [{"key": []}, {"x-api-key": []}]
        assert "security" not in paths["/docs"]["get"]


async def test_the_documents_describe_the_headers_of_the_tables(app: InProcess) -> None:
    """Each header that has a description stands at the operations that read or send it, and no other does."""
    for document in await documents(app):
        parameters, headers = document["components"]["parameters"], document["components"]["headers"]
        assert parameters.keys() == {name.decode() for name, one in REQUEST_HEADERS.items() if one.text}
        assert headers.keys() == {name.decode() for name, one in REPLY_HEADERS.items() if one.text}
    public, _ = await documents(app)
    for tag, kinds in (("Answers", {"all", "calls", "answers"}), ("Passed on", {"all", "calls", "passed"})):
        for operation in tagged(public, tag):
            taken = {one["$ref"].rpartition("/")[2] for one in operation["parameters"] if "$ref" in one}
            assert taken == {name.decode() for name, one in REQUEST_HEADERS.items() if one.text and one.at in kinds}
            sent = operation["responses"]["200"]["headers"].keys()
            assert sent == {name.decode() for name, one in REPLY_HEADERS.items() if one.text and one.at in kinds}


def tagged(document: Mapping[str, Any], tag: str) -> Iterator[Mapping[str, Any]]:
    for methods in document["paths"].values():
        yield from (operation for operation in methods.values() if operation["tags"] == [tag])
