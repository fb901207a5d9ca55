"""Reports render themselves: LaTeX in the shape of the paper's table, text, Markdown."""

from __future__ import annotations

from scoring_texts import sample_report


def test_latex_has_the_shape_of_the_papers_table() -> None:
    latex = sample_report().latex()
    assert [line.strip() for line in latex.splitlines() if "&" in line] == [
        r"Metric & a\_b\&c & soft & ev \\",
        r"BLEU & $21.00 \pm 1.00^{**}$ & $22.50^{*}$ & $\mathbf{23.50 \pm 0.29}$ \\",
        r"TER $\downarrow$ & 60.00 & $\mathbf{50.00}^{*}$ & 55.00 \\",
    ]
    assert latex.count("{") == latex.count("}")
    assert latex.count("$") % 2 == 0
    assert "over 1--3 random seeds" in latex
    assert r"\label{tab:scores}" in latex
    assert "% BLEU: nrefs:1\n" in latex
    for line in latex.splitlines():
        assert "&" not in line or line.replace(r"\&", "").count("&") == 3


def test_text_shows_scores_tests_and_signatures() -> None:
    assert sample_report().text(1).splitlines() == [
        "Metric         a_b&c   soft          ev",
        "BLEU    21.0 ± 1.0**  22.5*  23.5 ± 0.3",
        "TER ↓           60.0  50.0*        55.0",
        "  * p < 0.05, ** p < 0.01 against ev in both tests: paired bootstrap (bs, one tail,",
        "  as sacreBLEU has it) and approximate randomisation (ar, two-sided), 1000 resamples, "
        "seed 1",
        "",
        "             against ev  95 % interval  p (bs)  p (ar)",
        "a_b&c, BLEU        -2.0    -3.0 … -1.0  0.0010  0.0040",
        "a_b&c, TER         +0.0    -0.5 … +0.5  0.9000  0.0040",
        "soft, BLEU         -0.5    -0.9 … -0.1  0.0040  0.0300",
        "soft, TER          -0.5    -0.9 … -0.1  0.0040  0.0300",
        "",
        "BLEU: nrefs:1",
        "TER:  nrefs:1",
    ]


def test_markdown_escapes_stars_and_bolds_the_best() -> None:
    lines = sample_report().markdown().splitlines()
    assert lines[0] == r"| Metric | a\_b&c | soft | ev |"
    assert lines[1] == "|---|---:|---:|---:|"
    assert lines[2] == r"| BLEU | 21.00 ± 1.00\*\* | 22.50\* | **23.50 ± 0.29** |"
    assert lines[3] == r"| TER ↓ | 60.00 | **50.00**\* | 55.00 |"
