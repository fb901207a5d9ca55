"""Package metadata. Every dependency says in one line why it is here."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

INSTALL = [
    "torch>=2.6",  # tensors and autograd; 2.6 made weights-only loading the default
    "OpenNMT-py>=3.0.4,<3.6",  # the translation toolkit this package plugs into
    "entmax>=1.3,<2",  # reference root finding for entmax with any alpha
    "sentencepiece>=0.2",  # subwords without pre-tokenisation, as in the published code
    "subword-nmt>=0.3.8",  # byte pair encoding, as in the paper
    "sacremoses>=0.1",  # Moses tokenisation in Python, for the paper's preprocessing
    "sacrebleu>=2.4",  # BLEU, chrF and TER with signatures: what reviewers ask for
    "rouge-score>=0.1.2",  # the reference Python ROUGE
    "nltk>=3.9",  # METEOR and Snowball stemmers
    "matplotlib>=3.8",  # figures as PNG, SVG and PDF
    "regex>=2022",  # word classes of every script, for ROUGE and METEOR beyond English
    "tqdm>=4.66",  # progress on stderr
]

EXTRAS = {
    "dev": [
        "hypothesis>=6.100",  # property tests of the mathematics
        "mypy>=1.10",  # types of the package
        "playwright>=1.40",  # drives a real Chromium through the page that shows attention
        "pytest>=8",  # test runner
        "pytest-xdist>=3.5",  # tests on both cores
        "ruff>=0.6",  # lint and format
    ],
}

setup(
    name="onmt_evsoftmax",
    version="0.1.0",
    description="Sparse attention (ev-softmax, sparsemax, entmax) for OpenNMT-py",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["onmt_evsoftmax", "onmt_evsoftmax.*"]),
    package_data={
        "onmt_evsoftmax": ["py.typed"],
        "onmt_evsoftmax.heatmap.page": ["*.html", "*.css", "*.js"],
    },
    install_requires=INSTALL,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "onmt_count_attended = onmt_evsoftmax.support.command:entry",
            "onmt_plot_attention = onmt_evsoftmax.heatmap.command:entry",
            "onmt_score = onmt_evsoftmax.scoring:entry",
            "onmt_trace_attention = onmt_evsoftmax.trace.command:entry",
        ]
    },
)
