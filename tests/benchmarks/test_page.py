"""The comparison as people read it: who wins at which size, and what auto loses."""

import html.parser

import pytest

from benches.page import page, plots

pytestmark = pytest.mark.once

HEAD = {
    "device": "a machine",
    "date": "2026-01-02T03:04:05+00:00",
    "versions": {"numpy": "2.4"},
    "ceilings": {"copy": 2e10, "matmul float32": 3e12},
}


def record(case, n, method, seconds, *, auto=False, backend="numpy"):
    same = {"primitive": "sum", "dtype": "float32", "rate": 1.0, "unit": "B/s", "ceiling_fraction": None}
    return {**same, "case": case, "backend": backend, "method": method, "shape": [n], "seconds": seconds, "auto": auto}


RECORDS = [
    record("a, 10", 10, "kernel", 2e-6, auto=True),
    record("a, 10", 10, "peer:numpy", 1e-6),
    record("b, 20", 20, "kernel", 1e-6, auto=True),
    record("b, 20", 20, "native", 3e-6),
    record("c, 2^20", 2**20, "kernel", 1e-3),
    record("c, 2^20", 2**20, "native", 1.05e-3, auto=True),
    record("a, 10", 10, "native", 5e-6, auto=True, backend="torch"),
]


def test_rows():
    one, other = page.rows(RECORDS)
    assert one == ("sum", "numpy", "3", "numpy 1/2", "", "kernel 1/1", "1.00", "LOSS 0.50", "a, 10")
    assert other == ("sum", "torch", "1", "native 1/1", "", "", "1.00", "1.00", "")


def test_what_was_not_timed_is_no_loss():
    assert page.rows([record("a, 10", 10, "native", 1.0)]) == [("sum", "numpy", "1", "native 1/1", "", "", "", "", "")]


def test_page(monkeypatch):
    monkeypatch.setattr(page, "installed", lambda _: True)
    monkeypatch.setattr(page, "available", lambda name: name != "jax")
    text = page.page(RECORDS, HEAD)
    assert text.startswith("3 cases on a machine, 2026-01-02, every result checked: numpy 2.4\n")
    assert "matmul float32: 3.00 TFLOP/s, operations of the library's own product" in text
    assert text.endswith('More would be compared with\njax: pip install -e ".[jax]"')


class _Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.cells, self.losses = [], 0, 0

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "html"):
            self.open.append(tag)
        self.cells += tag in ("td", "th")
        self.losses += ("class", "loss") in attrs

    def handle_endtag(self, tag):
        if tag != "html":
            assert self.open.pop() == tag


def test_report(tmp_path):
    """Tags are closed, text is escaped, and a loss is marked."""
    picture = tmp_path / "plot.png"
    text = page.report(RECORDS, HEAD, "1 < 2 & 3", picture)
    assert "<img" not in text
    picture.write_bytes(b"png")
    text = page.report(RECORDS, HEAD, "1 < 2 & 3", picture)
    assert 'src="data:image/png;base64,cG5n"' in text
    assert "1 &lt; 2 &amp; 3" in text
    tags = _Tags()
    tags.feed(text)
    assert not tags.open
    assert (tags.cells, tags.losses) == (3 * len(page.HEAD), 1)


def test_units_and_colours_of_plots():
    """A rate's prefix is that of the largest in the plot; a method has one colour, and a peer is grey."""
    assert plots.unit([3e8, 2e9], "B/s") == (1e9, "GB/s")
    assert plots.unit([5.0], "keys/s") == (1.0, "key/s")
    assert [plots.kind(one) for one in ("kernel", "array", "native", "peer:scipy", "auto")] == [
        *("kernel", "array", "native", "peer", "peer"),
    ]
    assert (plots.marker("kernel"), plots.marker("peer:cublas"), plots.marker("peer:scipy")) == ("o", "s", "^")


def test_sizes_of_a_family():
    """Sizes of one length count, each once; those of any shape do not, for no line joins them."""
    names = ("sum, 2^20", "sum, 2^24", "sum, 2^20", "any shape, 3 x 4 x 5", "any shape, 6 x 7 x 8")
    cases = [{"case": name} for name in names]
    assert plots._sizes(cases) == 2
    assert plots._sizes(cases[3:]) == 0


def test_plot(tmp_path):
    """Cases of one size are bars and those of several lines, with the colours of their methods."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    few = [{**one, "seconds": 1.0} for one in RECORDS if one["case"].startswith("a")]
    many = [record(f"sum, {n}", n, method, 1.0) for n in (8, 64) for method in ("array", "peer:torch")]
    for records, count in ((few, 3), (many, 2)):
        axes = Figure().add_subplot()
        plots._panel(axes, records)
        drawn = [one.get_facecolor() for one in axes.patches] or [one.get_color() for one in axes.lines]
        assert len(drawn) == count
    assert [one.get_color() for one in axes.lines] == [plots.COLOURS["array"], plots.COLOURS["peer"]]
    done = plots.plot(tmp_path / "plot.png", HEAD, [{**one, "commit": "a" * 40} for one in RECORDS])
    assert done.startswith("plot: ")
    assert (tmp_path / "plot.png").stat().st_size > 1000
