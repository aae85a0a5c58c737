"""The ten-times table as a game: guess which hook reaches y, x.grad and weight.grad."""
