from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import traces

from onmt_evsoftmax.attended import (
    AlignmentScores,
    Counts,
    Entry,
    Report,
    RowMeans,
    count_attended,
    parse_line,
)
from onmt_evsoftmax.attended.counts import LENGTHS, POSITIONS, Bins
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.table import Table, render
from onmt_evsoftmax.trace import KINDS, Attention, Record, grid, group, prefix_of

NORMALIZERS = ("softmax", "evsoftmax", "sparsemax")


def counted(normalizer: str, count: int = 12, level: str = "subword", **options: bool) -> Counts:
    counts = Counts(traces.header(normalizer), level, **options)
    for index in range(count):
        counts.add(traces.record(index, normalizer=normalizer))
    return counts


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_counts_equal_a_recount_by_loops(normalizer: str, kind: str) -> None:
    counts = counted(normalizer).kinds[kind]
    seen = defaultdict(list)
    for index in range(12):
        item = traces.record(index, normalizer=normalizer)
        for layer, head, row, attended in traces.brute_force_rows(item, kind):
            seen[layer, head].append((index, row, attended))
    for (layer, head), rows in seen.items():
        values = [attended for *_, attended in rows]
        summary = counts.measures["attended"].summary(layer, head)
        assert summary.rows == len(values)
        assert summary.sentences == 12
        assert summary.mean == pytest.approx(np.mean(values))
        assert summary.sd == pytest.approx(np.std(values, ddof=1))
        assert (
            counts.histogram[layer, head].tolist()
            == np.bincount(values, minlength=counts.histogram.shape[-1]).tolist()
        )
        for bin_, name in counts.position_groups():
            inside = [v for _, row, v in rows if _bin(row + 1, POSITIONS) == name]
            assert counts.measures["attended"].summary(layer, head, bin_).mean == pytest.approx(
                np.mean(inside)
            )
    everything = [attended for rows in seen.values() for *_, attended in rows]
    summary = counts.measures["attended"].summary()
    assert summary.mean == pytest.approx(np.mean(everything))
    assert summary.sd == pytest.approx(np.std(everything, ddof=1))


def _bin(number: int, ends: tuple[int, ...]) -> str:
    start = 1
    for end in ends:
        if number <= end:
            return str(end) if start == end else f"{start}–{end}"
        start = end + 1
    return f"{start}+"


def test_bins_cover_every_number_once() -> None:
    for ends in (LENGTHS, POSITIONS):
        bins = Bins(ends)
        for number in range(1, 300):
            index = int(bins.of(number))
            first, last = bins.bounds(index)
            assert first <= number <= (last or number)
            assert bins.name(index) == _bin(number, ends)


def test_standard_error_agrees_with_resampling_sentences() -> None:
    """Rows of a sentence move together; the error must be that of drawing other sentences."""
    rng = np.random.default_rng(1)
    means = RowMeans(1, 1, 1)
    sentences = []
    for _ in range(300):
        rows = int(rng.integers(1, 40))
        values = rng.normal() + rng.normal(size=rows) * 0.3
        sentences.append(values)
        means.add(values[None, None], np.ones((rows, 1)))
    sums = np.array([values.sum() for values in sentences])
    sizes = np.array([len(values) for values in sentences])
    draws = rng.integers(0, 300, (4000, 300))
    resampled = sums[draws].sum(1) / sizes[draws].sum(1)
    summary = means.summary(0, 0)
    assert summary.se == pytest.approx(resampled.std(), rel=0.1)
    naive = summary.sd / math.sqrt(summary.rows)
    assert summary.se > 3 * naive


def test_softmax_attends_to_everything_and_density_says_so() -> None:
    counts = counted("softmax")
    for kind in KINDS:
        measures = counts.kinds[kind].measures
        assert measures["density"].summary().mean == pytest.approx(1)
        assert measures["attended"].summary().mean == measures["available"].summary().mean


