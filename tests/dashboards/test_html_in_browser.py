"""The HTML report in a real browser: no complaint, no request, no overflow on a phone, no script of a stranger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.reports.html_report import render
from tests.dashboards.built import HOSTILE_NAMES, analysis, compiled, device, hostile, memory, source
from tests.dashboards.chromium import Page, binary, browser

WIDTHS = (390, 768, 1280)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if binary() is None:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def written(folder: Path, text: str) -> Path:
    file = folder / "report.html"
    file.write_text(text)
    return file


def fits(page: Page) -> bool:
    inside, outside = page.value("[document.documentElement.scrollWidth, innerWidth]")
    return bool(inside <= outside)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_opens_quietly_and_fits(page: Page, tmp_path: Path, width: int, dark: bool) -> None:
    ranks = range(64)
    held = analysis(
        devices=tuple(device(rank, compute=160 - rank % 3) for rank in ranks),
        sources=tuple(source(f"rank{rank}.json", rank) for rank in ranks),
        compile=compiled(),
        memory=memory("cuda:0"),
    )
    file = written(tmp_path, render(held))
    page.open(file, width=width, dark=dark)
    assert page.complaints() == []
    assert page.requests() == [file.resolve().as_uri()]
    assert fits(page)
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(18, 22, 28)" if dark else "rgb(246, 247, 249)")


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_run_nothing_and_fit_a_phone(page: Page, tmp_path: Path, name: str) -> None:
    file = written(tmp_path, render(hostile(name)))
    page.open(file, width=390)
    assert page.complaints() == []
    assert page.dialogs() == []
    assert page.requests() == [file.resolve().as_uri()]
    assert page.value("document.scripts.length") == 2
    assert page.value("document.images.length") == 0
    assert fits(page)


def test_code_can_be_copied(page: Page, tmp_path: Path) -> None:
    page.open(written(tmp_path, render(analysis())), width=1280)
    page.value("document.querySelector('button.copy').click()")
    assert page.value("getSelection().toString()").strip() == "if step % 100 == 0:\n    print(loss.item())"
    assert page.complaints() == []


def test_the_embedded_report_can_be_read_back(page: Page, tmp_path: Path) -> None:
    page.open(written(tmp_path, render(hostile("</script><b>"))), width=1280)
    title = "JSON.parse(document.getElementById('perfscope-report').textContent).outcomes[0].findings[0].title"
    assert page.value(title) == "kernel </script><b> costs"


def test_the_check_sees_what_it_must_see(page: Page, tmp_path: Path) -> None:
    text = render(analysis())
    wide = text.replace(
        "<main>", '<main><svg width="3000" height="9"></svg><img src="https://example.invalid/x.png">', 1
    )
    page.open(written(tmp_path, wide), width=390)
    assert not fits(page)
    assert page.complaints() != []
    inline = text.replace("<main>", "<main><script>alert(1)</script>", 1)
    page.open(written(tmp_path, inline), width=390)
    assert any("Content Security Policy" in line for line in page.complaints())
