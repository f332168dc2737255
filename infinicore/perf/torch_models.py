"""PyTorch's side of the suite `train`: decoders in plain eager code, the way that we know to be fastest.

One product for query, key and value, and one for gate and up; fused attention and normalisations; cross entropy on
logits. Parameters have the names of our models, and those of a packed product the names of `PACKED`.
"""

# a product of several of our parts: their names, in its order of rows
PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def decoder(network):
    """The module for a `train_cases.Decoder`; its `loss(tokens, targets)` is the mean over all places."""
    return {"gpt2": _gpt2, "llama": _llama}[network.family](network)


def _head(nn, F):
    """The base class of both: mean cross entropy of a head that is the embedding."""

    class Model(nn.Module):
        def loss(self, tokens, targets):
            logits = self.lm_head(self.hidden(tokens))
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    return Model


def _gpt2(network):
    import torch
    import torch.nn.functional as F
    from torch import nn

    size, inner, heads = network.hidden, network.intermediate, network.heads

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(size, 3 * size), nn.Linear(size, size)

        def forward(self, x):
            shape = (*x.shape[:2], heads, size // heads)
            query, key, value = (part.view(shape).transpose(1, 2) for part in self.c_attn(x).split(size, 2))
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            return self.c_proj(attended.transpose(1, 2).reshape(x.shape))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc, self.c_proj = nn.Linear(size, inner), nn.Linear(inner, size)

        def forward(self, x):
            return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn = nn.LayerNorm(size), Attention()
            self.ln_2, self.mlp = nn.LayerNorm(size), MLP()

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT2(_head(nn, F)):
        def __init__(self):
            super().__init__()
            self.transformer = nn.ModuleDict(
                {
                    "wte": nn.Embedding(network.vocabulary, size),
                    "wpe": nn.Embedding(network.context, size),
                    "h": nn.ModuleList(Block() for _ in range(network.layers)),
                    "ln_f": nn.LayerNorm(size),
                }
            )
            self.lm_head = nn.Linear(size, network.vocabulary, bias=False)
            self.lm_head.weight = self.transformer["wte"].weight

        def hidden(self, tokens):
            parts = self.transformer
            x = parts["wte"](tokens) + parts["wpe"](torch.arange(tokens.shape[1], device=tokens.device))
            for block in parts["h"]:
                x = block(x)
            return parts["ln_f"](x)

    return GPT2()


def _llama(network):
    import torch
    import torch.nn.functional as F
    from torch import nn

    size, inner, heads, dim = network.hidden, network.intermediate, network.heads, network.hidden // network.heads

    def norm():
        return nn.RMSNorm(size, eps=1e-5)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv_proj = nn.Linear(size, 3 * size, bias=False)
            self.o_proj = nn.Linear(size, size, bias=False)

        def forward(self, x, sine, cosine):
            packed = self.qkv_proj(x).view(*x.shape[:2], 3, heads, dim)
            turned, value = packed[:, :, :2], packed[:, :, 2]
            first, second = turned.chunk(2, -1)
            sine, cosine = sine.to(x.dtype), cosine.to(x.dtype)
            query, key = (turned * cosine + torch.cat((-second, first), -1) * sine).unbind(2)
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            return self.o_proj(attended.transpose(1, 2).reshape(x.shape))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_up_proj = nn.Linear(size, 2 * inner, bias=False)
            self.down_proj = nn.Linear(inner, size, bias=False)

        def forward(self, x):
            gate, up = self.gate_up_proj(x).chunk(2, -1)
            return self.down_proj(F.silu(gate) * up)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.mlp = Attention(), MLP()
            self.input_layernorm, self.post_attention_layernorm = norm(), norm()

        def forward(self, x, sine, cosine):
            x = x + self.self_attn(self.input_layernorm(x), sine, cosine)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Llama(_head(nn, F)):
        def __init__(self):
            super().__init__()
            self.model = nn.ModuleDict(
                {
                    "embed_tokens": nn.Embedding(network.vocabulary, size),
                    "layers": nn.ModuleList(Layer() for _ in range(network.layers)),
                    "norm": norm(),
                }
            )
            self.lm_head = nn.Linear(size, network.vocabulary, bias=False)
            self.lm_head.weight = self.model["embed_tokens"].weight
            inverse = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
            angles = torch.outer(torch.arange(network.context, dtype=torch.float64), inverse).repeat(1, 2)
            # [tokens, 1, 1, dim]: over query and key, and over heads
            self.sine, self.cosine = (table.float()[:, None, None] for table in (angles.sin(), angles.cos()))

        def hidden(self, tokens):
            parts, count = self.model, tokens.shape[1]
            x, sine, cosine = parts["embed_tokens"](tokens), self.sine[:count], self.cosine[:count]
            for layer in parts["layers"]:
                x = layer(x, sine, cosine)
            return parts["norm"](x)

    return Llama()