def test_underflow_is_still_attended() -> None:
    source, target = group(["a", "b", "c"], "none"), group(["x"], "none")
    attention = Attention(np.array([[[[1, 0, 0]]]], np.float32), np.array([[[[1, 1, 0]]]], bool))
    record = Record(0, source, target, prefix_of(target), (), 0, {"context": attention})
    counts = Counts(traces.header(layers=1, heads=1, kinds=["context"]))
    counts.add(record)
    assert counts.kinds["context"].measures["attended"].summary().mean == 2


def test_entropy_and_diversity_by_definition() -> None:
    counts = counted("evsoftmax", 1).kinds["context"]
    weights = traces.record(0).attention["context"].weights[:, :, :-1].astype(np.float64)

    def information(p: np.ndarray, q: np.ndarray) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)

    for layer in range(2):
        divergence = [
            np.mean([information(weights[layer, h, row], mean) for h in range(4)])
            for row, mean in enumerate(weights[layer].mean(0))
        ]
        assert counts.diversity.summary(layer).mean == pytest.approx(np.mean(divergence), abs=1e-9)
        for head in range(4):
            flat = [-sum(p * math.log(p) for p in row if p > 0) for row in weights[layer, head]]
            assert counts.measures["entropy"].summary(layer, head).mean == pytest.approx(
                np.mean(flat)
            )


def test_identical_heads_have_no_diversity_and_disjoint_ones_log_two() -> None:
    def diversity(weights: list[list[float]]) -> float:
        array = np.array(weights, np.float32)[None, :, None]
        source, target = group(["a", "b"], "none"), group(["x"], "none")
        attention = {"context": Attention(array, array > 0)}
        counts = Counts(traces.header(layers=1, heads=2, kinds=["context"]))
        counts.add(Record(0, source, target, prefix_of(target), (), 0, attention))
        return counts.kinds["context"].diversity.summary().mean

    assert diversity([[0.3, 0.7], [0.3, 0.7]]) == pytest.approx(0, abs=1e-7)
    assert diversity([[1, 0], [0, 1]]) == pytest.approx(math.log(2))


def test_word_level_sums_to_words_and_averages_from_words() -> None:
    item = traces.record(0)
    subwords = {"source": "sentencepiece", "target": "sentencepiece"}
    for kind in KINDS:
        words = grid(item, kind, "word", subwords)
        tokens = item.attention[kind]
        rows, keys = item.axes(kind)
        np.testing.assert_allclose(words.weights.sum(-1), 1, atol=1e-6)
        assert not words.weights[~words.support].any()
        # Each special token is its own unit; number units from left to right by hand.
        row_of, key_of = _units(rows.words), _units(keys.words)
        assert len(words.rows) == max(row_of) + 1
        for unit_row in range(len(words.rows)):
            for unit_key in range(len(words.keys)):
                block = tokens.weights[:, :, [u == unit_row for u in row_of]]
                block = block[:, :, :, [u == unit_key for u in key_of]]
                np.testing.assert_allclose(
                    words.weights[:, :, unit_row, unit_key], block.sum(-1).mean(-1), atol=1e-6
                )
    assert grid(item, "context", "word", subwords).rows[3] == "neugierig"


def _units(words: tuple[int, ...]) -> list[int]:
    units, last = [-1], None
    for word in words:
        units.append(units[-1] + (word == -1 or word != last))
        last = word
    return units[1:]


def test_words_attended_are_at_most_subwords_attended() -> None:
    subword = counted("sparsemax").kinds["encoder"].measures
    word = counted("sparsemax", level="word").kinds["encoder"].measures
    assert word["available"].summary().mean < subword["available"].summary().mean


def test_special_rows_only_on_request() -> None:
    text, steps = counted("evsoftmax"), counted("evsoftmax", specials=True)
    rows = [c.kinds["context"].measures["attended"].summary().rows for c in (text, steps)]
    assert rows[1] == rows[0] + 12
    same = [c.kinds["encoder"].measures["attended"].summary().rows for c in (text, steps)]
    assert same[0] == same[1]


