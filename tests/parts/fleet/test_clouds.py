"""Identities of clouds: what is signed is let in by servers that check as the providers do, whole and streamed.

The providers' libraries find the credentials where they would in production: a container's endpoint, the key file of a
service account, the token file of a pod. Every call goes over a real socket, by both transports.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.base import Backend, BackendRequest, BadStatus, InvalidReply
from gateway.config.sections import deployment_model
from gateway.parts.apis.service import ServiceClient
from gateway.parts.fleet.clouds import FramedStream, identity_for
from gateway.tiers.endpoint import Endpoint
from gateway.tiers.tier import build_tiers, endpoints_of
from tests.support.app import in_process
from tests.support.clouds import Azure, Bedrock, Vertex, frame
from tests.support.gateway import CHAT
from tests.support.strict_messages import events_of, text, thinking, tool_use
from tests.support.tls import make_certificate, tls_front
from tests.support.upstream import Reply
from tests.support.wait import SLACK, eventually

BODY: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
ON_BEDROCK = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
ON_VERTEX = "claude-haiku-4-5@20251001"
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": ON_BEDROCK,
    "content": [text("Well.")],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "stop_details": None,
    "container": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
CLIENTS = pytest.mark.parametrize("client", ["http1", "httpx2"])


@pytest.fixture(scope="module")
def aws_cloud() -> Iterator[Bedrock]:
    with Bedrock() as server:
        yield server


@pytest.fixture(scope="module")
def google_cloud() -> Iterator[Vertex]:
    with Vertex() as server:
        yield server


@pytest.fixture(scope="module")
def azure_cloud() -> Iterator[Azure]:
    with Azure() as server:
        yield server


@pytest.fixture
def aws(aws_cloud: Bedrock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bedrock:
    """Bedrock, for a container that has a role there."""
    aws_cloud.reset()
    aws_cloud.skew_s, aws_cloud.broken_after = 0.0, None
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", aws_cloud.credentials_url)
    return aws_cloud


@pytest.fixture
def google(google_cloud: Vertex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Vertex:
    """Vertex, for whoever has the key of a service account."""
    google_cloud.reset()
    file = tmp_path / "account.json"
    file.write_text(google_cloud.account_file())
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    return google_cloud


@pytest.fixture
async def azure(azure_cloud: Azure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Azure]:
    """Azure, for a pod with a workload identity."""
    azure_cloud.reset()
    file, certificate = tmp_path / "token", make_certificate(tmp_path)
    file.write_text(azure_cloud.federated_token())
    for name in ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TENANT_ID", azure_cloud.TENANT)
    monkeypatch.setenv("AZURE_CLIENT_ID", azure_cloud.CLIENT)
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(file))
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "workloadidentitycredential")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    async with tls_front(certificate, azure_cloud.port) as port:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", f"https://localhost:{port}")
        yield azure_cloud


@asynccontextmanager
async def endpoint_of(**config: Any) -> AsyncIterator[Endpoint]:
    """The endpoint that a worker makes of a backend's config."""
    deployment = deployment_model().model_validate({"tiers": [{"name": "cloud", "backends": [config]}]})
    [endpoint] = endpoints_of(build_tiers(deployment, lambda *_: None)).values()
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


def bedrock(cloud: Bedrock, path: str = "", client: str = "http1", **config: Any) -> Any:
    """Claude on Bedrock."""
    config = {"kind": "anthropic", "model": ON_BEDROCK, "auth": {"kind": "aws", "region": cloud.REGION}, **config}
    return endpoint_of(base_url=f"{cloud.origin}{path}", http={"client": client}, **config)


def vertex(cloud: Vertex, path: str = "", client: str = "http1", **config: Any) -> Any:
    """Claude on Vertex."""
    config = {"kind": "anthropic", "model": ON_VERTEX, "auth": {"kind": "google"}, **config}
    return endpoint_of(base_url=f"{cloud.origin}{cloud.PROJECT}{path}", http={"client": client}, **config)


