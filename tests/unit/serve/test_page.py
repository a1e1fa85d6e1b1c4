"""The page at `/`."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from msgspec.structs import replace

from penstock.serve.history import KEPT
from penstock.serve.page import page
from tests.support_serving import ask, relu_file, request_for, serving, settings_on, tensor
from tests.unit.serve.test_service import X, service_of

HOSTILE = "<script>alert(1)</script>'\">"


class Reader(HTMLParser):
    """The text, the tags and the style attributes of a page; every tag must be closed."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, content: str) -> None:
        super().__init__()
        self.text, self.tags, self.open = "", [""], [""]
        self.attributes: list[str] = []
        self.feed(content)
        self.close()
        assert self.open == [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_shows_models_plans_receipts_and_a_bar_for_each_step(tmp_path: Path) -> None:
    with serving(tmp_path, {"relu": relu_file()}) as server:
        assert "None yet." in Reader(ask(server, "GET", "/").body.decode()).text
        ask(server, "POST", "/v2/models/relu/infer", {"inputs": [tensor(X)]})
        reply = ask(server, "GET", "/")
    found = Reader(reply.body.decode())
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    for words in (
        "The server is ready",
        "plan of relu",
        "relu on reference",
        "step 0 on reference",
    ):
        assert words in found.text
    assert found.text.count("in the run") == 1
    assert "class=bar" in reply.body.decode()
    assert "script" not in found.tags


def test_names_of_clients_and_files_are_text(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on())
    answer = service.infer(request_for(X))
    service.history.add(replace(answer, model=HOSTILE, id=HOSTILE))
    service.repository._models["relu"].reason = HOSTILE
    found = Reader(page(service))
    assert found.text.count(HOSTILE) == 2
    assert "script" not in found.tags
    assert not [name for name in found.attributes if name.startswith("on")]


def test_history_keeps_the_last_inferences_without_their_outputs(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on())
    for number in range(KEPT + 3):
        service.infer(request_for(X, id=str(number)))
    latest = service.history.latest()
    assert [each.id for each in latest] == [str(n) for n in range(KEPT + 2, 2, -1)]
    assert all(not answer.outputs for _, _, answer in service.history._kept)
