"""The paper's VAE experiments on the same normalizers: CVAE, semi-supervised VAE, VQ-VAE.

``onmt_evsoftmax vae cvae`` (or ``ssvae``, ``vqvae``) runs one from data that scikit-learn
embeds; ``recipes/vae/`` has the configurations, every key explained.
"""
