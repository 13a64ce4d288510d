"""From a name, a folder, a GGUF file or a live transformers model to a verified `Model`."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, first_line, flag, out_of_memory
from headwise.files import named_source, user_path
from headwise.model.load import bundled, checkpoint, converted, gguf, hub
from headwise.model.load.bundled import companion_folder, companions
from headwise.model.load.checkpoint import check_fits
from headwise.model.load.gguf import check_tokenizer
from headwise.model.load.verified import hash_while_importing, verified
from headwise.model.model import Model
from headwise.model.origin import origin
from headwise.model.sites.probe import chosen_device, chosen_dtype, entry_device, tokens_at_once
from headwise.model.sparse import adapter
from headwise.model.tokens.text import Text, check_growth
from headwise.registry import without_collection

log = logging.getLogger("headwise")


@without_collection()
def load(
    source: str | Path | nn.Module,
    *,
    tokenizer: Any = None,
    name: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    bos: bool | None = None,
    batch_tokens: int | None = None,
    compile: bool = False,
    truncate: bool = False,
    check_every_layer: bool = False,
    base: str | Path | None = None,
) -> Model:
    """Load a model and verify that every head can be ablated exactly.

    source: a bundled alias ("smollm2"), a hub id, a folder, a GGUF file, or a live transformers model (with
        `tokenizer=`; it must be in evaluation mode, and is left as it was). A folder may be what
        `headwise sparsify` makes, or a LoRA adapter of peft; its base model is then found by the name in it, or is
        `base`.
    name: what tables, titles and reports call the model; "NAME=source" gives it too.
    device: "cpu", "cuda", "cuda:1", "mps"; by default an accelerator if there is one; "auto" spreads the layers over
        all of them. device_map: as in transformers.
    dtype: "float32", "bfloat16", "float16", "float64"; by default float32 on a CPU, else bfloat16.
    bos: whether texts begin with the beginning-of-sequence token; by default as the model was trained.
    batch_tokens: tokens in one forward pass, at most about; by default what suits the device.
    truncate: cut prompts that are longer than the model's context from the left, with a notice; by default they
        are refused.
    compile: on an accelerator, fuse what lies between matrix products with torch.compile: some seconds once, then
        large models take a fifth to a quarter less time. Sums may differ in the last bit.

    >>> model = load("smollm2")      # doctest: +SKIP
    >>> model.shape                  # doctest: +SKIP
    (30, 9)
    """
    gates = origin_of_weights = weights = None
    if isinstance(source, nn.Module):
        hf, label, wants_bos = source, name or _live_name(source), bos
    else:
        given_name, source = named_source(source)
        if device == "auto":
            device, device_map = None, device_map or "auto"
        options = {"revision": revision, "trust_remote_code": trust_remote_code}
        if tokenizer is None:
            further = {"device_map": device_map, "bos": bos, "batch_tokens": batch_tokens, "compile": compile}
            further |= {"truncate": truncate, "base": None if base is None else str(base)}
            origin_of_weights = origin(load, source, device, options | further)
        folder = companion_folder(source) or user_path(source)
        if is_adapted(source):
            checkpoint_source, hf, gates = _adapted(folder, base, device, dtype, device_map, options)
            label = name or given_name or (source if source in companions() else folder.resolve().name)
        elif base is not None:
            raise HeadwiseError(f"base is {base}, but {source} is no adapter; leave base out")
        else:
            hash_while_importing(bundled.cached(source) or user_path(source), chosen_device(device))
            checkpoint_source = _find(source)
            hf, weights = _from_pretrained(checkpoint_source, device, dtype, device_map, options)
            label = name or given_name or checkpoint_source.label
        wants_bos = checkpoint_source.wants_bos if bos is None else bos
        tokenizer = tokenizer or _tokenizer(checkpoint_source, options)
    if wants_bos is None and str(getattr(hf.config, "model_type", "")).startswith("gemma"):
        wants_bos = True  # Gemma collapses without it, and some tokenizer files leave it out
    hooks, proof, capabilities = verified(hf, label, weights, every_layer=check_every_layer)
    text = None if tokenizer is None else Text(tokenizer, wants_bos, truncate)
    budget = batch_tokens or tokens_at_once(entry_device(hf))
    return Model(hf, text, label, hooks, proof, capabilities, budget, compile, gates, origin_of_weights)


def load_in_main_memory(source: str | Path, *, device: str | None = None, **options: Any) -> Model:
    """As `load`, for asking about the model only: it stays in main memory, in the dtype that `device` would give it."""
    kind = device or chosen_device(None).type
    dtype = options.pop("dtype", None) or ("float32" if kind == "cpu" else "bfloat16")
    model = load(source, device="cpu", dtype=dtype, **options)
    assert model.origin is not None
    # The process that uses the model chooses the device.
    model.origin = origin(load, model.origin.source, device, model.origin.options)
    return model


def load_text(
    source: str, *, revision: str | None = None, trust_remote_code: bool = False, base: str | None = None
) -> Text:
    """The tokenizer of a model without its weights, to check data before they are loaded."""
    options, source = {"revision": revision, "trust_remote_code": trust_remote_code}, named_source(source)[1]
    if not is_adapted(source):
        found = _find(source)
        return Text(_tokenizer(found, options), found.wants_bos)
    name = base or adapter.named_base(companion_folder(source) or user_path(source))
    found, tokenizer = _of_base(name, lambda found: _tokenizer(found, options))
    return Text(tokenizer, found.wants_bos)


def is_adapted(source: str | Path) -> bool:
    """Whether a source is an adapter, which is loaded with its base model."""
    source = named_source(source)[1]
    folder = companion_folder(source) or user_path(source)
    return adapter.is_adapter(folder) or adapter.is_lora(folder)


def _live_name(hf: nn.Module) -> str:
    path = str(getattr(hf, "name_or_path", "") or getattr(hf.config, "_name_or_path", ""))
    return Path(path).name or type(hf).__name__


@dataclass(frozen=True)
class _Source:
    """What transformers loads a checkpoint from."""

    path: str
    """A folder or a hub id."""
    label: str
    """The name to show."""
    gguf_file: str | None = None
    """A file in the folder."""

    @property
    def wants_bos(self) -> bool | None:
        """Tokenizers made from a GGUF file add no beginning token; the file says whether the model needs one."""
        return None if self.gguf is None else gguf.wants_bos(self.gguf)

    @property
    def gguf(self) -> Path | None:
        return Path(self.path) / self.gguf_file if self.gguf_file else None

    @property
    def options(self) -> dict[str, Any]:
        return {"gguf_file": self.gguf_file} if self.gguf_file else {}


def _of_base(name: str, opened: Callable[[_Source], Any]) -> tuple[_Source, Any]:
    """The base model of an adapter, and what `opened` makes of it. Where the hub has none for us, as on a machine
    without network, the bundled copy of that model is used."""
    try:
        found = _find(name)
        return found, opened(found)
    except HeadwiseError:
        alias = next((alias for alias, asset in bundled.aliases().items() if asset.hub_id == name), None)
        if alias is None:
            raise
    log.warning(
        "the base model %s cannot be loaded from the hub; the bundled copy %s is used, whose weights are quantised "
        "(base names another one)",
        name,
        alias,
    )
    found = _find(alias)
    return found, opened(found)


def _adapted(
    folder: Path, base: str | Path | None, device: Any, dtype: Any, device_map: Any, options: dict[str, Any]
) -> tuple[_Source, nn.Module, adapter.EdgeGates | None]:
    """The base model with the folder's adapter in its weights and the folder's gates in its attention.

    Everything is put together and verified in float32, whatever the model is used in afterwards.
    """
    from headwise.model.sparse import edge_gates as sparse

    if device_map is not None:
        raise HeadwiseError("a sparse model is loaded onto one device; give device instead of device_map")
    gates = adapter.read_gates(folder) if adapter.is_adapter(folder) else None
    name = str(base or adapter.named_base(folder))
    try:
        found, hf = _of_base(name, lambda found: _from_pretrained(found, "cpu", "float32", None, options)[0])
    except HeadwiseError as error:
        raise HeadwiseError(
            f"the base model of {folder} could not be loaded: {error}; name another one with {flag('base')}"
        ) from error
    if gates and adapter.weights_fingerprint(hf) != gates.fingerprint:
        raise HeadwiseError(
            f"{folder} was trained on other weights than those that {name!r} names now; train it again, or put "
            "the old ones back"
        )
    adapter.merge(hf, folder)
    if gates and gates.bias is not None:
        sparse.install(hf, gates.bias)
    target = chosen_device(device)
    chosen = chosen_dtype(dtype, target)
    # Only weights: buffers such as those of rotary positions stay in float32, as in transformers.
    for parameter in hf.parameters():
        parameter.data = parameter.data.to(chosen)
    hf.config.dtype = chosen
    return found, hf.to(target), gates


def _find(source: str) -> _Source:
    """Where the weights of a bundled alias, file, folder or hub id are."""
    causal = [alias for alias, asset in bundled.aliases().items() if asset.gguf]  # minilm generates nothing
    if source in causal:
        return _Source(str(bundled.fetch(source)), source)
    path = user_path(source)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise HeadwiseError(
                f"{source} is a file, but not a GGUF file; give a folder with config.json and safetensors, a .gguf "
                "file, or a hub id"
            )
        return _Source(str(path.parent), path.stem, path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise HeadwiseError(
                f"the folder {source} has no config.json; a model folder is what save_pretrained writes"
            )
        return _Source(str(path), path.resolve().name)
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith(".gguf"):
        raise HeadwiseError(f"there is no file or folder {source}")
    aliases = [*causal, *companions()]
    # Only old hub ids have no owner. A typing slip in an alias should not end in a network error.
    near = [] if "/" in source else difflib.get_close_matches(source, aliases, n=1, cutoff=0.6)
    if near:
        raise HeadwiseError(
            f"unknown model {source!r}; did you mean {near[0]!r}? Give a bundled alias ({', '.join(aliases)}), "
            "a hub id (owner/name), a folder or a GGUF file"
        )
    return _Source(source, source)


def _from_pretrained(
    source: _Source, device: Any, dtype: Any, device_map: Any, options: dict[str, Any]
) -> tuple[nn.Module, Path | None]:
    """The model, and the folder whose files alone decide what it is, where there is one."""
    if device is not None and device_map is not None:
        raise HeadwiseError("give either device or device_map, not both")
    target = chosen_device(device)
    chosen = chosen_dtype(dtype, target)
    if source.gguf is not None:
        folder = converted.weights_folder(
            source.gguf, chosen, lambda: _opened(source, chosen, None, options)[0]
        )
        source = source if folder is None else _Source(str(folder), source.label)
    hf, folder = _opened(source, chosen, device_map, options)
    return (hf.to(target) if device_map is None else hf).eval(), folder if device_map is None else None


def _opened(
    source: _Source, dtype: torch.dtype, device_map: Any, options: Any
) -> tuple[nn.Module, Path | None]:
    """What transformers makes of a checkpoint, whose weights must be safe to open and complete; and its folder."""
    from transformers import AutoModelForCausalLM

    try:
        folder = _check_weights(source, options)
        hf, report = hub.from_pretrained(
            AutoModelForCausalLM.from_pretrained,
            source.path,
            dtype=dtype,
            device_map=device_map,
            use_safetensors=None if source.gguf_file else True,
            output_loading_info=True,
            **options,
            **source.options,
            **(gguf.unpacked() if source.gguf_file else {}),
        )
    except HeadwiseError:
        raise
    except Exception as error:
        raise _explained(error, source) from error
    if unused := checkpoint.complete(source.label, report):
        log.warning(
            "%s: %d tensors of the checkpoint are not used, such as %s", source.label, len(unused), unused[0]
        )
    return hf, folder


def _check_weights(source: _Source, options: dict[str, Any]) -> Path | None:
    """Before anything is built: the weights are safe to open, and the described model is no larger than they are.
    Returns their folder, where they are plain safetensors."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path, folder = Path(source.path), None
    if source.gguf is not None:
        weights = gguf.check(source.gguf)
    else:
        folder = path if path.is_dir() else hub.snapshot(source.path, options["revision"])
        if folder is None:  # transformers says why the hub has none
            return None
        weights = checkpoint.check(folder, source.label)

    def build() -> Any:
        config = hub.from_pretrained(AutoConfig.from_pretrained, source.path, **options, **source.options)
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)

    if not options["trust_remote_code"]:  # trusted code may build what it likes
        check_fits(weights, build)
    return folder


