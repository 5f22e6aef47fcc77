# SPDX-License-Identifier: Apache-2.0
"""The training step of a Hugging Face config.json, of any model_type that `transformers` has.

  python -m autopar.torch.config CONFIG.JSON [-o FILE] [--batch N] [--seq N]

The module is that of transformers' automatic classes for training: a causal language model, an encoder
with masked words, a sequence to a sequence, an image's class, two towers. It is made without memory for
weights or inputs, in f32, and exported as autopar.torch.export does with --shapes-only. A text is kept in
$XDG_CACHE_HOME/autopar/config under the content of the file, the sizes, and the versions of all packages.
FILE (standard output) is compressed if its name ends in .gz.

A mixture's experts have places for tokens, as those of ap-model: within groups of at most 512 tokens of a
sequence, an expert takes its share of the tokens, and later tokens pass it by.
"""
import argparse
import contextlib
import gzip
import hashlib
import json
import math
import os
import sys
from importlib import metadata
from pathlib import Path

from ..errors import NotSupported, StepError

SEQ = 4096  # tokens, where the model has as many positions
EXPERT_GROUP = 512  # tokens that share places, as ap-model --group
# Mappings of transformers from a configuration to a module that returns a loss, best first.
HEADS = ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_MASKED_LM_MAPPING",
         "MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING",
         "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
         "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING", "MODEL_FOR_PRETRAINING_MAPPING")
POSITIONS = "max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "max_sequence_length"


# ---- the module ----


def configuration(path):
    """The file's configuration, of the class that transformers has for its model_type."""
    from transformers import CONFIG_MAPPING, __version__

    try:
        members = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StepError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(members, dict) or not isinstance(members.get("model_type"), str):
        raise StepError(f"{path}: /model_type: missing: this is not the config.json of a model")
    kind = members["model_type"]
    if kind not in CONFIG_MAPPING:
        raise StepError(f"{path}: /model_type: no '{kind}' in transformers {__version__}")
    if members.pop("quantization_config", None):
        print(f"config: {path}: /quantization_config: left out, weights are f32", file=sys.stderr)
    try:
        made = CONFIG_MAPPING[kind].from_dict(members)
    except Exception as error:  # whatever its checks raise
        raise StepError(f"{path}: {blamed(CONFIG_MAPPING[kind], members)}{said(error)}"
                        f"{absent(CONFIG_MAPPING[kind], members)}") from error
    made.use_cache, made.members = False, list(members)
    return made


def blamed(kind, members):
    """"/KEY: " of the member without which there is no error."""
    for key in members:
        with contextlib.suppress(Exception):
            kind.from_dict({k: v for k, v in members.items() if k != key})
            return f"/{key}: "
    return ""


