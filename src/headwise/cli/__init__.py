"""The command line: one command hands over to the room that knows. Begin with `app.py`."""
