"""Pictures and tables say in words what they show, in text and in HTML."""

import base64
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from hookscope.pictures.picture import Picture, Table, as_text, from_figure

EVIL = "<img src=x onerror=alert(1)> & \"'"


class Page(HTMLParser):
    """Every tag with its attributes, and the text inside every tag that is open."""

    VOID = frozenset({"img", "br"})

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append([tag, ""])

    def handle_endtag(self, tag):
        opened, text = self.open.pop()
        assert opened == tag
        self.texts.append((tag, text.strip()))

    def handle_data(self, data):
        if self.open:
            self.open[-1][1] += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    def inside(self, tag):
        return [text for name, text in self.texts if name == tag]


def png():
    Image.new("L", (1, 1)).save(file := BytesIO(), "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.14159265, "3.142"),
        (-2.0, "-2"),
        (-0.0, "0"),
        (-1e-9, "-1e-09"),
        (123456.0, "1.235e+05"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (12345678, "12345678"),
        (True, "True"),
        (None, ""),
        ("conv1", "conv1"),
        (1 + 2.00001j, "1+2j"),
        (np.float32(0.1), "0.1"),
        (np.int64(7), "7"),
        (torch.tensor(0.3333333), "0.3333"),
        (torch.Size([1, 3]), "(1, 3)"),
        ((0.123456, None), "(0.1235, None)"),
        ((5,), "(5,)"),
        ([1.0, 2.5], "[1, 2.5]"),
        (torch.float32, "torch.float32"),
    ],
)
def test_values_are_written_compactly(value, text):
    assert as_text(value) == text


def test_table_text_is_aligned_with_numbers_to_the_right():
    rows = [{"layer": "conv1", "mean": 0.5, "note": None}, {"layer": "a", "calls": 12, "note": "dead\nmap"}]
    assert repr(Table(rows, "Two layers")) == (
        "Two layers\n"
        "layer  mean  note      calls\n"
        "-----  ----  --------  -----\n"
        "conv1   0.5\n"
        "a            dead map     12"
    )


def test_table_copies_its_rows():
    row = {"a": 1}
    rows = [row]
    table = Table(rows)
    row["a"] = 2
    rows.append({"a": 3})
    assert table.rows == [{"a": 1}]


def test_empty_tables_say_so():
    assert repr(Table([])) == "(no rows)"
    assert repr(Table([], "No hooks")) == "No hooks"
    assert "No hooks" in Table([], "No hooks").to_html()
    assert "No rows" in Table([]).to_html()


def test_html_table_has_a_caption_and_scoped_headers():
    page = Page(Table([{"layer": "conv1", "max": 1.0}, {"layer": "fc", "max": 2.0}], "Layers").to_html())
    assert page.inside("caption") == ["Layers"]
    assert [attrs["scope"] for attrs in page.all("th")] == ["col", "col", "row", "row"]
    assert page.inside("th") == ["layer", "max", "conv1", "fc"]
    assert page.inside("td") == ["1", "2"]
    assert [attrs["style"] for attrs in page.all("td")] == ["text-align:right"] * 2


def test_html_is_escaped_everywhere():
    for html in (
        Table([{EVIL: EVIL, "b": EVIL}], EVIL).to_html(),
        Table([{EVIL: EVIL}] * 30, EVIL).to_html(),
        Picture(png(), EVIL, EVIL, [{EVIL: EVIL}]).to_html().replace('<img alt="', "", 1),
    ):
        assert "<img" not in html
        assert "&lt;img" in html


@pytest.mark.parametrize(("count", "folded"), [(17, 0), (18, 2), (100, 84)])
def test_long_tables_fold_and_keep_every_row_once(count, folded):
    table = Table([{"channel": i, "max": i / 2} for i in range(count)], "Channels")
    page = Page(table.to_html())
    assert [text for text in page.inside("th") if text not in ("channel", "max")] == list(map(str, range(count)))
    assert page.inside("summary") == ([f"{folded} more rows"] if folded else [])
    assert len(page.inside("caption")) == (2 if folded else 1)
    assert len(repr(table).splitlines()) == count + 3


def test_a_long_name_may_go_on_in_the_next_line_and_a_number_may_not():
    page = Table([{"kind": "post_accumulate_grad <b>", "requires_grad": 0.123456789}, {"kind": "0.12345678901234567"}])
    html = page.to_html()
    assert ">post_<wbr>accumulate_<wbr>grad &lt;b&gt;</th>" in html
    assert ">requires_<wbr>grad</th>" in html
    assert ">0.12345678901234567</th>" in html
    assert "post_accumulate_grad <b>" in repr(page)