def said(error):
    """The first line of a message that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"


def absent(kind, members):
    """The members that the file leaves out, and that may be why sizes do not fit: what they are instead."""
    from transformers import PreTrainedConfig

    base = PreTrainedConfig.__dataclass_fields__
    own = {k: f.default for k, f in kind.__dataclass_fields__.items() if k not in base and k not in members}
    sizes = [f"{k} ({v})" for k, v in own.items() if v is None or type(v) is int]
    return f"; absent, and therefore as transformers has it: {', '.join(sizes)}" if sizes else ""


def class_of(config):
    from transformers.models.auto import modeling_auto

    for name in HEADS:
        mapping = getattr(modeling_auto, name, {})
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, (tuple, list)) else found
    raise NotSupported(f"/model_type: transformers has no module with a loss for {config.model_type} (looked in "
                    f"{', '.join(HEADS)}): export your own with scripts/torch/export.py")


def module_of(config, path):
    from transformers.initialization import no_init_weights
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    import torch

    ALL_EXPERTS_FUNCTIONS.register("autopar", experts_with_places)
    made = class_of(config)
    more = {"experts_implementation": "autopar"} if made._can_set_experts_implementation() else {}
    try:
        with no_init_weights():
            model = made._from_config(config, dtype=torch.float32, **more)
        model.tie_weights()
        return model.train()
    except Exception as error:  # whatever the class raises of sizes that do not fit
        raise StepError(f"{path}: {said(error)}{absent(type(config), config.members)}") from error


def experts_with_places(self, hidden_states, top_k_index, top_k_weights):
    """Stands for transformers' forward pass of a mixture: products batched over experts.

    hidden_states: [tokens, width]; the experts chosen and their weights: [tokens, k].  Of a group of s tokens
    an expert takes ceil(k s / experts), first choices first (GShard, algorithm 1).
    """
    import torch

    n, k = top_k_index.shape
    s = math.gcd(n, EXPERT_GROUP)
    places = -(-k * s // self.num_experts)
    x = hidden_states.reshape(n // s, s, -1)
    chosen = torch.nn.functional.one_hot(top_k_index.reshape(n // s, s, k), self.num_experts).to(x.dtype)
    before, dispatch, combine = 0, 0, 0
    for i in range(k):
        mask = chosen[:, :, i]  # [groups, s, experts]
        place = ((mask.cumsum(1) + before - 1) * mask).sum(2)
        slot = (place[..., None] == torch.arange(places)).to(x.dtype)
        at = mask[..., None] * slot[:, :, None]  # [groups, s, experts, places]
        dispatch = dispatch + at
        combine = combine + at * top_k_weights.reshape(n // s, s, k)[:, :, i, None, None]
        before = before + mask.sum(1, keepdim=True)
    y = torch.einsum("gsec,gsh->egch", dispatch, x).flatten(1, 2)

    def product(name, y):
        weight = getattr(self, name)
        made = torch.bmm(y, weight if self.is_transposed else weight.transpose(1, 2))
        return made + getattr(self, f"{name}_bias")[:, None] if self.has_bias else made

    if self.has_gate:
        y = self._apply_gate(product("gate_up_proj", y))
    else:
        y = self.act_fn(product("up_proj", y))
    y = product("down_proj", y)
    if self.has_post_expert_norm:
        y = self.post_expert_norm(y)
    y = y.reshape(self.num_experts, n // s, places, -1)
    return torch.einsum("gsec,egch->gsh", combine, y).reshape(n, -1).to(hidden_states.dtype)


# ---- its inputs ----


def tokens_of(config, seq):
    """The length of a sequence: as asked for, or what the model has positions for."""
    text = config.get_text_config()
    most = next((n for n in (getattr(text, name, None) for name in POSITIONS) if isinstance(n, int) and n > 0), None)
    if seq is not None:
        if most is not None and seq > most:
            raise StepError(f"--seq {seq}: {config.model_type} has {most} positions")
        return seq
    if most is None:
        return 512 if config.is_encoder_decoder else SEQ
    return min(SEQ, most // 128 * 128 or most)  # roberta's 514 positions are 512 tokens and 2


def images_of(config, batch):
    """The shape of a batch of images."""
    part = getattr(config, "vision_config", None) or config
    size = getattr(part, "image_size", None) or 224
    size = list(size) if isinstance(size, (tuple, list)) else [size, size]
    return [batch, getattr(part, "num_channels", None) or 3, *size]


def inputs_of(model, batch, seq):
    """Inputs by name: what the module's forward pass computes its loss from."""
    import inspect

    import torch

    config, takes = model.config, inspect.signature(model.forward).parameters
    main, made = model.main_input_name, {}
    is_text = main == "input_ids" or "input_ids" in takes and "return_loss" in takes
    has_tokens = is_text or main in ("input_features", "input_values") and config.is_encoder_decoder
    n = tokens_of(config, seq) if has_tokens else 0
    if seq is not None and not has_tokens:
        raise StepError(f"--seq: {config.model_type} takes no tokens")
    if is_text:
        made["input_ids"] = torch.zeros(batch, n, dtype=torch.int64)
    if main == "pixel_values" or "return_loss" in takes and "pixel_values" in takes:
        made["pixel_values"] = torch.zeros(images_of(config, batch))
    elif main == "input_features":
        made[main] = torch.zeros(batch, config.num_mel_bins, 2 * config.max_source_positions)
    elif not made:
        raise NotSupported(f"{type(model).__name__} takes {main}: export it with inputs of your own "
                        "(scripts/torch/export.py FILE.py:FUNCTION)")
    if "return_loss" in takes:
        whole = model.forward
        model.forward = lambda **given: whole(**given, return_loss=True)
    elif "labels" in takes:
        made["labels"] = torch.zeros([batch, n] if has_tokens else [batch], dtype=torch.int64)
    else:
        raise NotSupported(f"{type(model).__name__} takes no labels: it returns no loss")
    return made


# ---- the text ----


def text_of(path, batch, seq):
    """HLO text of the step, as bytes."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    from . import export

    transformers.logging.set_verbosity_error()
    config = configuration(path)
    with export.without_memory():
        model = module_of(config, path)
        step = export.capture(model, inputs_of(model, batch, seq))
    return export.hlo.text_of(step).encode()


def cached_at(path, batch, seq):
    """The file in which the text is kept; None where there is no place for it."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and f"{os.environ['HOME']}/.cache")
    if not base:
        return None
    key = hashlib.sha256(repr((batch, seq)).encode())
    for name in ("torch", "jax", "jaxlib", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            key.update(f"{name} {metadata.version(name)}\n".encode())
    here = Path(__file__).resolve().parent
    for file in (*sorted(here.glob("*.py")), here.parent / "step.py", Path(path)):
        key.update(file.read_bytes())
    return Path(base) / "autopar/config" / f"{key.hexdigest()}.gz"


def written(path, out, batch, seq):
    """Writes the text to the file `out`; None: to standard output."""
    try:
        kept = cached_at(path, batch, seq)
        text = gzip.decompress(kept.read_bytes()) if kept and kept.exists() else None
    except (OSError, EOFError) as error:
        raise StepError(f"{error.filename or path}: {error.strerror or error}") from error
    if text is None:
        text = text_of(path, batch, seq)
        with contextlib.suppress(OSError):  # a cache that cannot be written is none
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                new = kept.with_suffix(f".{os.getpid()}")
                new.write_bytes(gzip.compress(text, mtime=0))
                new.rename(kept)
    if out is None:
        sys.stdout.buffer.write(text)
    else:
        Path(out).write_bytes(gzip.compress(text, mtime=0) if out.endswith(".gz") else text)


def main():
    parser = argparse.ArgumentParser(prog="config", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("config", metavar="CONFIG.JSON")
    parser.add_argument("-o", "--out", metavar="FILE")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int)
    args = parser.parse_args()
    if args.batch < 1 or args.seq is not None and args.seq < 1:
        parser.error("--batch, --seq: expected 1 or more")
    try:
        written(args.config, args.out, args.batch, args.seq)
    except NotSupported as error:
        print(f"config: {error}", file=sys.stderr)
        sys.exit(2)
    except StepError as error:
        sys.exit(f"config: {error}")


if __name__ == "__main__":
    main()
