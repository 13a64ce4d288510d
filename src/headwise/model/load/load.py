"""From a name, a folder, a GGUF file or a live transformers model to a proven `Model`."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, first_line
from headwise.model.load import bundled, checkpoint, gguf, hub
from headwise.model.load.companions import companion_folder, companions
from headwise.model.load.shapes import check_fits
from headwise.model.model import Model
from headwise.model.origin import origin
from headwise.model.sites.devices import entry_device, stored, tokens_at_once
from headwise.model.sparse import adapter
from headwise.model.tokens.text import Text
from headwise.model.verify.identities import prove

log = logging.getLogger("headwise")

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


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
) -> Model:
    """Load a model and prove that its heads are reached.

    source: a bundled alias ("smollm2"), a hub id, a folder, a GGUF file, or a live transformers model (with
        `tokenizer=`; it must be in evaluation mode, and is left as it was). A folder may be what
        `headwise sparsify` makes; its base model is then found by the name in it.
    device: "cpu", "cuda", "cuda:1", "mps"; by default an accelerator if there is one; "auto" spreads the layers over
        all of them. device_map: as in transformers, for a spread of your own.
    dtype: "float32", "bfloat16", "float16", "float64"; by default float32 on a CPU, else bfloat16.
    bos: whether texts begin with the beginning-of-sequence token; by default as the model was trained.
    batch_tokens: tokens in one forward pass, at most about; by default what suits the device.
    truncate: cut prompts that are longer than the model was made for from the left, with a notice; by default they
        are refused.
    compile: on an accelerator, fuse what lies between matrix products with torch.compile: some seconds once, then
        large models take about a sixth less time. Sums may be rounded otherwise in the last bit.

    >>> model = load("smollm2")      # doctest: +SKIP
    >>> model.shape                  # doctest: +SKIP
    (30, 9)
    """
    where_from = None
    if device == "auto" and not isinstance(source, nn.Module):
        device, device_map = None, device_map or "auto"
    if isinstance(source, nn.Module):
        hf, label = source, name or _live_name(source)
        wants_bos = bos
        gates = None
    else:
        if tokenizer is not None:
            log.debug("using the given tokenizer instead of the model's own")
        options = {"revision": revision, "trust_remote_code": trust_remote_code}
        if tokenizer is None:
            further = {"device_map": device_map, "bos": bos, "batch_tokens": batch_tokens, "compile": compile}
            where_from = origin(load, source, device, options | further | {"truncate": truncate})
        folder = _adapter_folder(source)
        gates = None
        if folder is None:
            found = _Place(*_find(str(source), name))
            hf = _from_pretrained(found, device, dtype, device_map, options)
        else:
            found, hf, gates = _adapted(folder, device, dtype, device_map, options)
        label = name or (found.label if folder is None else _adapter_name(source))
        wants_bos = found.wants_bos if bos is None else bos
        tokenizer = tokenizer or _tokenizer(found, options)
    if bos is None and wants_bos is None and _family(hf).startswith("gemma"):
        wants_bos = True  # Gemma collapses without it, and some tokenizer files leave it out
    _check_finite(hf, label)
    hooks, proof, capabilities = prove(hf, every_layer=check_every_layer)
    text = None
    if tokenizer is not None:
        text = Text(tokenizer, wants_bos)
        text.truncate = truncate
    budget = batch_tokens or tokens_at_once(entry_device(hf))
    model = Model(hf, text, label, hooks, proof, capabilities, budget, compile)
    model.edge_gates, model.origin = gates, where_from
    return model


def load_spared(source: str | Path, *, device: str | None = None, **options: Any) -> Model:
    """As `load`, for asking about the model only: it stays in main memory, in the dtype that `device` would give it."""
    on_accelerator = device not in (None, "cpu") or (device is None and _device(None).type != "cpu")
    dtype = options.pop("dtype", None) or ("bfloat16" if on_accelerator else "float32")
    model = load(source, device="cpu", dtype=dtype, **options)
    assert model.origin is not None
    model.origin = origin(
        load, source, device, model.origin.options
    )  # who loads it for use puts it where it belongs
    return model


def _family(hf: nn.Module) -> str:
    return str(getattr(hf.config, "model_type", ""))


def _live_name(hf: nn.Module) -> str:
    path = str(getattr(hf, "name_or_path", "") or getattr(hf.config, "_name_or_path", ""))
    return Path(path).name or type(hf).__name__


@dataclass(frozen=True)
class _Place:
    """Where weights and tokenizer are."""

    path: str
    """What transformers is given."""
    gguf_file: str | None
    """The GGUF file in it, if it is one."""
    label: str
    """The name to show."""

    @property
    def wants_bos(self) -> bool | None:
        """Tokenizers made from a GGUF file add no beginning token by themselves; the file says who needs one."""
        return gguf.wants_bos(Path(self.path) / self.gguf_file) if self.gguf_file else None

    @property
    def options(self) -> dict[str, Any]:
        return {"gguf_file": self.gguf_file} if self.gguf_file else {}


def _adapter_folder(source: str | Path) -> Path | None:
    """The folder of a sparse model or its control, where `source` is one."""
    path = companion_folder(str(source)) or Path(source).expanduser()
    return path if adapter.is_adapter(path) else None


def _adapter_name(source: str | Path) -> str:
    return str(source) if str(source) in companions() else Path(source).expanduser().resolve().name


def _adapted(
    folder: Path, device: Any, dtype: Any, device_map: Any, options: dict[str, Any]
) -> tuple[_Place, nn.Module, adapter.EdgeGates]:
    """The base model with the folder's adapter in its weights and the folder's gates in its attention.

    Everything is put together and proven in float32, whatever the model is used in afterwards.
    """
    from headwise.model.sparse import edge_gates as sparse

    if device_map is not None:
        raise HeadwiseError("a sparse model is loaded onto one device; give device instead of device_map")
    gates = adapter.read_gates(folder)
    try:
        found = _Place(*_find(gates.base, None))
        hf = _from_pretrained(found, "cpu", "float32", None, options)
    except HeadwiseError as error:
        raise HeadwiseError(f"the base model of {folder} could not be loaded: {error}") from error
    if adapter.weights_fingerprint(hf) != gates.fingerprint:
        raise HeadwiseError(
            f"{folder} was trained on other weights than those that {gates.base!r} names now; train it again, or put "
            "the old ones back"
        )
    adapter.merge(hf, folder)
    if gates.bias is not None:
        sparse.install(hf, gates.bias)
    target = _device(device)
    chosen = _dtype(dtype, target)
    # Only weights: tables such as those of rotary positions stay in float32, as transformers keeps them.
    for parameter in hf.parameters():
        parameter.data = parameter.data.to(chosen)
    hf.config.dtype = chosen
    return found, hf.to(target), gates


def _find(source: str, name: str | None) -> tuple[str, str | None, str]:
    """(what transformers is given, GGUF file in it, the name to show)."""
    fetched = [
        alias for alias, asset in bundled.aliases().items() if asset.gguf
    ]  # the others are no causal models
    known = [*fetched, *companions()]
    if source in fetched:
        return str(bundled.fetch(source)), None, name or source
    path = Path(source).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise HeadwiseError(
                f"{source} is a file, but not a GGUF file; give a folder with config.json and safetensors, a .gguf "
                "file, or a hub id"
            )
        return str(path.parent), path.name, name or path.stem
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise HeadwiseError(
                f"the folder {source} has no config.json; a model folder is what save_pretrained writes"
            )
        return str(path), None, name or path.resolve().name
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith(".gguf")
    if looks_like_path:
        raise HeadwiseError(f"there is no file or folder {source}")
    if "/" not in source:
        # Only old hub ids have no owner. A typing slip in an alias should not end in a network error.
        import difflib

        near = difflib.get_close_matches(source, known, n=1, cutoff=0.6)
        if near:
            raise HeadwiseError(
                f"unknown model {source!r}; did you mean {near[0]!r}? Give a bundled alias ({', '.join(known)}), "
                "a hub id (owner/name), a folder or a GGUF file"
            )
    return source, None, name or source


def _from_pretrained(
    found: _Place, device: Any, dtype: Any, device_map: Any, options: dict[str, Any]
) -> nn.Module:
    from transformers import AutoModelForCausalLM

    if device is not None and device_map is not None:
        raise HeadwiseError("give either device or device_map, not both")
    target = _device(device) if device_map is None else None
    chosen = _dtype(dtype, target or _device(None))
    _check_weights(found, options)
    try:
        hf, report = hub.reached(
            AutoModelForCausalLM.from_pretrained,
            found.path,
            dtype=chosen,
            device_map=device_map,
            use_safetensors=None if found.gguf_file else True,
            output_loading_info=True,
            **options,
            **found.options,
        )
    except Exception as error:
        raise _explained(error, found.path, found.label) from error
    left = checkpoint.complete(found.label, report)
    if left:
        log.warning(
            "%s: %d tensors of the checkpoint are not used, %s for one", found.label, len(left), left[0]
        )
    if target is not None:
        hf = hf.to(target)
    return hf.eval()


def _check_weights(found: _Place, options: dict[str, Any]) -> None:
    """Before anything is built: the weights are safe to open, and the described model is no larger than they are."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if found.gguf_file:
        weights = gguf.check(Path(found.path) / found.gguf_file)
    else:
        local = Path(found.path)
        folder: Path | None = local if local.is_dir() else hub.snapshot(found.path, options["revision"])
        if folder is None:
            return  # transformers says why the hub has none
        weights = checkpoint.check(folder, found.label)
    if options["trust_remote_code"]:
        return  # code that is trusted to build the model may build what it likes

    def build() -> nn.Module:
        config = hub.reached(AutoConfig.from_pretrained, found.path, **options, **found.options)
        model: nn.Module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        return model

    try:
        check_fits(weights, build)
    except HeadwiseError:
        raise
    except Exception as error:
        raise _explained(error, found.path, found.label) from error


