"""One comment a change: found by key and author, replaced, never doubled; and what it may hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perfscope.model.errors import UsageError
from perfscope.plugins.code_hosts.client import HostError, HostTroubleError
from perfscope.plugins.code_hosts.github import GitHub, graphql_address
from perfscope.plugins.code_hosts.gitlab import GitLab
from perfscope.plugins.code_hosts.sticky import compose, marker, post
from tests.plugins.code_hosts.fake_api import (
    BOT,
    GITLAB_BOT,
    MISSING,
    PROJECT,
    REPOSITORY,
    TOKEN,
    Answer,
    Fake,
    RecordedRequest,
    pull,
    serve_fake,
)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serve_fake() as running:
        yield running


def github(fake: Fake, token: str = TOKEN) -> GitHub:
    return GitHub.connect(token=token, repository=REPOSITORY, api=fake.base, graphql=f"{fake.base}/graphql")


def gitlab(fake: Fake, project: str = PROJECT) -> GitLab:
    return GitLab.connect(token=TOKEN, project=project, api=f"{fake.base}/api/v4", web=f"{fake.base}/group/model")


def body(text: str, key: str = "speed") -> str:
    return compose(text, key, 60_000)


@pytest.mark.parametrize(("connect", "bot"), [(github, BOT), (gitlab, GITLAB_BOT)], ids=["github", "gitlab"])
class TestBothHosts:
    def test_made_then_replaced_then_left_alone(self, fake: Fake, connect: type, bot: str) -> None:
        host = connect(fake)
        first = post(host, 12, "speed", body("3% slower"))
        second = post(host, 12, "speed", body("as fast as before"))
        third = post(host, 12, "speed", body("as fast as before"))
        assert [one.done for one in (first, second, third)] == ["created", "updated", "unchanged"]
        assert first.place == second.place == third.place
        assert "12#" in first.place
        assert fake.bodies(12, bot) == [body("as fast as before")]

    def test_found_behind_other_pages_and_forged_markers(self, fake: Fake, connect: type, bot: str) -> None:
        for at in range(130):
            fake.add(12, "someone", f"comment {at}")
        forged = fake.add(12, "mallory", body("all is well"))
        other_bot = fake.add(12, "dependabot[bot]", body("all is well"))
        quoted = fake.add(12, bot, f"> {marker('speed')}\nsomebody quoted it")
        other_key = fake.add(12, bot, body("another benchmark", "memory"))
        longer_key = fake.add(12, bot, body("another benchmark", "speed-2"))
        for at in range(120):
            fake.add(12, "someone", f"later {at}")
        ours = fake.add(12, bot, body("old").replace("\n", "\r\n"))
        untouched = [dict(row) for row in (forged, other_bot, quoted, other_key, longer_key)]
        assert post(connect(fake), 12, "speed", body("new")).done == "updated"
        assert ours["body"] == body("new")
        assert [forged, other_bot, quoted, other_key, longer_key] == untouched
        assert fake.asked("POST") == []
        assert [one.query["page"] for one in fake.asked("GET") if "page" in one.query] == ["1", "2", "3"]

    def test_twins_are_told_and_the_oldest_is_kept_up_to_date(self, fake: Fake, connect: type, bot: str) -> None:
        for _ in range(2):
            fake.add(12, bot, body("old"))
        posted = post(connect(fake), 12, "speed", body("new"))
        assert (posted.done, posted.twins) == ("updated", 1)
        assert fake.bodies(12, bot) == [body("new"), body("old")]

    def test_made_by_a_server_that_broke_while_it_answered(self, fake: Fake, connect: type, bot: str) -> None:
        def made_but_broken(request: RecordedRequest) -> Answer:
            fake.answer(request)
            return 502, {"message": "bad gateway"}, {}

        fake.broken = [lambda _: None, lambda _: None, made_but_broken]  # myself, comments, create
        assert post(connect(fake), 12, "speed", body("3% slower")).done == "created"
        assert fake.bodies(12, bot) == [body("3% slower")]
        assert len(fake.asked("POST")) == 1

    def test_not_made_by_a_server_that_broke(self, fake: Fake, connect: type, bot: str) -> None:
        def broken(_: RecordedRequest) -> Answer:
            return 502, {"message": "bad gateway"}, {}

        fake.broken = [lambda _: None, lambda _: None, broken]
        assert post(connect(fake), 12, "speed", body("3% slower")).done == "created"
        assert fake.bodies(12, bot) == [body("3% slower")]

        fake.comments.clear()
        fake.broken = [lambda _: None, *[lambda _: None, broken] * 3]
        with pytest.raises(HostTroubleError, match="502"):
            post(connect(fake), 12, "speed", body("3% slower"))
        assert fake.bodies(12, bot) == []

    def test_a_token_without_the_permission(self, fake: Fake, connect: type, bot: str) -> None:
        fake.broken = [lambda _: None, lambda _: None, lambda _: (403, {"message": "Resource not accessible"}, {})]
        wanted = "pull-requests: write" if bot == BOT else "Reporter"
        with pytest.raises(HostError, match=wanted):
            post(connect(fake), 12, "speed", body("3% slower"))

    def test_a_change_that_is_not_there(self, fake: Fake, connect: type, bot: str) -> None:
        fake.broken = [lambda _: None, lambda _: MISSING]
        with pytest.raises(HostError, match=r"404 .*no such (pull|merge) request"):
            post(connect(fake), 12, "speed", body("3% slower"))


def test_a_token_that_is_not_valid(fake: Fake) -> None:
    with pytest.raises(HostError, match=r"401 \(Bad credentials\): the token is invalid") as raised:
        github(fake, "wrong-token").myself()
    assert "wrong-token" not in str(raised.value)


def test_where_graphql_is_closed_the_user_is_asked(fake: Fake) -> None:
    fake.broken = [lambda _: (403, {"message": "no"}, {}), lambda _: (200, {"login": "a-person"}, {})]
    assert github(fake).myself() == "a-person"
    fake.broken = [lambda _: (200, {"errors": [{"message": "no"}]}, {}), lambda _: (200, {"login": "a-person"}, {})]
    assert github(fake).myself() == "a-person"
    fake.broken = [lambda _: (200, {"data": {"viewer": {"login": 7}}}, {})]
    with pytest.raises(HostError, match="does not match its documentation"):
        github(fake).myself()


def test_what_gitlab_itself_wrote_is_no_comment(fake: Fake) -> None:
    fake.add(12, GITLAB_BOT, body("changed the description"), system=True)
    assert list(gitlab(fake).comments(12)) == []


def test_a_project_by_its_path_stays_one_part_of_the_address(fake: Fake) -> None:
    with pytest.raises(HostError):
        list(gitlab(fake, "group/../7").comments(12))
    assert fake.seen[-1].path == "/api/v4/projects/group%2F..%2F7/merge_requests/12/notes"


@pytest.mark.parametrize(
    "repository", ["model", "octo/model/pulls", "octo/..", "octo/mo del", "../x", "octo/model?a", ""]
)
def test_a_repository_has_an_owner_and_a_name(repository: str) -> None:
    with pytest.raises(UsageError, match="OWNER/NAME"):
        GitHub.connect(token=TOKEN, repository=repository)


def test_graphql_lies_beside_rest() -> None:
    assert graphql_address("https://api.github.com") == "https://api.github.com/graphql"
    assert graphql_address("https://git.example/api/v3") == "https://git.example/api/graphql"


class TestPullOf:
    """The pull request of a finished run, from GitHub's data."""

    def asked(self, fake: Fake, sha: str = "a" * 40) -> int | None:
        return github(fake).pull_of(sha=sha, owner="someone", branch="faster", head_repository="someone/model")

    def test_by_branch_and_by_commit(self, fake: Fake) -> None:
        fake.pulls = [pull(5, "a" * 40, branch="other"), pull(7, "a" * 40), pull(8, "b" * 40)]
        assert self.asked(fake) == 7
        assert self.asked(fake, "b" * 40) == 8

    def test_moved_on_closed_or_of_another_repository(self, fake: Fake) -> None:
        fake.pulls = [pull(7, "b" * 40), pull(8, "a" * 40, state="closed")]
        assert self.asked(fake) is None
        gone = pull(9, "a" * 40)
        gone["head"]["repo"] = None
        fake.pulls = [gone]
        assert self.asked(fake) is None

    def test_two_with_one_commit(self, fake: Fake) -> None:
        fake.pulls = [pull(7, "a" * 40), pull(8, "a" * 40)]
        with pytest.raises(HostError, match="#7, #8 all end with aaaaaaaaaaaa; choose one"):
            self.asked(fake)


