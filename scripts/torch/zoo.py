# SPDX-License-Identifier: Apache-2.0
"""Modules of kinds that people train, small: what zoo-table exports, plans and runs.

ZOO has an Entry of each function, which returns (module, inputs). Modules of `transformers` are made
from a config, as its users make them; nothing is downloaded.
"""
import collections

import torch
from torch import nn
from torch.nn import functional as F


ZOO = {}
# optimizer: a name of ap-grad's, or a function that makes the user's own for the module; rate: of the
# former; refused: words that the exporter's message has if it has to refuse the module
Entry = collections.namedtuple("Entry", "make optimizer rate refused")


def entry(optimizer, rate=0.01, refused="", zoo=ZOO):
    def add(function):
        zoo[function.__name__] = Entry(function, optimizer, rate, refused)
        return function

    return add


# ---- convolutions ----


class Cnn(nn.Module):
    """Batch norm in one and two dimensions, pooling."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.AvgPool2d(2))
        self.hidden, self.norm = nn.Linear(16 * 4 * 4, 32), nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, images, labels):
        x = self.norm(self.hidden(self.features(images).flatten(1)))
        return F.cross_entropy(self.head(F.gelu(x)), labels, label_smoothing=0.1)


@entry("momentum")
def cnn():
    torch.manual_seed(0)
    return Cnn(), {"images": torch.randn(8, 3, 16, 16), "labels": torch.arange(8)}


class UNet(nn.Module):
    """Down, up and across, group norm, a time embedding: the step of a diffusion model."""

    def __init__(self, width=8):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 2 * width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)
        frequency = torch.exp(-torch.arange(8) / 2.0)
        self.register_buffer("frequency", frequency)

    def forward(self, images, noise, times):
        angle = times[:, None] * self.frequency[None]
        when = self.time(torch.cat([angle.sin(), angle.cos()], dim=1))
        level = torch.cos(times / 10)[:, None, None, None]
        x = self.enter(level * images + (1 - level**2).sqrt() * noise)
        y = self.norm(F.silu(self.down(x))) + when[:, :, None, None]
        y = F.interpolate(self.middle(y), scale_factor=1.0) + y
        y = torch.cat([x, self.up(F.silu(y))], dim=1)
        return F.mse_loss(self.leave(y), noise)


@entry("adamw")
def unet():
    torch.manual_seed(1)
    return UNet(), {"images": torch.randn(8, 3, 16, 16), "noise": torch.randn(8, 3, 16, 16),
                    "times": torch.linspace(0, 9, 8)}


class Vae(nn.Module):
    """Variational autoencoder; the noise is an input."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16))
        self.decode = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64))

    def forward(self, x, noise):
        mean, logvar = self.encode(x).chunk(2, dim=-1)
        y = self.decode(mean + noise * torch.exp(0.5 * logvar))
        fit = F.binary_cross_entropy_with_logits(y, x)
        kl = -0.5 * (1 + logvar - mean**2 - logvar.exp()).mean()
        return {"loss": fit + 0.1 * kl, "fit": fit, "kl": kl}


@entry("adam")
def vae():
    torch.manual_seed(2)
    return Vae(), {"x": torch.rand(16, 64), "noise": torch.randn(16, 8)}


class VqVae(nn.Module):
    """Straight-through estimator (detach), a codebook as running averages (a buffer)."""

    def __init__(self, codes=16, width=8):
        super().__init__()
        self.encode, self.decode = nn.Linear(32, width), nn.Linear(width, 32)
        self.register_buffer("codebook", torch.randn(codes, width))

    def forward(self, x):
        z = self.encode(x)
        far = (z[:, None] - self.codebook[None]).pow(2).sum(-1)
        pick = F.one_hot(far.argmin(dim=1), self.codebook.shape[0]).to(z.dtype)
        q = pick @ self.codebook
        y = self.decode(z + (q - z).detach())
        loss = F.mse_loss(y, x) + 0.25 * F.mse_loss(z, q.detach())
        with torch.no_grad():
            mean = (pick.t() @ z) / pick.sum(0).clamp(min=1)[:, None]
            used = (pick.sum(0) > 0).to(z.dtype)[:, None]
            self.codebook.lerp_(mean, 0.1 * used.expand_as(mean))
        return loss


@entry("adam")
def vqvae():
    torch.manual_seed(3)
    return VqVae(), {"x": torch.randn(32, 32)}


# ---- sequences ----


class Lstm(nn.Module):
    def __init__(self, vocab=32, width=16):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens, targets):
        y, _ = self.lstm(self.tokens(tokens))
        return F.cross_entropy(self.head(y).flatten(0, 1), targets.flatten())