def _tokenizer(source: _Source, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    def make() -> Any:
        fresh = hub.from_pretrained(AutoTokenizer.from_pretrained, source.path, **options, **source.options)
        if source.gguf is not None:  # a wrong one is not kept
            check_tokenizer(source.gguf, fresh)
        return check_growth(fresh, source.label)

    try:
        if source.gguf is None:
            return make()
        kept = converted.tokenizer(source.gguf, make)
        check_tokenizer(source.gguf, kept)
        return kept
    except HeadwiseError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise HeadwiseError(f"the tokenizer of {source.label} could not be loaded: {reason}") from error


_HUB_ERRORS = {
    "connect|offline|couldn't": "the hub could not be reached and there is no cached copy",
    "not a valid model identifier|404": "the hub has no such model (a private one needs HF_TOKEN)",
}
"""Words of transformers' error -> why a name could not be found on the hub."""


def _explained(error: Exception, source: _Source) -> HeadwiseError:
    """transformers' error as one sentence that says what to do."""
    if out_of_memory(error):
        return HeadwiseError(
            f"there is not enough memory to load {source.label}; use a smaller dtype (bfloat16) or another device, or "
            "raise the limit of this account (ulimit -v)"
        )
    message, from_hub = str(error), not Path(source.path).is_dir()
    if from_hub and "no file named model.safetensors" in message:
        return checkpoint.pickled_error(source.label, "pytorch_model.bin")
    if "trust_remote_code" in message:
        return HeadwiseError(
            f"{source.label} needs code from its repository; pass trust_remote_code=True if you trust it"
        )
    for words, reason in _HUB_ERRORS.items():
        if from_hub and re.search(words, message.lower()):
            return HeadwiseError(
                f"unknown model {source.label!r}: no bundled alias, no folder or file of that name, and {reason}"
            )
    return HeadwiseError(f"{source.label} could not be loaded: {first_line(error)}")