class TestCompose:
    def test_one_marker_first(self) -> None:
        assert compose("# hello\n", "a", 1000) == "<!-- perfscope-report:a -->\n# hello"
        assert compose(f"{marker('b')}\nhello", "a", 1000) == "<!-- perfscope-report:a -->\nhello"

    def test_a_link_stands_last(self) -> None:
        assert compose("hello", "a", 1000, "https://host/x").endswith("hello\n\n[full report](https://host/x)\n")

    @pytest.mark.parametrize("line", ["/merge", "  /approve", "\t/lgtm"])
    def test_no_line_is_an_order_to_a_bot(self, line: str) -> None:
        for text in (f"a\n{line}\nb", f"a\r{line}", line):
            lines = compose(text, "a", 1000).splitlines()
            assert not [one for one in lines if one.lstrip().startswith("/")]
            assert any(one.strip() == f"&#47;{line.strip()[1:]}" for one in lines)

    def test_a_long_report_is_cut_at_a_line_and_what_is_open_closed(self) -> None:
        text = "<details><summary>all</summary>\n\n```\n" + "a row of the table\n" * 5000
        cut = compose(text, "a", 60_000, "https://host/x")
        assert 50_000 < len(cut) <= 60_000
        assert cut.count("</details>") == 1
        assert cut.count("```") == 2
        assert "Cut here" in cut
        assert cut.endswith("(https://host/x)\n")
        rows = cut[cut.index("```") + 4 : cut.rindex("```")].splitlines()
        assert set(rows) == {"a row of the table"}

    def test_one_endless_line_is_cut_too(self) -> None:
        cut = compose("x" * 100_000 + "<details>" * 100, "a", 60_000)
        assert len(cut) <= 60_000
        many = compose("<details>\n" * 100_000, "a", 60_000)
        assert len(many) <= 60_000

    def test_what_fits_is_not_cut(self) -> None:
        room = 60_000 - len(marker("a")) - 1
        assert compose("x" * room, "a", 60_000).endswith("x")
        assert "Cut here" in compose("x" * (room + 1), "a", 60_000)

    @pytest.mark.parametrize("key", ["", "a b", "a>", "-a", "a\n", "x" * 101, "ключ"])
    def test_a_key_stays_inside_its_comment(self, key: str) -> None:
        with pytest.raises(UsageError, match="key"):
            compose("hello", key, 1000)
