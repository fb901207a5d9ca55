"""Speed and memory as ratios against named peers: ``onmt_evsoftmax bench``.

What is compared takes turns, and medians are divided: absolute times of a shared machine mean
nothing.
"""