@entry("sgd")
def lstm():
    torch.manual_seed(4)
    tokens = torch.randint(0, 32, (8, 7))
    return Lstm(), {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


class Experts(nn.Module):
    """Two of four experts a token, with capacity left unlimited, and a balance term."""

    def __init__(self, width=16, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 32) / 4)
        self.down = nn.Parameter(torch.randn(experts, 32, width) / 6)

    def forward(self, x):
        share = F.softmax(self.router(x), dim=-1)
        weight, pick = torch.topk(share, 2, dim=-1)
        gate = torch.zeros_like(share).scatter(1, pick, weight / weight.sum(-1, keepdim=True))
        each = torch.einsum("ed,ndh->neh", x, self.up)
        each = torch.einsum("neh,nhd->ned", F.silu(each), self.down)
        y = torch.einsum("en,ned->ed", gate, each)
        return y, (share.mean(0) * (gate > 0).float().mean(0)).sum()


class Moe(nn.Module):
    def __init__(self, vocab=32, width=16):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.layers = nn.ModuleList(Experts(width) for _ in range(2))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens, targets):
        x, balance = self.tokens(tokens.flatten()), 0.0
        for norm, layer in zip(self.norms, self.layers):
            y, term = layer(norm(x))
            x, balance = x + y, balance + term
        return F.cross_entropy(self.head(x), targets.flatten()) + 0.01 * balance


@entry("adam")
def moe():
    torch.manual_seed(5)
    return Moe(), {"tokens": torch.randint(0, 32, (8, 4)), "targets": torch.randint(0, 32, (8, 4))}


# ---- images and pairs ----


class Mixer(nn.Module):
    def __init__(self, places=16, width=16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.within = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, 10)

    def forward(self, images, labels):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = x + self.across(self.norm_1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.within(self.norm_2(x))
        return F.cross_entropy(self.head(x.mean(dim=1)), labels)


@entry("adam")
def mixer():
    torch.manual_seed(6)
    return Mixer(), {"images": torch.randn(8, 3, 16, 16), "labels": torch.arange(8)}


class Clip(nn.Module):
    """A text and an image tower, contrasted over the batch; nn.TransformerEncoder."""

    def __init__(self, width=16):
        super().__init__()
        self.tokens = nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True,
                                           norm_first=True)
        self.text = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.image = nn.Sequential(nn.Conv2d(3, width, 4, stride=4), nn.GELU(),
                                   nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                   nn.Linear(width, width))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, tokens, images):
        text = F.normalize(self.text(self.tokens(tokens)).mean(dim=1), dim=-1)
        image = F.normalize(self.image(images), dim=-1)
        logits = self.scale.exp() * text @ image.t()
        which = torch.arange(tokens.shape[0])
        return (F.cross_entropy(logits, which) + F.cross_entropy(logits.t(), which)) / 2


@entry("adamw")
def clip():
    torch.manual_seed(7)
    return Clip(), {"tokens": torch.randint(0, 32, (8, 6)), "images": torch.randn(8, 3, 16, 16)}


class Dlrm(nn.Module):
    """Sparse and dense features, their pairwise products."""

    def __init__(self, width=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum") for n in (20, 30, 40))
        self.bottom = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, width))
        self.top = nn.Sequential(nn.Linear(width + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, sparse, clicks):
        x = self.bottom(dense)
        parts = [x] + [F.embedding(sparse[:, k], table.weight).sum(1)
                       for k, table in enumerate(self.tables)]
        all_parts = torch.stack(parts, dim=1)
        product = all_parts @ all_parts.transpose(1, 2)
        rows, columns = torch.tril_indices(4, 4, offset=-1)
        y = self.top(torch.cat([x, product[:, rows, columns]], dim=1))
        return F.binary_cross_entropy_with_logits(y[:, 0], clicks)


@entry("adam")
def dlrm():
    torch.manual_seed(8)
    return Dlrm(), {"dense": torch.rand(16, 13), "sparse": torch.randint(0, 20, (16, 3, 2)),
                    "clicks": (torch.arange(16) % 2).float()}


class Byol(nn.Module):
    """
    A target network, the running average of the other one: parameters that require no
    gradient and that the forward pass moves, under torch.no_grad().
    """

    def __init__(self, width=16):
        super().__init__()
        self.online, self.target = (
            nn.Sequential(nn.Linear(32, width), nn.BatchNorm1d(width), nn.ReLU(),
                          nn.Linear(width, 8)) for _ in range(2))
        self.predict = nn.Linear(8, 8)
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)

    def forward(self, one, two):
        y = F.normalize(self.predict(self.online(one)), dim=-1)
        with torch.no_grad():
            for to, of in zip(self.target.parameters(), self.online.parameters()):
                to.lerp_(of, 0.1)
            z = F.normalize(self.target(two), dim=-1)
        return 2 - 2 * (y * z).sum(-1).mean()


@entry("adamw")
def byol():
    torch.manual_seed(14)
    return Byol(), {"one": torch.randn(16, 32), "two": torch.randn(16, 32)}


