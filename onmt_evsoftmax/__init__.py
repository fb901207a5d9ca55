"""Sparse attention for OpenNMT-py: ev-softmax, sparsemax and entmax, right where masks are."""
