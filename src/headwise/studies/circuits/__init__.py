"""How few heads explain a behaviour, and does sparse attention need fewer?"""

from headwise.studies.circuits.study import carry_out

__all__ = ["carry_out"]
