"""One file per experiment; each has an ``EXPERIMENT`` (:class:`onmt_evsoftmax.vae.experiment`)."""
