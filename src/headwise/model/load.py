"""From a name, a folder, a GGUF file or a live transformers model to a proven `Model`."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, first_line
from headwise.heads import Head
from headwise.model import adapter, bundled, checkpoint, gguf, hub
from headwise.model.companions import companion_folder, companions
from headwise.model.devices import entry_device, stored, tokens_at_once
from headwise.model.fused import Fused
from headwise.model.origin import Origin, origin, reduced
from headwise.model.packing import packing_works
from headwise.model.products import faster_products
from headwise.model.proof import Proof, prove
from headwise.model.reach import Reach, Visitor
from headwise.model.target_logprobs import plain_unembedding
from headwise.model.text import Text
from headwise.model.unembed import logits_at

log = logging.getLogger("headwise")

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Model:
    """A causal language model whose every head is within reach, with the proof of it."""

    def __init__(
        self,
        hf: nn.Module,
        text: Text | None,
        name: str,
        reach: Reach,
        proof: Proof,
        batch_tokens: int,
        compile: bool = False,
    ) -> None:
        self.hf = hf
        self.name = name
        self.reach = reach
        self.proof = proof
        self.batch_tokens = batch_tokens
        self.compile = compile
        self.edge_gates: adapter.EdgeGates | None = None
        """Where the model was loaded from what `headwise sparsify` makes: its gates and how they were trained."""
        self.origin: Origin | None = None
        """How another process loads the same model; a live model has none."""
        self._text = text
        if text is not None:
            text.vocabulary, text.longest = _embedded(hf), _positions(hf)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    def __repr__(self) -> str:
        layers, heads = self.shape
        return f"Model({self.name!r}, {layers} layers × {heads} heads, {self.dtype}, {self.device})"

    @property
    def text(self) -> Text:
        if self._text is None:
            raise HeadwiseError(
                f"{self.name} was given without a tokenizer; pass it: hw.load(model, tokenizer=...)"
            )
        return self._text

    def tokens(self, text: str) -> list[int]:
        """Token numbers of a text as the model reads it."""
        return self.text.encode(text)

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads), the shape of gates and scores."""
        return self.reach.shape

    @property
    def exists(self) -> np.ndarray:
        """`[L, H]`: False for layers without attention, and beyond a layer's own number of heads."""
        return self.reach.exists

    def heads(self) -> list[Head]:
        """Every head, layer by layer."""
        return [Head(int(layer), int(head)) for layer, head in np.argwhere(self.exists)]

    def check_heads(self, heads: Iterable[Head]) -> None:
        """Refuse what is not a head of this model."""
        own = set(self.heads())
        for head in heads:
            if head not in own:
                layers, most = self.shape
                raise HeadwiseError(
                    f"{self.name} has no head {Head(*head)}; it has {len(own)} heads in {layers} layers of "
                    f"up to {most}, both counted from 0"
                )

    @property
    def device(self) -> torch.device:
        return entry_device(self.hf)

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.hf.parameters() if p.is_floating_point())

    @property
    def gate_dtype(self) -> torch.dtype:
        """Gates are kept at least in float32, whatever the weights are in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def vocabulary(self) -> int:
        unembedding = self.hf.get_output_embeddings()  # type: ignore[operator]
        weight = getattr(unembedding, "weight", None)
        if isinstance(weight, Tensor):
            return int(weight.shape[0])
        return int(self.hf.config.get_text_config().vocab_size)  # type: ignore[operator, union-attr]

    def visiting(self, visitor: Visitor) -> AbstractContextManager[None]:
        """While this holds, forward passes show each layer's head outputs to `visitor`."""
        return self.reach.visiting(visitor)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """While this holds, no weight asks for a gradient, and products are taken accordingly; afterwards those
        weights ask that did."""
        asking = [parameter for parameter in self.hf.parameters() if parameter.requires_grad]
        for parameter in asking:
            parameter.requires_grad_(False)
        try:
            with faster_products(self.hf):
                yield
        finally:
            for parameter in asking:
                if not parameter.is_inference():  # offloaded weights are made anew for each pass
                    parameter.requires_grad_(True)

    def running(self) -> AbstractContextManager[None]:
        """While this holds, forward passes that nobody differentiates are as fast as this device does them."""
        if self.device.type == "cpu":
            return self.frozen()  # frozen weights are multiplied faster
        return self.fused.acting() if self.compile and self.fused.works else nullcontext()

    @cached_property
    def fused(self) -> Fused:
        """Its norms, feed-forward parts and rotary embeddings in compiled form."""
        return Fused(self.reach)

    def outputs(self, ids: Tensor, keep: Callable[[Tensor], Tensor] | None = None) -> dict[int, Tensor]:
        """Head outputs of a plain run: layer -> `[B, T, H, D]`, or what `keep` makes of them, layer by layer."""
        seen: dict[int, Tensor] = {}

        def note(layer: int, z: Tensor) -> Tensor:
            if layer in seen:
                raise HeadwiseError(
                    f"layer {layer} of {self.name} runs several times per pass (shared weights), so its output has no "
                    "single reference; use the reference 'zero'"
                )
            seen[layer] = z.detach() if keep is None else keep(z.detach())
            return z

        with torch.no_grad(), self.visiting(note):
            self.logits(ids.to(self.device), torch.zeros(len(ids), 1, dtype=torch.long))
        return seen

    def logits(self, ids: Tensor, positions: Tensor, places: Tensor | None = None) -> Tensor:
        """Next-token logits `[B, P, vocabulary]` after the tokens at `positions[B, P]`, at least in float32.

        places `[B, T]`: numbers of the tokens, where they are not simply counted.
        """
        return logits_at(self.hf, ids, positions, self.proof.tail, places)

    @cached_property
    def plain_unembedding(self) -> nn.Linear | None:
        """The last layer, where the logits are what it gives, so that they need not all be held at once."""
        return plain_unembedding(self.hf)

    @cached_property
    def packs(self) -> bool:
        """Whether rows may stand one behind the other in one sequence without seeing one another."""
        return packing_works(self.hf)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the configuration and of every weight tensor (its shape, its sum, a sample of its values)."""
        digest = hashlib.sha256()
        config = self.hf.config.to_dict()  # type: ignore[operator, union-attr]
        for volatile in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
            config.pop(volatile, None)
        digest.update(repr(sorted(config.items(), key=lambda item: item[0])).encode())
        for name, parameter in self.hf.state_dict().items():
            digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
            flat = stored(self.hf, name, parameter).detach().flatten()
            if flat.is_meta or not len(flat):
                continue
            sample = flat[:: max(1, len(flat) // 256)].double().cpu().numpy()
            # Sums of whole numbers are exact, so every device and number of threads gives the same one.
            total = flat.view(_BITS[flat.element_size()]).sum(dtype=torch.int64).item()
            digest.update(sample.tobytes() + np.int64(total).tobytes())
        return digest.hexdigest()[:16]


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
    batch_tokens: most tokens in one forward pass; by default what suits the device.
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
            where_from = origin(source, device, options | further)
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
    reach, proof = prove(hf, every_layer=check_every_layer)
    text = Text(tokenizer, wants_bos) if tokenizer is not None else None
    budget = batch_tokens or tokens_at_once(entry_device(hf))
    model = Model(hf, text, label, reach, proof, budget, compile)
    model.edge_gates, model.origin = gates, where_from
    return model


def load_spared(source: str | Path, *, device: str | None = None, **options: Any) -> Model:
    """As `load`, for asking about the model only: it stays in main memory, in the dtype that `device` would give it."""
    on_accelerator = device not in (None, "cpu") or (device is None and _device(None).type != "cpu")
    dtype = options.pop("dtype", None) or ("bfloat16" if on_accelerator else "float32")
    model = load(source, device="cpu", dtype=dtype, **options)
    assert model.origin is not None
    model.origin = origin(
        source, device, model.origin.options
    )  # who loads it for use puts it where it belongs
    return model


def _embedded(hf: nn.Module) -> int | None:
    """How many token numbers have an embedding."""
    table = getattr(hf.get_input_embeddings(), "weight", None)  # type: ignore[operator]
    return int(table.shape[0]) if isinstance(table, Tensor) else None


def _positions(hf: nn.Module) -> int | None:
    """How many positions there are, where they are learned one by one; rotary and relative ones have no end."""
    config = hf.config.get_text_config()  # type: ignore[operator, union-attr]
    most = getattr(config, "max_position_embeddings", None)
    learned = any(
        isinstance(module, nn.Embedding)
        and re.search(r"(^|\.)(wpe|embed_positions|position_embeddings?)$", name)
        for name, module in hf.named_modules()
    )
    return most if learned and isinstance(most, int) else None


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
    from headwise.model import sparse

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
    if Path(found.path).is_dir() and not found.gguf_file:
        checkpoint.check(Path(found.path), found.label)
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
