"""What the tests of the pages of pick ask a page for."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.browser import Browser, Tab


class Parsed(HTMLParser):
    """The tags of a page, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def data_of(place: Path) -> dict[str, Any]:
    """Return the content of a page that pick wrote."""
    content: dict[str, Any] = json.loads(Parsed(place.read_text(encoding="utf-8")).scripts[0])
    return content


def text_of(tab: Tab, name: str) -> str:
    return str(tab.value(f"document.getElementById({name!r}).innerText"))


def saved(chromium: Browser, downloads: Path) -> str:
    """Return the text of the file that the browser downloads next, and delete the file."""
    while True:
        event = chromium.wait("Browser.downloadProgress")
        if event["params"]["state"] == "completed":
            break
    (path,) = downloads.iterdir()
    content = path.read_bytes().decode("utf-8")
    path.unlink()
    return content


def require_silence(tab: Tab) -> None:
    """Nothing but the page itself was asked for, and nobody complained."""
    assert tab.complaints() == []
    assert {url.partition(":")[0] for url in tab.requests()} == {"file"}
    assert len(tab.requests()) == 1
