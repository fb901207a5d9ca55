"""The paper's tables and figures that are computed from files or from the mathematics alone."""
