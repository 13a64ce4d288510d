"""One function per figure, from tables alone: no figure ever sees a model."""
