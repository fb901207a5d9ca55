"""Text for LaTeX: what a plain ``pdflatex`` prints as it was written."""

from __future__ import annotations

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # In LaTeX's old default encoding these three print as a dash and as ¡ and ¿.
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "−": "$-$",
    "±": r"$\pm$",
    "∩": r"$\cap$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "α": r"$\alpha$",
    **{char: "\\" + char for char in "&%$#_{}"},
}


def escape(text: str) -> str:
    """The text in one line, with every character that means something else to LaTeX replaced."""
    return "".join(_ESCAPES.get(char, char) for char in " ".join(text.splitlines()))