class Dqn(nn.Module):
    """The error of Q-learning against a frozen network, Huber loss, masked ends."""

    def __init__(self):
        super().__init__()
        self.net, self.frozen = (
            nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)) for _ in range(2))
        self.frozen.requires_grad_(False)

    def forward(self, now, action, reward, then, end):
        value = self.net(now).gather(1, action[:, None])[:, 0]
        with torch.no_grad():
            best = self.net(then).argmax(dim=1, keepdim=True)  # double Q-learning
            goal = reward + 0.9 * self.frozen(then).gather(1, best)[:, 0] * ~end
        return F.smooth_l1_loss(value, goal)


@entry("adam")
def dqn():
    torch.manual_seed(15)
    return Dqn(), {"now": torch.randn(16, 8), "action": torch.arange(16) % 4,
                   "reward": torch.randn(16), "then": torch.randn(16, 8),
                   "end": torch.arange(16) % 5 == 0}


# ---- modules of transformers ----


def tokens_of(shape=(8, 16), vocab=64):
    tokens = torch.randint(1, vocab, shape)
    return {"input_ids": tokens, "labels": tokens.clone()}


@entry("adam")
def gpt2():
    import transformers as hf

    torch.manual_seed(9)
    config = hf.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4,
                           resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
                           bos_token_id=0, eos_token_id=0)
    return hf.GPT2LMHeadModel(config), tokens_of()


@entry("adam")
def llama():
    import transformers as hf

    torch.manual_seed(10)
    config = hf.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64,
                            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                            use_cache=False)
    return hf.LlamaForCausalLM(config), tokens_of()


@entry("adam")
def bert():
    import transformers as hf

    torch.manual_seed(11)
    config = hf.BertConfig(vocab_size=64, hidden_size=32, intermediate_size=64,
                           num_hidden_layers=2, num_attention_heads=4,
                           max_position_embeddings=16, hidden_dropout_prob=0.0,
                           attention_probs_dropout_prob=0.0)
    inputs = tokens_of()
    mask = torch.ones_like(inputs["input_ids"])
    mask[:, 12:] = 0
    inputs["input_ids"] = inputs["input_ids"] * mask
    inputs["labels"] = torch.where(mask > 0, inputs["labels"], -100)
    return hf.BertForMaskedLM(config), {"input_ids": inputs["input_ids"],
                                        "attention_mask": mask, "labels": inputs["labels"]}


@entry("adam")
def vit():
    import transformers as hf

    torch.manual_seed(12)
    config = hf.ViTConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                          num_attention_heads=4, image_size=16, patch_size=4, num_labels=10,
                          hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return hf.ViTForImageClassification(config), {"pixel_values": torch.randn(8, 3, 16, 16),
                                                  "labels": torch.arange(8)}


@entry("adam")
def t5():
    import transformers as hf

    torch.manual_seed(13)
    config = hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                         dropout_rate=0.0, use_cache=False, decoder_start_token_id=0)
    return hf.T5ForConditionalGeneration(config), tokens_of((8, 8))


class Adapted(nn.Module):
    """A linear layer that is frozen, with an adapter of low rank beside it (LoRA)."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


@entry("adamw")
def lora():
    model, inputs = llama()
    model.requires_grad_(False)
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_proj, attention.v_proj = Adapted(attention.q_proj), Adapted(attention.v_proj)
    return model, inputs


@entry("adamw", 1e-3)
def llama_bf16():
    """Weights and activations in bf16."""
    model, inputs = llama()
    return model.to(torch.bfloat16), inputs


class Autocast(nn.Module):
    """Weights in f32, products in bf16, activations recomputed in the backward pass."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(self, input_ids, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(input_ids=input_ids, labels=labels).loss


@entry("adamw", 1e-3)
def gpt2_amp():
    model, inputs = gpt2()
    return Autocast(model), inputs


@entry("adamw")
def mixtral():
    import transformers as hf

    torch.manual_seed(16)
    config = hf.MixtralConfig(vocab_size=64, hidden_size=32, intermediate_size=32,
                              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                              num_local_experts=4, use_cache=False, output_router_logits=True)
    config._experts_implementation = "batched_mm"  # "grouped_mm" has no rule
    return hf.MixtralForCausalLM(config), tokens_of()


@entry("momentum")
def resnet():
    import transformers as hf

    torch.manual_seed(17)
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2],
                             layer_type="basic", num_labels=10)
    return hf.ResNetForImageClassification(config), {
        "pixel_values": torch.randn(8, 3, 32, 32), "labels": torch.arange(8)}


@entry("adam")
def whisper():
    import transformers as hf

    torch.manual_seed(18)
    config = hf.WhisperConfig(vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1,
                              encoder_attention_heads=4, decoder_attention_heads=4,
                              encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
                              max_source_positions=8, max_target_positions=8, dropout=0.0,
                              use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                              decoder_start_token_id=1)
    return hf.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(8, 8, 16), "labels": tokens_of((8, 8))["labels"]}
