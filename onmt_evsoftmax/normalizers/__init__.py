"""The mathematics: scores in, probabilities out. Knows only torch."""
