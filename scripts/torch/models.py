# SPDX-License-Identifier: Apache-2.0
"""A small GPT, a small ResNet and GPT-2 124M in PyTorch; the forward pass returns the loss.

Each function returns (module, inputs); scripts/torch/export.py calls it.
"""
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for t in self.qkv(self.ln_1(x)).split(width, dim=2))
        score = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
        seen = torch.tril(torch.ones(length, length, dtype=torch.bool))
        score = score.masked_fill(~seen, float("-inf"))
        y = (F.softmax(score, dim=-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, vocab=64, length=16, width=32, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Gpt2Block(nn.Module):
    """As in scripts/jax/models.py: keys have no bias, GELU is the tanh kind."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.v = nn.Linear(width, width), nn.Linear(width, width)
        self.k = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width)
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        y = self.ln_1(x)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for t in (self.q(y), self.k(y), self.v(y)))
        score = q @ k.transpose(2, 3) * (width // self.heads) ** -0.5
        seen = torch.tril(torch.ones(length, length, dtype=torch.bool))
        score = score.masked_fill(~seen, -1e9)
        y = (F.softmax(score, dim=-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.o(y)
        return x + self.proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocab=50257, length=1024, width=768, heads=12, layers=12):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Parameter(0.02 * torch.randn(length, width))
        self.h = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv_1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn_1 = nn.BatchNorm2d(outside)
        self.conv_2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn_2 = nn.BatchNorm2d(outside)
        self.short = None
        if stride != 1 or inside != outside:
            self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.bn_1(self.conv_1(x)))
        y = self.bn_2(self.conv_2(y))
        return F.relu(y + (x if self.short is None else self.short(x)))


class ResNet(nn.Module):
    def __init__(self, classes=10, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.layers = nn.ModuleList([Residual(width, width, 1), Residual(width, 2 * width, 2)])
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.bn(self.stem(images))), 2)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x.mean(dim=(2, 3))), labels)


def gpt():
    torch.manual_seed(0)
    tokens = torch.randint(0, 64, (8, 17))
    return GPT(), {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def resnet():
    torch.manual_seed(1)
    return ResNet(), {"images": torch.randn(8, 3, 16, 16), "labels": torch.randint(0, 10, (8,))}


def gpt2_124m():
    torch.manual_seed(0)
    tokens = torch.randint(0, 50257, (8, 1025))
    return Gpt2(), {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}


class Roles(torch.nn.Module):
    """Tied weights, a constant, a fixed buffer, and one that the forward pass changes."""

    def __init__(self):
        super().__init__()
        self.wte, self.head = torch.nn.Embedding(12, 8), torch.nn.Linear(8, 12, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, tokens, labels):
        x = self.wte(tokens) * self.scale + torch.tensor([0.1] * 4 + [0.2] * 4)
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return torch.nn.functional.cross_entropy(self.head(x), labels)


def roles():
    torch.manual_seed(0)
    return Roles(), {"tokens": torch.arange(16) % 12, "labels": torch.arange(16) * 5 % 12}