def asked(**body: Any) -> BackendRequest:
    return BackendRequest({**BODY, **body}, ask_logprobs=False, traceparent=f"00-{'1' * 32}-{'2' * 16}-01")


async def whole(backend: Backend, **body: Any) -> dict[str, Any]:
    return (await backend.complete(asked(**body))).value


async def streamed(backend: Backend, **body: Any) -> list[dict[str, Any]]:
    """All chunks of a stream, which must come to its end."""
    stream = await backend.stream(asked(**body))
    try:
        chunks = [event.value async for event in _events(stream)]
        assert stream.done_seen
    finally:
        stream.close()
    return chunks


async def _events(stream: Any) -> AsyncIterator[Any]:
    while events := await stream.read():
        for event in events:
            yield event


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


# --- Bedrock ----------------------------------------------------------------------------------------------------------


@CLIENTS
async def test_claude_on_bedrock(aws: Bedrock, client: str) -> None:
    """With thinking, a tool and the prompt cache's counts; the model stands in the URL, percent-encoded and signed."""
    async with bedrock(aws, client=client) as endpoint:
        aws.say(thinking("let me see"), text("Here: "), tool_use("look", {"at": "map"}, "toolu_1"))
        answer = await whole(endpoint.backend, tools=[LOOK])
        chunks = await streamed(endpoint.backend, tools=[LOOK])
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Here: ", "let me see")
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"map"}'}
    assert text_of(chunks) == "Here: "
    for usage in answer["usage"], chunks[-1]["usage"]:
        assert usage["prompt_tokens"] == 23
        assert usage["prompt_tokens_details"]["cached_tokens"] == 7
    assert aws.refused == []
    assert {request.path.split("/")[2] for request in aws.requests} == {ON_BEDROCK.replace(":", "%3A")}


@CLIENTS
@pytest.mark.parametrize("model", ["arn:aws:bedrock:eu-west-7:123456789012:inference-profile/one", "a b/ü~@'(c)"])
async def test_a_model_is_signed_as_it_is_sent(aws: Bedrock, client: str, model: str) -> None:
    """Whatever is in its name: what goes over the wire is what was signed, and the server reads the very name."""
    async with bedrock(aws, client=client, model=model) as endpoint:
        assert (await whole(endpoint.backend))["model"] == model
        assert text_of(await streamed(endpoint.backend))
    assert aws.refused == []


@CLIENTS
async def test_openais_api_on_bedrock(aws: Bedrock, client: str) -> None:
    config = {"kind": "openai", "model": "openai.gpt-oss-120b-1:0"}
    async with bedrock(aws, "/openai/v1", client=client, **config) as endpoint:
        assert (await whole(endpoint.backend))["choices"][0]["message"]["content"]
        assert text_of(await streamed(endpoint.backend))
    assert aws.refused == []
    assert {request.headers.get("traceparent", "")[:2] for request in aws.requests} == {"00"}


async def test_anthropics_own_api_on_bedrock(aws: Bedrock) -> None:
    """A base URL with a path is not `invoke`: the body has its model, and streams are server-sent events."""
    async with bedrock(aws, "/anthropic") as endpoint:
        assert (await whole(endpoint.backend))["model"] == ON_BEDROCK
        assert text_of(await streamed(endpoint.backend))
    assert aws.refused == []


@pytest.mark.parametrize("source", ["environment", "profile", "web identity", "machine"])
async def test_where_credentials_of_aws_are_found(
    aws: Bedrock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    """Where every tool of AWS finds them; the other tests have a container's."""
    monkeypatch.delenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    auth = {"kind": "aws", "region": aws.REGION}
    if source == "environment":
        made = aws.issue()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", made["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", made["SecretAccessKey"])
        monkeypatch.setenv("AWS_SESSION_TOKEN", made["Token"])
    elif source == "profile":
        made = aws.issue()
        keys = f"aws_access_key_id={made['AccessKeyId']}\naws_secret_access_key={made['SecretAccessKey']}\n"
        (tmp_path / "credentials").write_text(f"[team]\n{keys}aws_session_token={made['Token']}\n")
        (tmp_path / "config").write_text(f"[profile team]\nregion={aws.REGION}\n")
        auth = {"kind": "aws", "profile": "team"}
    elif source == "web identity":
        (tmp_path / "token").write_text(aws.web_identity.assertion(sub="gateway", aud="sts.amazonaws.com"))
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/gateway")
        monkeypatch.setenv("AWS_REGION", aws.REGION)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws.origin)
        auth = {"kind": "aws"}
    else:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", aws.origin)
    async with bedrock(aws, auth=auth) as endpoint:
        assert await whole(endpoint.backend)
    assert aws.refused == []
    assert len(aws.issued) == 1