def test_empty_sentences_are_counted_as_such() -> None:
    counts = counted("evsoftmax", 3)
    before = counts.kinds["context"].measures["attended"].summary()
    counts.add(traces.blank(3))
    assert (counts.sentences, counts.empty) == (4, 1)
    assert counts.kinds["context"].measures["attended"].summary() == before


def test_alignment_scores_by_sets() -> None:
    gold = [
        parse_line("0-0 1-2 2?1 3p1 4-3", ""),
        parse_line("0-0 1-1", ""),
        parse_line("", ""),
        parse_line("0-0", ""),
    ]
    header = traces.header()
    scores = AlignmentScores(header, gold, "gold")
    totals = defaultdict(lambda: np.zeros(4))
    for index in range(4):
        item = traces.record(index)
        scores.add(item)
        view = grid(item, "context", "word", header.subwords)
        targets = [r for r in range(len(view.rows)) if view.row_is_text[r]]
        for layer in range(2):
            for head in range(4):
                weights, support = view.weights[layer, head], view.support[layer, head]
                hard = {(int(weights[t].argmax()), t) for t in targets}
                soft = {(s, t) for t in targets for s in range(len(view.keys)) if support[t, s]}
                for rule, links in (("argmax", hard), ("support", soft)):
                    sure, possible = gold[index].sure, gold[index].possible
                    totals[rule, layer, head] += (
                        len(links),
                        len(links & sure),
                        len(links & possible),
                        len(sure),
                    )
    for (rule, layer, head), (found, in_sure, in_possible, sure) in totals.items():
        links = scores.links[rule]
        assert links.precision[layer, head] == pytest.approx(in_possible / found)
        assert links.recall[layer, head] == pytest.approx(in_sure / sure)
        assert links.error_rate[layer, head] == pytest.approx(
            1 - (in_sure + in_possible) / (found + sure)
        )


def test_a_perfect_aligner_has_no_error() -> None:
    source, target = group(["a", "b"], "none"), group(["x", "y"], "none")
    weights = np.array([[[[0, 1], [1, 0]]]], np.float32)
    attention = {"context": Attention(weights, weights > 0)}
    header = traces.header(layers=1, heads=1, kinds=["context"])
    scores = AlignmentScores(header, [parse_line("1-0 0-1", "")], "gold")
    scores.add(Record(0, source, target, prefix_of(target), (), 0, attention))
    for links in scores.links.values():
        assert links.error_rate.tolist() == [[0, 0]]


def test_the_best_head_is_found_without_sure_links() -> None:
    """Its error is then that of precision alone."""
    header = traces.header()
    gold = [parse_line(line, "") for line in ("0?0 1?1", "1?2 3?3")]
    scores, counts = AlignmentScores(header, gold, "gold"), Counts(header)
    for index in range(len(gold)):
        scores.add(traces.record(index))
        counts.add(traces.record(index))
    table = Report([Entry("a", counts, scores)]).tables([])[-1]
    best = [row for row in table.rows if str(row[2]).startswith("best")]
    for row, links in zip(best, scores.links.values(), strict=True):
        heads = links.error_rate[:, :-1]
        layer, head = divmod(int(heads.argmin()), heads.shape[1])
        assert row[2:4] == [f"best: layer {layer + 1}, head {head + 1}", f"{100 * heads.min():.1f}"]
    assert scores.links["argmax"].error_rate[:, :-1].argmin() != 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0-0 1:2", r"gold, line 1: '1:2' is not an alignment link"),
        ("0-", "not an alignment link"),
        (f"{'9' * 5000}-0", "not an alignment link"),
        ("9-0", r"gold, line 1: link 9-0 needs 10 source words, but .* has 6"),
        ("0-9", r"needs 10 target words"),
    ],
)
def test_bad_alignments_are_told(line: str, message: str) -> None:
    def score() -> None:
        scores = AlignmentScores(traces.header(), [parse_line(line, "gold, line 1")], "gold")
        scores.add(traces.record(0))

    with pytest.raises(UserError, match=message):
        score()