@torch.no_grad()
def _check_finite(hf: nn.Module, label: str) -> None:
    """A NaN in a weight reaches only some tokens or some heads, so the proof would not always meet it."""
    bad = []
    for name, parameter in hf.named_parameters():
        values = stored(hf, name, parameter)
        if values.is_meta or not values.numel() or not values.is_floating_point() or values.itemsize < 2:
            continue  # elsewhere, or packed
        least, most = torch.aminmax(values)  # NaN wins in both
        if not (torch.isfinite(least) and torch.isfinite(most)):
            bad.append((name, int((~torch.isfinite(values)).sum()), values.numel(), values.dtype))
    if bad:
        name, count, total, dtype = bad[0]
        others = f" ({len(bad) - 1} more tensors have some too)" if len(bad) > 1 else ""
        raise HeadwiseError(
            f"the weights of {label} are damaged: {count} of {total} values of {name} are NaN or infinite in "
            f"{str(dtype).removeprefix('torch.')}{others}; fetch them again, or use a wider dtype than float16"
        )


def _tokenizer(found: _Place, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        return hub.reached(AutoTokenizer.from_pretrained, found.path, **options, **found.options)
    except Exception as error:
        raise HeadwiseError(
            f"the tokenizer of {found.label} could not be loaded: {first_line(error)}"
        ) from error


def _explained(error: Exception, place: str, label: str) -> HeadwiseError:
    """transformers' error as one sentence that says what to do."""
    text = first_line(error)
    folder = Path(place)
    if not folder.is_dir() and re.search(r"no file named model\.safetensors", str(error)):
        # The hub's copy of a folder that holds pickled weights alone.
        return checkpoint.pickled_error(label, "pytorch_model.bin")
    if "trust_remote_code" in str(error):
        return HeadwiseError(
            f"{label} needs code from its repository; pass trust_remote_code=True if you trust it"
        )
    offline = (
        "connect" in str(error).lower() or "offline" in str(error).lower() or "couldn't" in str(error).lower()
    )
    if offline and not folder.is_dir():
        return HeadwiseError(
            f"unknown model {label!r}: no bundled alias, no folder or file of that "
            "name, and the hub could not be reached and has no cached copy"
        )
    if not folder.is_dir() and ("not a valid model identifier" in str(error) or "404" in str(error)):
        return HeadwiseError(
            f"unknown model {label!r}: no bundled alias, no folder or file of that "
            "name, and the hub has none (a private one needs HF_TOKEN)"
        )
    return HeadwiseError(f"{label} could not be loaded: {text}")


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise HeadwiseError(f"unknown device {device!r}; use cpu, cuda, cuda:1 or mps") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise HeadwiseError("this machine (or this build of torch) has no CUDA device; use --device cpu")
    return chosen


def _dtype(dtype: str | torch.dtype | None, device: torch.device | None) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device is not None and device.type == "cpu" else torch.bfloat16
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        from headwise.errors import unknown

        raise unknown("dtype", str(dtype), DTYPES)
    return DTYPES[dtype]