async def test_a_region_that_nobody_names(aws: Bedrock) -> None:
    """No request can be signed, and the error says what is missing."""
    async with bedrock(aws, auth={"kind": "aws"}) as endpoint:
        with pytest.raises(BadStatus) as refused:
            await whole(endpoint.backend)
    assert refused.value.blame == "key"
    assert "no region" in str(refused.value.told["message"])


async def test_a_large_request_is_signed_too(aws: Bedrock) -> None:
    async with bedrock(aws) as endpoint:
        assert await whole(endpoint.backend, messages=[{"role": "user", "content": "много " * 100_000}])
    assert aws.refused == []


@pytest.mark.parametrize("fragment", [7, 100])
async def test_frames_that_come_in_pieces(aws: Bedrock, fragment: int) -> None:
    """A frame may be cut anywhere, and several may come at once."""
    events = b"".join(
        frame({"bytes": base64.b64encode(json.dumps(one).encode()).decode()}) for one in events_of(MESSAGE)
    )
    framed = {"content-type": "application/vnd.amazon.eventstream"}
    async with bedrock(aws) as endpoint:
        aws.queue(Reply(body=events, headers=framed, fragment=fragment))
        assert text_of(await streamed(endpoint.backend)) == "Well."
        aws.queue(Reply(body=events[:-9] + b"x" + events[-8:], headers=framed))
        with pytest.raises(InvalidReply, match="frames"):
            await streamed(endpoint.backend)
        aws.queue(Reply(body=events[:-9], headers=framed))
        with pytest.raises(AssertionError):
            await streamed(endpoint.backend)


async def test_a_stream_that_bedrock_breaks(aws: Bedrock) -> None:
    """An exception among the frames is what its status would have been, by the table of blame."""
    async with bedrock(aws) as endpoint:
        aws.broken_after = "throttlingException"
        with pytest.raises(BadStatus) as broken:
            await streamed(endpoint.backend)
    assert (broken.value.status, broken.value.blame) == (429, "pause")


@pytest.mark.parametrize("payload", [[], "text", 5, None, {"bytes": 5}, {"bytes": "!"}])
@pytest.mark.parametrize("more", [{}, {":exception-type": "throttlingException"}])
async def test_a_frame_that_is_none_of_theirs(payload: Any, more: dict[str, str]) -> None:
    """Is an invalid reply or nothing, never a bug of ours."""

    class _One:
        status = 200
        parts = iter((frame(payload, **more), b""))

        async def chunk(self) -> bytes:
            return next(self.parts)

        def close(self) -> None:
            """See `Response.close`."""

    stream = FramedStream(_One())  # type: ignore[arg-type]
    with contextlib.suppress(InvalidReply):
        await stream.read()


