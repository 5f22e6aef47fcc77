"""The models of bench.py in PyTorch. Queries, keys and values of one layer are one product."""
import gc

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def values(model, name):
    return torch.from_numpy(model.draw(name)).to(DEVICE)


def parameter(model, name):
    return nn.Parameter(values(model, name))


def linear(model, *paths):
    """One layer that computes what `paths` do, side by side."""
    w = torch.cat([values(model, f"{p}/w") for p in paths], 1).T.contiguous()
    layer = nn.Linear(w.shape[1], w.shape[0], f"{paths[0]}/b" in model, device="meta")
    layer.weight = nn.Parameter(w)
    if layer.bias is not None:
        layer.bias = nn.Parameter(torch.cat([values(model, f"{p}/b") for p in paths]))
    return layer


def norm(model, path):
    n = model.shape(f"{path}/scale")[0]
    if f"{path}/bias" not in model:
        layer = nn.RMSNorm(n, eps=1e-5, device="meta")
    else:
        layer = nn.LayerNorm(n, device="meta")
        layer.bias = parameter(model, f"{path}/bias")
    layer.weight = parameter(model, f"{path}/scale")
    return layer


# --- mixtures of experts ---


class Dispatch(torch.autograd.Function):
    """The tokens that experts' slots hold; backward, each token adds up its slots."""

    @staticmethod
    def forward(ctx, x, token, slot, kept):
        ctx.save_for_backward(slot, kept)
        return x[token]

    @staticmethod
    def backward(ctx, d):
        slot, kept = ctx.saved_tensors
        return (d[slot] * kept[..., None]).sum(1), None, None, None


class Combine(torch.autograd.Function):
    """Each token's sum of its slots times their gates."""

    @staticmethod
    def forward(ctx, y, gates, token, slot, of_slot):
        ctx.save_for_backward(y, gates, token, slot, of_slot)
        return (y[slot] * gates[..., None]).sum(1)

    @staticmethod
    def backward(ctx, d):
        y, gates, token, slot, of_slot = ctx.saved_tensors
        flat = torch.cat((gates.flatten(), gates.new_zeros(1)))  # the last one: of a slot without a token
        return ((d[token] * flat[of_slot][:, None]).to(y.dtype),
                (y[slot] * d[:, None, :]).sum(-1, dtype=gates.dtype), None, None, None)


class Experts(nn.Module):
    """GShard's: the best `top` experts of each token, of which an expert takes `capacity` per sequence, first
    choices before second ones; by indices in place of products with masks."""

    def __init__(self, model, path):
        super().__init__()
        self.router, self.top = linear(model, f"{path}/router"), model.top
        self.w, self.b = (nn.ParameterList(parameter(model, f"{path}/{n}/{leaf}") for n in ("fc", "proj"))
                          for leaf in "wb")
        self.balance = None

    def forward(self, x):
        batch, seq, width = x.shape
        experts, top = self.w[0].shape[0], self.top
        capacity = -(-top * seq // experts)
        slots = experts * batch * capacity

        probs = self.router(x).float().softmax(-1)
        best = probs.topk(top, -1).indices
        gates = probs.gather(-1, best)
        gates = gates / gates.sum(-1, keepdim=True)
        choice = best.transpose(1, 2).reshape(batch, top * seq)  # all first choices, then all second ones
        hot = choice[..., None] == torch.arange(experts, device=x.device)
        place = hot.cumsum(1, dtype=torch.int32).gather(-1, choice[..., None])[..., 0] - 1
        row = torch.arange(batch, device=x.device)[:, None]
        kept = place < capacity
        slot = torch.where(kept, (choice * batch + row) * capacity + place, slots)
        slot, kept = (t.view(batch, top, seq).transpose(1, 2).reshape(batch * seq, top) for t in (slot, kept))
        # of each slot, which of the tokens' choices it holds
        of_slot = torch.full((slots + 1,), batch * seq * top, device=x.device)
        of_slot = of_slot.scatter(0, slot.flatten(), torch.arange(batch * seq * top, device=x.device))[:slots]
        token = (of_slot // top).clamp(max=batch * seq - 1)  # of an empty slot: any
        slot = slot.clamp(max=slots - 1)

        low = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        y = Dispatch.apply(x.to(low).view(batch * seq, width), token, slot, kept)
        y = F.gelu(torch.baddbmm(self.b[0][:, None], y.view(experts, -1, width), self.w[0]), approximate="tanh")
        y = torch.baddbmm(self.b[1][:, None], y, self.w[1]).view(slots, width)
        y = Combine.apply(y, gates.view(-1, top) * kept, token, slot, of_slot)
        share = hot[:, :seq].float().mean((0, 1))
        return y.view(batch, seq, width), experts * (share * probs.mean((0, 1))).sum()


# --- transformers ---


class Block(nn.Module):
    def __init__(self, model, path):
        super().__init__()
        self.heads, self.norms = model.heads, nn.ModuleList(norm(model, f"{path}/ln_{i}") for i in (1, 2))
        self.qkv, self.out = linear(model, *(f"{path}/attn/{n}" for n in "qkv")), linear(model, f"{path}/attn/o")
        self.experts = Experts(model, f"{path}/moe") if f"{path}/moe/router/w" in model else None
        if not self.experts:
            self.up, self.down = linear(model, f"{path}/mlp/fc"), linear(model, f"{path}/mlp/proj")

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
        y = self.norms[1](x)
        if self.experts:
            y, balance = self.experts(y)
            return x + y, balance
        return x + self.down(F.gelu(self.up(y), approximate="tanh")), 0


class GPT(nn.Module):
    """Also with experts in some layers."""

    def __init__(self, model):
        super().__init__()
        self.tokens, self.places = parameter(model, f"{model.root}/wte"), parameter(model, f"{model.root}/wpe")
        self.blocks = nn.ModuleList(Block(model, path) for path in model.layers("ln_1/scale"))
        self.norm = norm(model, f"{model.root}/ln_f")

    def forward(self, ids, labels):
        x = F.embedding(ids, self.tokens) + self.places
        aux = 0
        for block in self.blocks:
            x, balance = block(x)
            aux = aux + balance
        logits = F.linear(self.norm(x), self.tokens)
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten()) + 0.01 * aux


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, model, path):
        super().__init__()
        self.heads, self.keys = model.heads, model.kv_heads
        self.norms = nn.ModuleList(norm(model, f"{path}/ln_{i}") for i in (1, 2))
        self.w = nn.ModuleList(linear(model, f"{path}/{n}") for n in (
            "attn/q", "attn/k", "attn/v", "attn/o", "mlp/gate", "mlp/up", "mlp/down"))

    def forward(self, x, cos, sin):
        b, s, h = x.shape
        y = self.norms[0](x)
        q, k, v = (w(y).view(b, s, n, -1).transpose(1, 2) for w, n in zip(self.w, (self.heads, self.keys, self.keys)))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True,
                                           enable_gqa=True)
        x = x + self.w[3](y.transpose(1, 2).reshape(b, s, h))
        y = self.norms[1](x)
        return x + self.w[6](F.silu(self.w[4](y)) * self.w[5](y))


