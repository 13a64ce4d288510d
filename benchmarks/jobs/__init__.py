"""The jobs of `peers.py`: each a function from a `Bench` to numbers, in a file of its own."""
