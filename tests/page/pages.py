"""A parser of report pages for tests: whether tags match, and what links, identifiers and texts there are."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img"}
LOADING = {"src", "href", "action", "data", "poster", "srcset"}


class Parsed(HTMLParser):
    """A page, read; tags that do not match fail."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.stages: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.stages += [found["data-text"]] if "data-text" in found else []
        for name in LOADING & found.keys():
            kept = self.links if found[name].startswith("#") else self.loads
            kept.append(found[name].removeprefix("#"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def checked(text: str) -> Parsed:
    """A page whose links end in it, and which loads nothing."""
    page = Parsed(text)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.links) | set(page.stages) <= set(page.ids)
    assert all(load.startswith("data:image/png;base64,") for load in page.loads)
    assert "http" not in text and "@import" not in text
    return page