@pytest.mark.parametrize(
    ("status", "kind", "message", "blame"),
    [
        (400, "ValidationException", "Malformed input request", "unknown"),
        (400, "ValidationException", "The provided model identifier is invalid.", "model"),
        (400, "ValidationException", "Invocation of model ID x with on-demand throughput isn't supported.", "model"),
        (400, "ServiceQuotaExceededException", "You have exceeded your quota.", "account"),
        (403, "AccessDeniedException", "User is not authorized to perform: bedrock:InvokeModel", "key"),
        (403, "AccessDeniedException", "You don't have access to the model with the specified model ID.", "model"),
        (404, "ResourceNotFoundException", "This model version has reached the end of its life.", "model"),
        (408, "ModelTimeoutException", "The model took too long.", "server"),
        (424, "ModelErrorException", "The model failed.", "server"),
        (429, "ThrottlingException", "Too many requests, please wait before trying again.", "pause"),
        (429, "ModelNotReadyException", "The model is not ready for inference.", "pause"),
        (400, "ValidationException", "Input is too long for requested model.", "unfit"),
        (500, "InternalServerException", "", "server"),
    ],
)
async def test_whose_fault_a_refusal_is(aws: Bedrock, status: int, kind: str, message: str, blame: str) -> None:
    """AWS names the kind of an error in a header, which is read beside its words."""
    headers = {"x-amzn-ErrorType": f"{kind}:http://internal.amazon.com/"}
    async with bedrock(aws) as endpoint:
        aws.queue(Reply(status=status, body=json.dumps({"message": message}).encode(), headers=headers))
        with pytest.raises(BadStatus) as refused:
            await whole(endpoint.backend)
    assert (refused.value.status, refused.value.blame) == (status, blame)


async def test_the_scripted_bedrock_is_one_to_its_own_client(aws: Bedrock) -> None:
    """AWS's client for it signs as the server checks, and reads the frames that it sends."""
    from botocore.session import Session

    asked = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": BODY["messages"]}

    def call() -> tuple[bytes, list[Any]]:
        client = Session().create_client("bedrock-runtime", region_name=aws.REGION, endpoint_url=aws.origin)
        said = {"modelId": ON_BEDROCK, "body": json.dumps(asked)}
        events = [json.loads(one["chunk"]["bytes"]) for one in client.invoke_model_with_response_stream(**said)["body"]]
        return client.invoke_model(**said)["body"].read(), events

    message, events = await asyncio.to_thread(call)
    assert json.loads(message)["content"][0]["text"] == "The scripted Claude says hello."
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    assert aws.refused == []


@pytest.mark.parametrize("wrong", ["region", "clock", "session"])
async def test_a_wrong_signature_is_refused(aws: Bedrock, wrong: str) -> None:
    """The server does check: another region, another time and a missing session token are refused."""
    auth = {"kind": "aws", "region": "us-east-1" if wrong == "region" else aws.REGION}
    async with bedrock(aws, auth=auth) as endpoint:
        aws.skew_s = 900.0 if wrong == "clock" else 0.0
        if wrong == "session":
            await eventually_held(endpoint)
            for one in aws.issued.values():
                one.session = "another"
        with pytest.raises(BadStatus) as refused:
            await whole(endpoint.backend)
    assert (refused.value.status, refused.value.blame) == (403, "key")


async def eventually_held(endpoint: Endpoint) -> None:
    assert endpoint.identity is not None
    await endpoint.identity.renew()


async def test_what_was_refused_is_renewed(aws: Bedrock) -> None:
    """Credentials that were revoked are looked for anew, without a restart."""
    async with bedrock(aws) as endpoint:
        await whole(endpoint.backend)
        aws.issued.clear()
        with pytest.raises(BadStatus):
            await whole(endpoint.backend)
        await eventually(lambda: aws.issued, 5, "new credentials")
        assert endpoint.identity is not None
        await endpoint.identity.renew()
        assert await whole(endpoint.backend)


# --- Vertex and Azure -------------------------------------------------------------------------------------------------


@CLIENTS
async def test_claude_on_vertex(google: Vertex, client: str) -> None:
    async with vertex(google, client=client) as endpoint:
        google.say(text("Here: "), tool_use("look", {"at": "map"}, "toolu_1"))
        answer = await whole(endpoint.backend, tools=[LOOK])
        assert text_of(await streamed(endpoint.backend, tools=[LOOK])) == "Here: "
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 7
    assert google.refused == []
    assert f"/models/{ON_VERTEX}:" in google.requests[0].path
    assert len(google.issued) == 1, "one token for all calls"


