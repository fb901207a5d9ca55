"""Package metadata. Every dependency says in one line why it is here."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
(VERSION,) = re.findall(
    r'^__version__ = "(.+)"$',
    (ROOT / "onmt_evsoftmax" / "__init__.py").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)

# Python runs this line at every start of the environment; a broken hook must not break anything.
STARTUP = (
    r'import sys; exec("try:\n import onmt_evsoftmax_hook as hook\n hook.start()\n'
    r'except Exception: pass")'
    "\n"
)


class BuildWithStartupHook(build_py):
    """Put the start-up hook's ``.pth`` file at the top of the wheel, editable or not."""

    def run(self) -> None:
        """Build as usual, then add the file."""
        super().run()
        # An editable wheel holds only what lies in its "install_lib": the code stays where it is.
        wheel = self.get_finalized_command("install").install_lib
        root = Path(wheel if self.editable_mode else self.build_lib)
        root.mkdir(parents=True, exist_ok=True)
        (root / "onmt_evsoftmax.pth").write_text(STARTUP, encoding="utf-8")


class WheelForEveryPython(bdist_wheel):
    """The kernels are a plain library that Python's version does not matter to."""

    def get_tag(self) -> tuple[str, str, str]:
        """Any Python 3, this platform."""
        return "py3", "none", super().get_tag()[2]


class CompileSideBySide(build_ext):
    """The kernels are three large files, one per instruction set: compile them at once."""

    def build_extension(self, ext: Extension) -> None:
        """Hand the files to the compiler one by one, several at a time."""
        compile_all = self.compiler.compile

        def side_by_side(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor() as pool:
                objects = pool.map(lambda source: compile_all([source], **options), sources)
                return [path for one in objects for path in one]

        self.compiler.compile = side_by_side
        super().build_extension(ext)


# Plain C, needing neither Python's headers nor torch's; without a compiler the install goes on and
# torch computes everything. `-fopenmp` is left out where the system compiler does not know it.
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]
C_SOURCES = "onmt_evsoftmax/kernels/c"
# Many Pythons ask for debugging information: a fifth of the time and five sixths of the file.
FLAGS = ["-O3", "-g0", "-fno-math-errno", "-fvisibility=hidden", "-Wno-psabi"]
KERNELS = Extension(
    "onmt_evsoftmax.kernels._native",
    sources=sorted(str(path.relative_to(ROOT)) for path in (ROOT / C_SOURCES).glob("*.c")),
    depends=sorted(str(path.relative_to(ROOT)) for path in (ROOT / C_SOURCES).glob("*.h")),
    extra_compile_args=[*FLAGS, *OPENMP],
    extra_link_args=["-lm", *OPENMP],
    optional=True,
    py_limited_api=True,  # a file name without Python's version
)

INSTALL = [
    "torch>=2.6",  # tensors and autograd; 2.6 made weights-only loading the default
    "OpenNMT-py>=3.0.4,<3.6",  # the translation toolkit this package plugs into
    "entmax>=1.3,<2",  # the published sparsemax and entmax, which `bench` compares with
    "sentencepiece>=0.2",  # subwords without pre-tokenisation, as in the published code
    "subword-nmt>=0.3.8",  # byte pair encoding, as in the paper
    "sacremoses>=0.1",  # Moses tokenisation in Python, for the paper's preprocessing
    "sacrebleu>=2.4",  # BLEU, chrF and TER with signatures: what reviewers ask for
    "rouge-score>=0.1.2",  # the reference Python ROUGE
    "nltk>=3.9",  # METEOR and Snowball stemmers
    "matplotlib>=3.8",  # figures as PNG, SVG and PDF
    "regex>=2022",  # word classes of every script, for ROUGE and METEOR beyond English
    "scipy>=1.13",  # Student's t: the smallest difference that a number of seeds shows
    "tqdm>=4.66",  # progress on stderr
    "argcomplete>=3",  # completes command lines in the shell; imported only then
]

EXTRAS = {
    "vae": [
        "pillow>=10",  # tiny-ImageNet's JPEG files
        "pyyaml>=6",  # the experiments' configurations
        "scikit-learn>=1.5",  # its embedded digits: data that need no download
        "tensorboard>=2.16",  # curves of training runs
    ],
    "study": [
        # runs the same workflow on a laptop or a cluster; 9.10 to 9.16 lose count of the cores
        "snakemake>=9.17,<10",
        "snakemake-executor-plugin-slurm>=2",  # the same workflow as jobs of SLURM
        "pyyaml>=6",  # recipe.yaml
    ],
    "triton": [
        # the kernels for GPUs; torch's CUDA builds bring it along
        "triton>=3.5.1; platform_system == 'Linux'",
    ],
    "docs": [
        "furo>=2025.12",  # the site's theme: phone and dark mode, nothing fetched
        "latex2mathml>=3.78",  # formulas as MathML, which browsers draw themselves
        "myst-parser>=5",  # pages in Markdown
        "sphinx>=9,<10",  # the site: strict links, reference from docstrings
    ],
    "transformers": [
        "transformers>=5",  # Hugging Face's models, with any normalizer as attn_implementation
    ],
    "dev": [
        "filelock>=3",  # tests on both cores share trained models
        "hypothesis>=6.100",  # property tests of the mathematics
        "mypy>=1.10",  # types of the package
        "onnxruntime>=1.18",  # runs what the tests export
        "onnxscript>=0.5",  # torch's newer ONNX exporter
        "playwright>=1.40",  # drives the system's Chromium over the page of plot_attention
        "pytest>=8",  # test runner
        "pytest-xdist>=3.5",  # tests on both cores
        "ruff>=0.6",  # lint and format
        "setuptools>=77",  # tests build the package's wheels
    ],
}

setup(
    name="onmt_evsoftmax",
    version=VERSION,
    description="Sparse attention (ev-softmax, sparsemax, entmax) for OpenNMT-py",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The onmt_evsoftmax authors",
    license_expression="MIT",
    license_files=["LICENSE"],
    project_urls={"Paper": "https://arxiv.org/abs/2110.14182"},
    keywords=["attention", "sparse", "softmax", "entmax", "sparsemax", "OpenNMT", "translation"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: C",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
    # 3.11 runs all tests. Of 3.13, OpenNMT-py's pyonmttok and ctranslate2 (< 4) have no packages.
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["onmt_evsoftmax", "onmt_evsoftmax.*"]),
    package_dir={"": "."},  # so that an editable install is one line in a .pth file: 20 ms less
    py_modules=["onmt_evsoftmax_hook"],
    ext_modules=[KERNELS],
    package_data={
        "onmt_evsoftmax": ["py.typed"],
        "onmt_evsoftmax.plot.page": ["*.html", "*.css", "*.js"],
    },
    cmdclass={
        "bdist_wheel": WheelForEveryPython,
        "build_ext": CompileSideBySide,
        "build_py": BuildWithStartupHook,
    },
    install_requires=INSTALL,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "onmt_evsoftmax = onmt_evsoftmax.__main__:entry",
            "onmt_count_attended = onmt_evsoftmax.attended.count_attended:entry",
            "onmt_plot_attention = onmt_evsoftmax.plot.plot_attention:entry",
            "onmt_score = onmt_evsoftmax.score:entry",
            "onmt_trace_attention = onmt_evsoftmax.trace.trace_attention:entry",
        ]
    },
)