class Llama(nn.Module):
    def __init__(self, model):
        super().__init__()
        seq, hidden = model.shape("tokens")[1], model.shape("llama/wte")[1]
        self.tokens, self.norm = parameter(model, "llama/wte"), norm(model, "llama/ln_f")
        self.blocks = nn.ModuleList(LlamaBlock(model, path) for path in model.layers("ln_1/scale"))
        self.head = linear(model, "llama/head").weight if "llama/head/w" in model else self.tokens
        half = hidden // model.heads // 2
        angle = torch.arange(seq)[:, None] * 5e5 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos().to(DEVICE))
        self.register_buffer("sin", angle.sin().to(DEVICE))

    def forward(self, ids, labels):
        x = F.embedding(ids, self.tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(F.linear(self.norm(x), self.head).float().flatten(0, 1), labels.flatten())


# --- ResNet ---


class ConvNorm(nn.Module):
    """ap-model pads strided windows at their end (as TensorFlow and JAX do), PyTorch at the beginning: on the image
    turned by 180 degrees, with kernels turned, the two are the same. A window of one then takes the last of two."""

    def __init__(self, model, path, stride=1):
        super().__init__()
        w = values(model, f"{path}/w").flip(0, 1).permute(3, 2, 0, 1)
        out, inner, size, _ = w.shape
        self.skip = stride if size == 1 else 1
        self.conv = nn.Conv2d(inner, out, size, stride // self.skip, size // 2, bias=False, device=DEVICE)
        self.conv.weight = nn.Parameter(w.contiguous(memory_format=torch.channels_last))
        self.norm = nn.BatchNorm2d(out, device=DEVICE)
        self.norm.weight = parameter(model, f"{path}/bn/scale")
        self.norm.bias = parameter(model, f"{path}/bn/bias")

    def forward(self, x):
        if self.skip > 1:
            x = x[:, :, (x.shape[2] - 1) % 2::2, (x.shape[3] - 1) % 2::2]
        return self.norm(self.conv(x))


class Residual(nn.Module):
    def __init__(self, model, path, stride):
        super().__init__()
        n = sum(f"{path}/conv_{i}/w" in model for i in range(3))
        at = 1 if n == 3 else 0  # the convolution that strides
        self.convs = nn.ModuleList(ConvNorm(model, f"{path}/conv_{i}", stride if i == at else 1) for i in range(n))
        short = f"{path}/shortcut"
        self.shortcut = ConvNorm(model, short, stride) if f"{short}/w" in model else nn.Identity()

    def forward(self, x):
        y = x
        for i, conv in enumerate(self.convs):
            y = conv(y if i == 0 else F.relu(y, inplace=True))
        return F.relu(y + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.stem = ConvNorm(model, "resnet/stem", 2 if model.shape("resnet/stem/w")[0] == 7 else 1)
        paths = [(s, i, f"resnet/stage_{s}/block_{i}") for s in range(4) for i in range(50)]
        self.blocks = nn.Sequential(*(Residual(model, path, 2 if s and i == 0 else 1)
                                      for s, i, path in paths if f"{path}/conv_0/w" in model))
        self.head = linear(model, "resnet/fc")

    def forward(self, image, label):
        x = F.max_pool2d(F.relu(self.stem(image), inplace=True), 3, 2, 1)
        return F.cross_entropy(self.head(self.blocks(x).mean((2, 3))), label)


# --- rows ---


def optimizer_of(model, parameters):
    fused = DEVICE == "cuda"
    if model.optimizer == "momentum":
        return torch.optim.SGD(parameters, model.lr, 0.9, fused=fused)
    kind = torch.optim.AdamW if model.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, model.lr, fused=fused)


def prepare(model, way):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = model.type == "tf32"
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    net = {"resnet": ResNet, "llama": Llama}.get(model.root, GPT)(model)
    if model.root == "resnet":
        image = values(model, "image").flip(1, 2).permute(0, 3, 1, 2)
        inputs = image.contiguous(memory_format=torch.channels_last), values(model, "label").long()
    else:
        inputs = values(model, "tokens").long(), values(model, "labels").long()
    optimizer = optimizer_of(model, net.parameters())
    run = torch.compile(net) if way == "compiled" else net

    def step():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=model.type == "bf16"):
            loss = run(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def peak():
        return torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0

    return step, lambda loss: loss.item(), peak