async def test_workload_identity_on_vertex(google: Vertex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token of the cluster's is exchanged for one of Google's."""
    file = tmp_path / "federation.json"
    file.write_text(google.federation_file(tmp_path / "token"))
    (tmp_path / "token").write_text(google.key.assertion(sub="gateway", aud="pool"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    async with vertex(google) as endpoint:
        assert await whole(endpoint.backend)
    assert google.refused == []
    assert next(iter(google.issued)).startswith("ya29.f.")


async def test_openais_api_on_vertex(google: Vertex) -> None:
    config = {"kind": "openai", "model": "google/gemini-2.5-flash"}
    async with vertex(google, "/endpoints/openapi", **config) as endpoint:
        assert (await whole(endpoint.backend))["choices"][0]["message"]["content"]
        assert text_of(await streamed(endpoint.backend))
    assert google.refused == []


@CLIENTS
async def test_azure_by_workload_identity(azure: Azure, client: str) -> None:
    config = {"base_url": f"{azure.origin}/openai/v1", "model": "gpt-6-luna", "auth": {"kind": "entra"}}
    async with endpoint_of(**config, http={"client": client}) as endpoint:
        assert (await whole(endpoint.backend))["choices"][0]["message"]["content"]
        assert text_of(await streamed(endpoint.backend))
    assert azure.refused == []
    assert "api-key" not in azure.requests[0].headers


async def test_claude_in_azures_foundry(azure: Azure, tmp_path: Path) -> None:
    """By Anthropic's own API with a token, which its counter of tokens takes too; /readyz knows of services' tokens."""
    url = f"{azure.origin}/anthropic"
    foundry = {"kind": "anthropic", "base_url": url, "model": "claude-haiku-5-5", "auth": {"kind": "entra"}}
    settings = {
        "tiers": [{"name": "local", "backends": [foundry]}],
        "services": {"audio": {"base_url": f"{azure.origin}/openai/v1", "auth": {"kind": "entra"}}},
    }
    policy = CHAT.replace("tiers: [local, hosted]", "tiers: [local]")
    async with in_process(tmp_path, "", settings=settings, policies={"chat": policy}) as app:
        answer = (await app.ask()).json()
        assert answer["choices"][0]["message"]["content"]
        asked = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
        counted = await app.client.post("/v1/messages/count_tokens", json=asked)
        assert counted.json()["input_tokens"]
        assert "x-tierline-estimated" not in counted.headers
        assert azure.refused == []
        azure.failing = True
        service = app.service("audio").identity
        assert service is not None
        await service.renew()
        degraded = (await app.get("/readyz")).json()["degraded"]
    assert any(one.startswith("service audio: credentials cannot be renewed: Entra: ") for one in degraded), degraded


async def test_a_service_by_an_identity(azure: Azure) -> None:
    """Embeddings, audio and the like are sent the token too."""
    client = ServiceClient(
        f"{azure.origin}/openai/v1",
        None,
        max_in_flight=4,
        max_reply=1 << 20,
        connect_timeout_s=1,
        idle_timeout_s=5,
        identity=identity_for({"kind": "entra"}),
    )
    try:
        reply = await client.send("GET", "/models", {})
        assert (await reply.read()).startswith(b'{"object": "list"')
        reply.close()
    finally:
        await client.aclose()
    assert azure.refused == []


# --- renewal ----------------------------------------------------------------------------------------------------------


async def test_tokens_are_renewed_before_they_end(google: Vertex) -> None:
    """Under load, over two lives of a token, no call is refused and none waits for a renewal."""
    google.life_s = 2.0
    slowest = 0.0
    async with vertex(google) as endpoint:
        await whole(endpoint.backend)

        async def call() -> None:
            nonlocal slowest
            began = time.monotonic()
            await whole(endpoint.backend)
            slowest = max(slowest, time.monotonic() - began)

        began = time.monotonic()
        while time.monotonic() < began + 3.5 or (len(google.issued) < 3 and time.monotonic() < began + 3.5 * SLACK):
            await asyncio.gather(call(), call(), call())
            await asyncio.sleep(0.02)
        took_s = time.monotonic() - began
    assert google.refused == []
    assert 3 <= len(google.issued) <= 1.5 * took_s
    assert all(one.used for one in list(google.issued.values())[:-1])
    assert slowest < SLACK / 4


async def test_credentials_of_a_role_are_renewed_before_they_end(aws: Bedrock) -> None:
    """botocore renews them when it is asked, which it is in time."""
    aws.life_s = 3.0
    async with bedrock(aws) as endpoint:
        began = time.monotonic()
        while time.monotonic() < began + 4.0 or (len(aws.issued) < 3 and time.monotonic() < began + 4.0 * SLACK):
            await whole(endpoint.backend)
            await asyncio.sleep(0.05)
    assert aws.refused == []
    assert len(aws.issued) > 2


async def test_one_renewal_at_a_time(google: Vertex) -> None:
    """Twenty first calls wait for one fetch."""
    async with vertex(google) as endpoint:
        await asyncio.gather(*(whole(endpoint.backend) for _ in range(20)))
    assert len(google.issued) == 1


async def test_a_token_is_used_while_it_holds(google: Vertex, caplog: pytest.LogCaptureFixture) -> None:
    """If no new one can be had, the old one serves on; once that has ended, the call is refused, with the reason."""
    google.life_s = 2.0
    async with vertex(google) as endpoint:
        await whole(endpoint.backend)
        google.failing = True
        assert endpoint.identity is not None
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: endpoint.identity.failure, 5, "a renewal that fails")
        assert await whole(endpoint.backend)
        await asyncio.sleep(2.0)
        with pytest.raises(BadStatus, match="401") as refused:
            await whole(endpoint.backend)
        assert refused.value.blame == "key"
        assert "Google" in str(refused.value.told["message"])
        google.failing = False
        await eventually(lambda: not endpoint.identity.failure, 10, "a renewal that succeeds")
        assert await whole(endpoint.backend)
    assert not any(token in caplog.text for token in google.issued)


async def test_no_credentials_at_all(aws: Bedrock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the endpoint's to tell, and the error is that of a key which is refused."""
    monkeypatch.delenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    async with bedrock(aws) as endpoint:
        with pytest.raises(BadStatus) as refused:
            await whole(endpoint.backend)
        assert refused.value.blame == "key"
        assert endpoint.identity is not None
        assert endpoint.identity.failure.startswith("AWS: none in the environment")
    assert aws.requests == []


async def test_a_secret_that_is_quoted_is_not_told(google: Vertex) -> None:
    """The server quotes the refused token in its error; nobody reads it there."""
    config: dict[str, Any] = {"base_url": f"{google.origin}/v1", "model": "m", "auth": {"kind": "google"}}
    async with endpoint_of(**config) as endpoint:
        await whole(endpoint.backend)
        [token] = google.issued
        google.issued.clear()
        with pytest.raises(BadStatus) as refused:
            await whole(endpoint.backend)
    assert token in google.refused[0]
    assert token.encode() not in refused.value.body


async def test_closing_ends_the_renewals(google: Vertex) -> None:
    google.life_s = 1.0
    async with vertex(google) as endpoint:
        await whole(endpoint.backend)
    issued = len(google.issued)
    await asyncio.sleep(1.5)
    assert len(google.issued) == issued


def test_an_identity_is_shared() -> None:
    """Backends with equal `auth` have one identity, whose credentials are fetched once."""
    url = "https://bedrock-runtime.eu-west-1.amazonaws.com"
    backends = [
        {"name": name, "model": "m", "base_url": url, "auth": {"kind": "aws", "region": region}}
        for name, region in (("a", "x"), ("b", "x"), ("c", "y"))
    ]
    deployment = deployment_model().model_validate({"tiers": [{"name": "cloud", "backends": backends}]})
    a, b, c = endpoints_of(build_tiers(deployment, lambda *_: None)).values()
    assert a.identity is b.identity
    assert a.identity is not c.identity
