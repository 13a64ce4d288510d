"""Models, and everything that touches transformers. Begin with `model.py`: a loaded model.

tokens      text to token ids, and what is scored
sites       where the heads are: the attention function, the projection hook
forward     one gated forward pass: shared rows, logits at chosen positions, memory
backward    what makes a backward pass small
verify      the identities that a loaded model must fulfil; which families do
sparse      sparse attention: gates on attention pairs, adapters
load        from a name to a verified model, and back to a checkpoint
measure     gates × examples -> metric values and gradients
generation  text with gated heads
attention   attention rows of chosen heads
outputs     what a head writes
edges       one head's contribution to another's input, replaced or pulled back
arm         the activation redistribution of the study `prompts`

Arrows inside: tokens, sites <- forward <- backward <- verify <- sparse <- model.py <- the others.
May import: errors, files, registry, hub, stats, tables, heads, tasks; charts in `plot`.
"""
