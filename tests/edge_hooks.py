"""Path patching by hooks of plain transformers, one edge and one sentence at a time: slow and obvious, no line of ours.

It reads the projections of families whose attention has `q_proj`, `k_proj`, `v_proj` and `o_proj`.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class EdgeByHooks:
    """Direct edges of one model."""

    def __init__(
        self, hf, layers, attention=lambda layer: layer.self_attn, mlp=lambda layer: layer.mlp, heads=None
    ):
        self.hf, self.layers = hf, list(layers)
        self.attention, self.mlp, self.heads = attention, mlp, heads

    # ---- hooks -------------------------------------------------------------------------------------------

    def run(self, ids, *changes):
        """Logits of one sentence with some hooks: (module, "in" | "out", function of the tensor)."""
        with ExitStack() as undo, torch.no_grad():
            for module, where, change in changes:
                undo.callback(self._hook(module, where, change).remove)
            return self.hf(input_ids=torch.tensor([ids]), use_cache=False).logits[0]

    @staticmethod
    def _hook(module, where, change):
        if where == "out":

            def after(_, __, output):
                if isinstance(output, tuple):
                    return (change(output[0]), *output[1:])
                return change(output)

            return module.register_forward_hook(after)

        def before(_, args, kwargs):
            if args:
                return (change(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

        return module.register_forward_pre_hook(before, with_kwargs=True)

    def record(self, ids, *places):
        """What stands at some places (module, "in" | "out") in a plain run, with further changes given as triples."""
        seen = []
        watched = []
        for place in places:
            if len(place) == 3:
                watched.append(place)
            else:
                seen.append(None)
                last = len(seen) - 1

                def note(tensor, number=last):
                    seen[number] = tensor.clone()
                    return tensor

                watched.append((*place, note))
        self.run(ids, *watched)
        return seen

    # ---- an edge -----------------------------------------------------------------------------------------

    def delta(self, ids, sender, reference, scale=1.0):
        """How the stream changes when a sender is replaced; reference: its output in z, or of the MLP or the input."""
        if sender == (0, -2):
            (plain,) = self.record(ids, (self.layers[0], "in"))
            embeddings = self.hf.get_input_embeddings()
            changed = self.record(
                ids, (embeddings, "out", lambda e: e + scale * (reference - e)), (self.layers[0], "in")
            )
            return changed[0] - plain
        layer = self.layers[sender[0]]
        plain, m = self.record(ids, (layer, "out"), (self.mlp(layer), "out"))
        if sender[1] == -1:
            held = (self.mlp(layer), "out", lambda out: out + scale * (reference - out))
            return self.record(ids, held, (layer, "out"))[0] - plain
        held = (self.mlp(layer), "out", lambda out: m.reshape(out.shape))
        changed = (
            self.attention(layer).o_proj,
            "in",
            lambda z: self._replaced(z, sender[1], reference, scale),
        )
        return self.record(ids, held, changed, (layer, "out"))[0] - plain

    def _replaced(self, z, head, reference, scale):
        size = z.shape[-1] // self.heads
        z = z.clone()
        part = z[..., head * size : (head + 1) * size]
        z[..., head * size : (head + 1) * size] = part + scale * (reference - part)
        return z

    def replaced_logits(self, ids, sender, receiver, reference, scale=1.0):
        """Logits of one sentence with one edge replaced; receiver: (layer, head, slot)."""
        layer_number, head, slot = receiver
        if slot == "logits":
            delta = self.delta(ids, sender, reference, scale)
            return self.run(ids, (self.layers[-1], "out", lambda x: x + delta))
        layer = self.layers[layer_number]
        if slot == "MLP":
            return self._into_mlp(ids, sender, layer_number, reference, scale)
        delta = self.delta(ids, sender, reference, scale)
        projection = self._projection(layer, slot)
        (changed,) = self.record(ids, (layer, "in", lambda x: x + delta), (projection, "out"))
        count = self.heads if slot == "Q" else changed.shape[-1] // self._head_size(layer, slot)

        def swap(output):
            size = output.shape[-1] // count
            output = output.clone()
            output[..., head * size : (head + 1) * size] = changed[..., head * size : (head + 1) * size]
            return output

        return self.run(ids, (projection, "out", swap))

    def _projection(self, layer, slot):
        """What gives the slot of all heads side by side: OLMo 2 has a norm over all of them after the projection."""
        attention = self.attention(layer)
        projection, norm = (getattr(attention, f"{slot.lower()}_{what}", None) for what in ("proj", "norm"))
        wide = getattr(getattr(norm, "weight", None), "shape", None) == (projection.weight.shape[0],)
        return norm if wide else projection

    def _head_size(self, layer, slot):
        attention = self.attention(layer)
        wide = attention.q_proj if slot == "K" else attention.o_proj
        width = wide.weight.shape[0] if slot == "K" else wide.weight.shape[1]
        return width // self.heads

    def _into_mlp(self, ids, sender, layer_number, reference, scale):
        layer = self.layers[layer_number]
        o_proj = self.attention(layer).o_proj
        (z,) = self.record(ids, (o_proj, "in"))
        if sender[0] == layer_number and sender[1] >= 0:
            held = [(o_proj, "in", lambda _: self._replaced(z, sender[1], reference, scale))]
        else:
            delta = self.delta(ids, sender, reference, scale)
            held = [(o_proj, "in", lambda _: z), (layer, "in", lambda x: x + delta)]
        (m,) = self.record(ids, *held, (self.mlp(layer), "out"))
        return self.run(ids, (self.mlp(layer), "out", lambda _: m))


class MovingEdgeByHooks(EdgeByHooks):
    """The same where MLPs between sender and receiver are computed again: only head outputs are held."""

    def replaced_logits(self, ids, sender, receiver, reference, scale=1.0):
        self.at = len(self.layers) if receiver[2] == "logits" else receiver[0]
        return super().replaced_logits(ids, sender, receiver, reference, scale)

    def delta(self, ids, sender, reference, scale=1.0):
        outputs = [self.attention(layer).o_proj for layer in self.layers]
        place = (self.layers[-1], "out") if self.at == len(self.layers) else (self.layers[self.at], "in")
        *z, plain = self.record(ids, *((projection, "in") for projection in outputs), place)
        if sender[1] >= 0:
            z[sender[0]] = self._replaced(z[sender[0]], sender[1], reference, scale)
        held = [
            (projection, "in", lambda _, own=own: own) for projection, own in zip(outputs, z, strict=True)
        ]
        if sender[1] < 0:
            module = self.hf.get_input_embeddings() if sender[1] == -2 else self.mlp(self.layers[sender[0]])
            held.append((module, "out", lambda out: out + scale * (reference.reshape(out.shape) - out)))
        return self.record(ids, *held, place)[0] - plain
