"""Routes that generate nothing, the key, and what no route takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from http_fakes import Bench

from egress.serve.dispatch import ShardDown
from egress.serve.http import OPEN_PATHS


def test_health_is_ready() -> None:
    response = Bench().get("/health")
    assert response.status_code == 200
    assert response.json()["ready"] is True
    assert response.json()["reasons"] == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"shards": [{"index": 0, "alive": True}, {"index": 1, "alive": False}], "ready": False},
            "shard 1 does not answer",
        ),
        ({"shards": [{"index": 0, "alive": False}]}, "shard 0 does not answer"),
        ({"draining": True}, "the server is shutting down"),
        ({"ready": False}, "the server is starting"),
    ],
)
def test_health_says_why_it_is_not(change: dict[str, Any], reason: str) -> None:
    bench = Bench()
    bench.dispatch.state |= change
    response = bench.get("/health")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["ready"] is False
    assert response.json()["reasons"] == [reason]
    assert bench.get("/live").status_code == 200


def test_server_info_is_the_payload_verbatim() -> None:
    bench = Bench()
    bench.dispatch.control_answer = b' {"raw":  "\xc3\xa9" } '
    assert bench.get("/server_info").content == b' {"raw":  "\xc3\xa9" } '
    bench.get("/server_info?shard=1")
    assert bench.dispatch.controls == [("server_info", 0), ("server_info", 1)]


@pytest.mark.parametrize("shard", ["2", "-1", "x", "", "1.0", "%d9%a1", "9" * 30])
def test_server_info_of_no_shard_is_a_400(shard: str) -> None:
    bench = Bench()
    response = bench.get(f"/server_info?shard={shard}")
    assert response.status_code == 400
    assert "shard must be in [0, 1]" in response.json()["error"]["message"]
    assert bench.get("/server_info?shrad=1").status_code == 400
    assert bench.dispatch.controls == []


@pytest.mark.parametrize(("error", "status"), [(ShardDown(0), 503), (TimeoutError("no answer"), 504)])
def test_server_info_of_a_shard_that_is_away(error: Exception, status: int) -> None:
    bench = Bench()
    bench.dispatch.control_answer = error
    assert bench.get("/server_info").status_code == status


@pytest.mark.parametrize(
    "body", [{}, {"rid": ""}, {"rid": 5}, {"rid": "x", "abort_all": True}, {"rid": "x", "y": 1}]
)
def test_abort_refuses_what_names_no_request(body: Any) -> None:
    bench = Bench()
    assert bench.post("/abort_request", body).status_code == 400
    assert bench.dispatch.client_aborts == []


def test_models() -> None:
    (model,) = Bench(max_context=77).get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("m", "model", 77)
    assert Bench().get("/v1/models/m").json()["id"] == "m"
    assert Bench().get("/v1/models/a/b").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("POST", "/generate/", 404),
        ("GET", "/page/../app.py", 404),
        ("GET", "/generate", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("OPTIONS", "/v1/completions", 405),
    ],
)
def test_what_no_route_takes_is_told_in_json(method: str, path: str, status: int) -> None:
    response = asyncio.run(Bench().request(method, path))
    assert response.status_code == status
    error = response.json()["error"]
    assert error["code"] == status
    assert ("type" in error) == path.startswith("/v1/")
    if status == 405:
        assert response.headers["allow"]


KEYED = ["/v1/models", "/metrics", "/server_info", "/nothing"]


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "secret",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic secret",
        "Bearer secret2",
        "Bearer \xe9",
    ],
)
def test_everything_but_probes_and_the_page_needs_the_key(given: str | None) -> None:
    bench = Bench(api_key="secret")
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    for path in KEYED:
        response = bench.get(path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
    for path in ("/generate", "/abort_request", "/v1/completions", "/v1/chat/completions"):
        assert bench.post(path, {}, headers=headers).status_code == 401
    for path in sorted(OPEN_PATHS):
        assert bench.get(path, headers=headers).status_code == 200
    assert bench.asked == []


@pytest.mark.parametrize("given", ["Bearer secret", "bearer secret", "Bearer  secret"])
def test_the_key_opens(given: str) -> None:
    bench = Bench(api_key="secret")
    for path in KEYED[:3]:
        assert bench.get(path, headers={"Authorization": given}).status_code == 200


def test_page_is_served_without_anything_from_elsewhere() -> None:
    bench = Bench()
    page = bench.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "//" not in page.text.replace("<!doctype html>", "").replace("://", "")
    for name, kind in (("page.js", "text/javascript"), ("page.css", "text/css")):
        assert f"/page/{name}" in page.text
        file = bench.get(f"/page/{name}")
        assert file.headers["content-type"].startswith(kind)
        assert len(file.content) > 200


def test_metrics_show_what_was_answered() -> None:
    bench = Bench()
    bench.post("/generate", {"text": "p"})
    bench.post("/generate", {})
    bench.get("/nothing")
    response = bench.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in (
        'egress_http_requests_total{code="200",route="/generate"} 1.0',
        'egress_http_requests_total{code="400",route="/generate"} 1.0',
        'egress_http_requests_total{code="404",route="other"} 1.0',
        'egress_request_success_total{finished_reason="stop"} 1.0',
        "egress_time_to_first_token_seconds_count 1.0",
        "egress_e2e_request_latency_seconds_count 1.0",
        "egress_calls_open 0.0",
    ):
        assert line in response.text.splitlines()
    # Twelve tokens came, however many at once; the first has no gap before it.
    assert bench.count("egress_inter_token_latency_seconds_count") <= 12
