"""Records of attention → PNG, SVG and PDF figures, and an HTML page to explore them."""
