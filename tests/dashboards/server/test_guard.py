"""Who may ask: each refusal with the smallest difference to what is answered."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from flask import Flask

from perfscope.dashboards.server.guard import COOKIE, MOST_BODY_BYTES, MOST_QUERY, Guard, hosts_of, new_token

TOKEN = "0123456789abcdef0123456789abcdef"


def _client(
    token: str | None = TOKEN, *, base_path: str = "/", host: str = "127.0.0.1", more: tuple[str, ...] = ()
) -> Any:
    server = Flask("test")

    @server.route("/", methods=["GET", "POST"])
    @server.route("/page", methods=["GET", "POST"])
    def page() -> str:
        from flask import request

        request.get_data()
        return "told"

    Guard(token=token, hosts=hosts_of(host, more), base_path=base_path).install(server)
    return server.test_client()


def _get(client: Any, path: str = "/page", **headers: str) -> Any:
    return client.get(path, headers={"Host": "127.0.0.1:8765", **headers})


def test_without_a_token_nothing_is_told() -> None:
    answer = _get(_client())
    assert answer.status_code == HTTPStatus.UNAUTHORIZED
    assert b"told" not in answer.data


def test_the_token_opens_a_session_and_leaves_the_address() -> None:
    client = _client()
    answer = _get(client, f"/page?token={TOKEN}&run=a%20b")
    assert answer.status_code == HTTPStatus.FOUND
    assert answer.headers["Location"] == "/page?run=a+b"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert _get(client).data == b"told"


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "0", "\u00e4", "null"])
def test_another_token_opens_nothing(wrong: str) -> None:
    client = _client()
    assert _get(client, f"/page?token={wrong}").status_code == HTTPStatus.UNAUTHORIZED
    assert (
        _get(client, Authorization=f"Bearer {wrong}".encode().decode("latin-1")).status_code == HTTPStatus.UNAUTHORIZED
    )
    client.set_cookie(COOKIE, wrong)
    assert _get(client).status_code == HTTPStatus.UNAUTHORIZED


def test_a_script_may_send_it_as_a_header() -> None:
    assert _get(_client(), Authorization=f"Bearer {TOKEN}").data == b"told"


def test_an_address_that_leads_elsewhere_is_not_followed() -> None:
    answer = _get(_client(), f"//evil.example/?token={TOKEN}")
    assert not answer.headers.get("Location", "/").startswith("//")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8765", "0.0.0.0:8765", "localhost.evil:80", "10.0.0.7"]
)
def test_another_name_is_refused_even_with_the_token(host: str) -> None:
    answer = _client().get("/page", headers={"Host": host, "Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "LOCALHOST", "gpu7.lab:443"])
def test_its_own_names_are_answered(host: str) -> None:
    client = _client(more=("gpu7.lab",))
    assert client.get("/page", headers={"Host": host, "Authorization": f"Bearer {TOKEN}"}).data == b"told"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://localhost"])
def test_another_page_cannot_change_anything(origin: str) -> None:
    headers = {"Host": "127.0.0.1:8765", "Authorization": f"Bearer {TOKEN}", "Origin": origin}
    assert _client().post("/page", headers=headers).status_code == HTTPStatus.FORBIDDEN


def test_its_own_page_can() -> None:
    headers = {"Host": "127.0.0.1:8765", "Authorization": f"Bearer {TOKEN}", "Origin": "http://127.0.0.1:8765"}
    assert _client().post("/page", headers=headers).data == b"told"


def test_large_requests_are_refused() -> None:
    client = _client()
    headers = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}"}
    answer = client.post("/page", data=b"x" * (MOST_BODY_BYTES + 1), headers=headers)
    assert answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert client.get(f"/page?x={'y' * MOST_QUERY}", headers=headers).status_code == HTTPStatus.REQUEST_URI_TOO_LONG


def test_every_answer_carries_the_policy() -> None:
    for answer in (_get(_client()), _get(_client(None))):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe-eval" not in policy
        assert "script-src 'self'" in policy
        assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_tokens_differ_and_are_long() -> None:
    made = {new_token() for _ in range(50)}
    assert len(made) == 50
    assert min(map(len, made)) >= 32


def test_a_server_on_all_interfaces_is_not_known_as_such() -> None:
    assert "0.0.0.0" not in hosts_of("0.0.0.0")
    assert "10.0.0.7" in hosts_of("10.0.0.7")
