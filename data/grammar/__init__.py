"""A synchronous grammar of English and German: one meaning, two sentences, known alignments.

Read the modules in this order: ``words`` (what links two sentences), ``english`` and ``german``
(inflection, from tables and rules), ``lexicon`` (the tables), ``nominal`` and ``clause`` (one tree,
two word orders), ``sampler`` and ``constructions`` (which trees are drawn), ``corpus`` (splits).
"""