def test_picture_offers_itself_with_words_and_numbers():
    picture = Picture(png(), f"Alt {EVIL}", "First line\nsecond line", [{"step": 0, "loss": 0.25}])
    bundle = picture._repr_mimebundle_()
    assert bundle["image/png"] == picture.png == png()
    assert bundle["text/plain"] == repr(picture)
    assert repr(picture) == "First line\nsecond line\nstep  loss\n----  ----\n   0  0.25"
    page = Page(bundle["text/html"])
    (image,) = page.all("img")
    assert image["alt"] == picture.alt
    assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,"), validate=True) == picture.png
    assert "<figcaption>First line<br>second line</figcaption>" in bundle["text/html"]
    assert page.inside("td") == ["0.25"]


def test_picture_without_caption_or_numbers_shows_its_alt_text():
    picture = Picture(png(), "A black square.")
    assert repr(picture) == "A black square."
    assert "figcaption" not in picture.to_html()
    assert "<table" not in picture.to_html()


def test_rows_that_are_no_numbers_have_a_heading_of_their_own():
    rows = [{"hook": "forward"}]
    assert "<summary>Values in the image</summary>" in Picture(png(), "A square.", rows=rows).to_html()
    page = Picture(png(), "A square.", rows=rows, heading="The hooks in the picture").to_html()
    assert "<summary>The hooks in the picture</summary>" in page
    assert "Numbers" not in page


def test_picture_needs_a_png_and_words():
    with pytest.raises(ValueError, match="not contain a PNG"):
        Picture(b"GIF89a", "A square.")
    with pytest.raises(ValueError, match="alt is empty"):
        Picture(png(), "  ")
    with pytest.raises(TypeError, match=r"png is of type str. Pass the bytes of a PNG file, .*Picture\(Path"):
        Picture("image.png")  # type: ignore[arg-type]


def test_save_writes_the_png(tmp_path):
    picture = Picture(png(), "A square.")
    picture.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == picture.png
    with pytest.raises(ValueError, match=r"'a\.png', not 'a\.jpg'"):
        picture.save(str(tmp_path / "a.jpg"))


def line_figure():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1])
    return figure


def test_figures_give_the_same_bytes_without_metadata():
    first, second = from_figure(line_figure(), "A line."), from_figure(line_figure(), "A line.")
    assert first.png == second.png
    for name in (b"Software", b"tEXt", b"tIME"):
        assert name not in first.png


def test_figures_keep_their_size_and_are_opaque():
    import matplotlib as mpl

    with mpl.rc_context({"savefig.transparent": True, "savefig.dpi": 30}):
        small = Image.open(BytesIO(from_figure(line_figure(), "A line.").png))
        large = Image.open(BytesIO(from_figure(line_figure(), "A line.", dpi=200).png))
    assert small.size == (200, 100)
    assert large.size == (400, 200)
    assert small.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)


def test_a_figure_with_a_transparent_background_stays_transparent():
    figure = line_figure()
    figure.set_facecolor("none")
    for axes in figure.axes:
        axes.set_facecolor("none")
    assert Image.open(BytesIO(from_figure(figure, "A line.").png)).getpixel((0, 0))[3] == 0


def test_figures_are_closed_whatever_happens():
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    before = plt.get_fignums()
    assert from_figure(plt.figure(), "Nothing.", "Caption", [{"a": 1}]).rows == [{"a": 1}]
    with pytest.raises(ValueError, match="alt is empty"):
        from_figure(plt.figure(), "")
    with pytest.raises(Exception, match="dpi"):
        from_figure(plt.figure(), "Nothing.", dpi=-1)
    assert plt.get_fignums() == before


def test_a_figure_drawn_when_it_is_seen_is_drawn_once_and_not_for_its_numbers(monkeypatch):
    from matplotlib.figure import Figure

    drawn, savefig = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda *args, **options: (drawn.append(args), savefig(*args, **options)))
    now = from_figure(Figure(figsize=(1, 1)), "Nothing.")
    later = from_figure(Figure(figsize=(1, 1)), "Nothing.", "", [{"a": 1}], when_seen=True)
    assert (repr(later), later.rows, len(drawn)) == ("Nothing.\na\n-\n1", [{"a": 1}], 1)
    assert later.png == now.png
    later.to_html()
    assert len(drawn) == 2
