"""The HTTP of a code host: what is repeated, what is not, and where the token goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.code_hosts import client as client_module
from perfscope.plugins.code_hosts.client import Client, HostError, HostTroubleError, check_address, checked_token
from perfscope.plugins.code_hosts.github import Run, read_event
from tests.plugins.code_hosts.fake_api import TOKEN, Answer, Fake, RecordedRequest, serve_fake


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serve_fake() as running:
        yield running


def client(fake: Fake, slept: list[float] | None = None) -> Client:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    pause = (lambda seconds: None) if slept is None else slept.append
    return Client(host="GitHub", base=fake.base, headers=headers, missing={403: "a permission"}, sleep=pause)


def always(status: int, **headers: str) -> Any:
    def answer(_: RecordedRequest) -> Answer:
        return status, {"message": "no luck"}, {name.replace("_", "-"): value for name, value in headers.items()}

    return answer


@pytest.mark.parametrize(
    "address",
    [
        "http://api.github.com",
        "http://localhost:80",
        "http://127.0.0.1.example.org",
        "https://user:secret@api.github.com",
        "https://",
        "ftp://127.0.0.1",
        "https://host/?a=b",
        "https://host:port",
        "",
    ],
)
def test_the_token_goes_over_https_or_stays_on_this_machine(address: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_address(address)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "address", ["https://api.github.com", "https://host/api/v3", "http://127.0.0.1:9", "http://[::1]"]
)
def test_addresses_that_are_fine(address: str) -> None:
    check_address(address)


def test_a_token_cannot_carry_a_header() -> None:
    assert checked_token("abc\n", "TOKEN") == "abc"
    for wrong in ("abc\r\nX-Admin: 1", "a b", "ключ", "a\x00b"):
        with pytest.raises(UsageError, match="TOKEN: ") as raised:
            checked_token(wrong, "TOKEN")
        assert wrong not in str(raised.value)


def test_a_redirect_is_told_and_not_followed(fake: Fake) -> None:
    with serve_fake() as elsewhere:
        for method in ("GET", "POST"):
            fake.broken = [always(307, Location=f"{elsewhere.base}/caught")]
            with pytest.raises(HostError, match=r"307 \(moved to .*not followed"):
                client(fake).request(method, "/graphql", payload=None if method == "GET" else {}, again=True)
        assert elsewhere.seen == []
    assert len(fake.seen) == 2


def test_what_broke_is_repeated_only_where_that_does_no_harm(fake: Fake) -> None:
    slept: list[float] = []
    fake.broken = [always(502), always(500)]
    reply = client(fake, slept).request("POST", "/graphql", payload={"query": "query { viewer { login } }"}, again=True)
    assert reply.value["data"]
    assert (len(fake.seen), slept) == (3, [1.0, 2.0])

    fake.broken = [always(502)]
    with pytest.raises(HostTroubleError, match=r"GitHub: POST /graphql: 502 \(no luck\)"):
        client(fake, slept).request("POST", "/graphql", payload={}, again=False)
    assert len(fake.seen) == 4

    fake.broken = [always(503)] * 9
    with pytest.raises(HostTroubleError, match="503"):
        client(fake, slept).request("GET", "/user", again=True)
    assert len(fake.broken) == 9 - client_module.MOST_TRIES


def test_a_limit_of_requests_is_waited_for_within_bounds(fake: Fake) -> None:
    slept: list[float] = []
    fake.broken = [always(403, Retry_After="7"), always(429)]
    with pytest.raises(HostError, match="404"):  # what it answers in the end
        client(fake, slept).request("POST", "/nowhere", payload={}, again=False)
    assert slept == [7.0, 60.0]

    slept.clear()
    fake.broken = [always(403, X_RateLimit_Remaining="0", X_RateLimit_Reset="99999999999")]
    with pytest.raises(HostError, match="too many requests; wait"):
        client(fake, slept).request("GET", "/user", again=True)
    assert slept == []


def test_a_refusal_says_what_is_missing(fake: Fake) -> None:
    fake.broken = [always(403)]
    with pytest.raises(HostError, match=r"GitHub: GET /user: 403 \(no luck\): a permission") as raised:
        client(fake).request("GET", "/user", again=True)
    assert len(fake.seen) == 1
    assert TOKEN not in str(raised.value)
    assert TOKEN not in repr(client(fake))


@pytest.mark.parametrize("answer", [b"<html>", b"[" * 100_000, b"{"])
def test_an_answer_that_is_no_json(fake: Fake, answer: bytes) -> None:
    fake.broken = [lambda _: (200, answer, {})]
    with pytest.raises(HostError, match="not JSON"):
        client(fake).request("GET", "/user", again=True)


@pytest.mark.parametrize("answer", [{"message": "hello"}, ["a"], 3, None])
def test_a_list_that_is_none(fake: Fake, answer: Any) -> None:
    fake.broken = [lambda _: (200, answer, {})]
    with pytest.raises(HostError, match="does not match its documentation"):
        list(client(fake).rows("/repos"))


def test_a_huge_answer_is_not_read(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MOST_BYTES", 1000)
    fake.broken = [lambda _: (200, b"1" * 1001, {})]
    with pytest.raises(HostError, match="larger than"):
        client(fake).request("GET", "/user", again=True)


def test_a_slow_answer_is_given_up(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_SECONDS", -1.0)
    with pytest.raises(HostTroubleError, match="took longer"):
        client(fake).request("POST", "/graphql", payload={"query": "query { viewer { login } }"}, again=False)


def test_pages_are_counted_without_the_link_header_too(fake: Fake) -> None:
    """A proxy may drop it; the links themselves are never followed."""
    pages = [[{"id": at} for at in range(100)], [{"id": 100}]]
    fake.broken = [lambda _: (200, pages[0], {}), lambda _: (200, pages[1], {})]
    assert len(list(client(fake).rows("/rows"))) == 101
    assert [one.query["page"] for one in fake.seen] == ["1", "2"]

    fake.broken = [
        lambda _: (200, [], {"Link": '<https://elsewhere.example/?page=9>; rel="next"'}),
        lambda _: (200, [{"id": 1}], {"Link": '<https://elsewhere.example/?page=1>; rel="prev"'}),
    ]
    assert len(list(client(fake).rows("/rows"))) == 1


def test_a_list_without_end_is_an_error(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MOST_PAGES", 2)
    fake.broken = [lambda _: (200, [{}], {"Link": '<x>; rel="next"'})] * 3
    with pytest.raises(HostError, match="more than 200 rows"):
        list(client(fake).rows("/rows"))


def test_no_server_at_all() -> None:
    with serve_fake() as gone:
        base = gone.base
    with pytest.raises(HostTroubleError, match="no answer"):
        Client(host="GitHub", base=base, headers={}, sleep=lambda _: None).request("GET", "/user", again=True)


def test_this_machine_is_not_asked_through_a_proxy(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_fake() as proxy:
        monkeypatch.setenv("http_proxy", proxy.base)
        monkeypatch.delenv("no_proxy", raising=False)
        client(fake).request("POST", "/graphql", payload={"query": "query { viewer { login } }"}, again=True)
        assert proxy.seen == []


BASE = {"repo": {"full_name": "octo/model"}}


def pull_request(head: Any) -> dict[str, Any]:
    return {"number": 7, "pull_request": {"number": 7, "head": {"repo": head}, "base": BASE}}


def event(path: Path, held: Any) -> str:
    path.write_text(held if isinstance(held, str) else json.dumps(held))
    return str(path)


@pytest.mark.parametrize(
    ("head", "foreign"),
    [({"full_name": "octo/model"}, False), ({"full_name": "someone/model"}, True), (None, True)],
    ids=["own", "fork", "fork that is gone"],
)
def test_a_pull_request_says_its_number_and_whether_it_is_from_a_fork(tmp_path: Path, head: Any, foreign: bool) -> None:
    found = read_event(event(tmp_path / "event.json", pull_request(head)), "refs/heads/main")
    assert (found.number, found.foreign, found.run) == (7, foreign, None)


def test_a_comment_on_a_pull_request_and_on_an_issue(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    assert read_event(event(path, {"issue": {"number": 9, "pull_request": {}}}), None).number == 9
    assert read_event(event(path, {"issue": {"number": 9}}), None).number is None


def test_a_run_that_has_ended(tmp_path: Path) -> None:
    head = {"full_name": "someone/model", "owner": {"login": "someone"}}
    run = {"event": "pull_request", "head_sha": "a" * 40, "head_branch": "faster", "head_repository": head}
    # The payload's list of pull requests is empty for a fork, and not used.
    found = read_event(
        event(tmp_path / "e.json", {"workflow_run": {**run, "pull_requests": [{"number": 1}]}}), "refs/pull/3/merge"
    )
    wanted = Run(sha="a" * 40, owner="someone", branch="faster", repository="someone/model", of_pull_request=True)
    assert (found.number, found.run) == (None, wanted)
    pushed = read_event(event(tmp_path / "e.json", {"workflow_run": {**run, "event": "push"}}), None)
    assert pushed.run is not None
    assert not pushed.run.of_pull_request


@pytest.mark.parametrize(
    ("ref", "number"),
    [
        ("refs/pull/12/merge", 12),
        ("refs/pull/12/head", 12),
        ("refs/heads/pull/12/merge", None),
        ("refs/pull/0/merge", None),
        ("refs/pull/12/merge/x", None),
        (None, None),
    ],
)
def test_without_an_event_the_ref_says_it(tmp_path: Path, ref: str | None, number: int | None) -> None:
    assert read_event(None, ref).number == number
    assert read_event(event(tmp_path / "event.json", {"action": "started"}), ref).number == number


@pytest.mark.parametrize(
    "held",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        {"workflow_run": {}},
        {"pull_request": {"number": 7}},
        {"workflow_run": None},
        {"issue": 3},
    ],
    ids=str,
)
def test_an_event_that_is_none(tmp_path: Path, held: Any) -> None:
    path = event(tmp_path / "event.json", held)
    with pytest.raises(DataError, match="event") as raised:
        read_event(path, None)
    assert str(raised.value).startswith(path)


def test_an_event_that_is_not_there_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_event(str(tmp_path / "nothing"), None)
    monkeypatch.setattr("perfscope.plugins.code_hosts.github.MOST_BYTES", 10)
    with pytest.raises(DataError, match="an event of more than"):
        read_event(event(tmp_path / "event.json", pull_request(None)), None)
