"""The documentation site. ``make docs`` builds it; nothing is fetched to build or view it."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_site"), str(HERE.parent)]

import onmt_evsoftmax  # noqa: E402

project = "onmt_evsoftmax"
author = "The onmt_evsoftmax authors"
copyright = "the onmt_evsoftmax authors. MIT licence"
version = release = onmt_evsoftmax.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "pages", "formulas", "diagrams"]
exclude_patterns = ["_site", "playground/*.html"]
source_suffix = {".md": "markdown"}
suppress_warnings = ["myst.xref_ambiguous"]

myst_enable_extensions = ["attrs_block", "attrs_inline", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_display_short_literal_types = True

html_theme = "furo"
html_title = "onmt_evsoftmax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_search_summary = False  # excerpts would be fetched, which a page opened as a file may not
html_show_sphinx = False
html_extra_path: list[str] = []
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00795a", "color-brand-content": "#00795a"},
    "dark_css_variables": {"color-brand-primary": "#3ecf9f", "color-brand-content": "#3ecf9f"},
}
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