def test_alignments_of_other_lengths_and_bases_are_told() -> None:
    scores = AlignmentScores(traces.header(), [], "gold")
    with pytest.raises(UserError, match="gold has 0 lines, none for sentence 1"):
        scores.add(traces.record(0))
    with pytest.raises(UserError, match="counts from 0"):
        parse_line("0-1", "x", first=1)
    assert parse_line("1-1", "x", first=1) == parse_line("0-0", "x")
    with pytest.raises(UserError, match="need context attention"):
        AlignmentScores(traces.header(kinds=["decoder"]), [], "gold")


def test_the_report_says_the_same_in_every_format() -> None:
    entries = [Entry(name, counted(name)) for name in NORMALIZERS]
    report = Report(entries)
    data = json.loads(report.json())
    mean = data[1]["kinds"]["context"]["all"]["attended"]["mean"]
    table = report.tables(["kind"])
    for extension in (".txt", ".md", ".tex"):
        assert f"{mean:.2f}" in render(table, extension)
    paper = data[1]["paper"]
    last_layer = data[1]["kinds"]["context"]["layers"][-1]
    assert paper == last_layer["heads"][0]["attended"]
    assert f"{paper['mean']:.1f} ± {paper['sd']:.1f}" in render(report.tables(["paper"]), ".txt")
    assert "(the paper's)" in render(table, ".txt")
    # Notes that tables share are printed once.
    both = render(report.tables(["kind", "layer"]), ".txt")
    assert both.count("standard error") == 1


def test_learned_alphas_are_shown() -> None:
    header = traces.header("entmax", layers=1, heads=2)
    about = header.kinds["context"]
    object.__setattr__(about, "alphas", [[1.25, 1.75]])
    counts = Counts(header)
    counts.add(traces.record(0, layers=1, heads=2))
    text = render(Report([Entry("a", counts)]).tables(["head"]), ".txt")
    assert "1.250" in text
    assert "1.750" in text
    data = json.loads(Report([Entry("a", counts)]).json())
    assert data[0]["kinds"]["context"]["layers"][0]["heads"][1]["alpha"] == 1.75


def test_one_sentence_has_no_standard_error() -> None:
    report = Report([Entry("a", counted("evsoftmax", 1))])
    assert json.loads(report.json())[0]["kinds"]["context"]["all"]["attended"]["se"] is None
    assert "±" not in report.tables(["layer"])[0].rows[0][3]


def test_tables_escape_what_a_format_would_read_as_markup() -> None:
    table = Table("t_1", ["a|b", "n"], [["x_y & 5% <s>", "1.0 ± 0.2"]])
    assert r"x\_y \& 5\% \textless{}s\textgreater{} & $1.0 \pm 0.2$ \\" in table.latex()
    assert r"a\|b" in table.markdown()
    wide = Table("t", ["a", "n"], [["你好", "1"], ["ab", "2"]]).text().splitlines()
    assert wide[3] == "你好  1"
    assert wide[4] == "ab    2"


def test_derived_rows_are_counted_only_where_they_are_shown(tmp_path: Path, monkeypatch) -> None:
    """They take longer than all heads; JSON has everything."""
    made = []

    class Watched(Counts):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(count_attended, "Counts", Watched)
    trace = str(traces.write(tmp_path / "a.trace"))
    plain, whole = tmp_path / "a.txt", tmp_path / "a.JSON"
    count_attended.main([trace, "-o", str(plain), "--quiet"])
    count_attended.main([trace, "-o", str(whole), "--quiet"])
    count_attended.main([trace, "-o", str(plain), "--by", "derived", "--quiet"])
    assert [bool(counts.derived) for counts in made] == [False, True, True]
    assert made[0].kinds.keys() == made[1].kinds.keys()
    rollout = json.loads(whole.read_text())[0]["kinds"]["context"]["derived"]["rollout"]
    assert rollout[0]["attended"]["mean"] >= 1
    # One row for all heads has no diversity between heads, so the table has no such column.
    assert "  diversity" not in plain.read_text()
