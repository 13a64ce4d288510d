"""Cards of single heads: where a head attends, which tokens it promotes and suppresses, known attention patterns, its
scores, and the examples on which it helps and hurts most.

Begin with `head_card.py`. `tokens.py` reads a head's output and its OV weights as tokens, `measured.py` puts the tables
of several heads together in a few passes and compares their attention patterns with those of all heads. May import:
everything below studies, and runs.
"""

from headwise.cards.head_card import Card, card
