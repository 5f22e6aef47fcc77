# SPDX-License-Identifier: Apache-2.0
"""Modules of public packages, small and with random weights: what zoo-table --zoo packages exports,
checks, plans, and runs on ranks and in PyTorch (packages.txt has the versions). Entries are as in zoo.py.
"""
import functools

import torch
from torch import nn
from torch.nn import functional as F

from zoo import entry as entry_of
from zoo import tokens_of

ZOO = {}
entry = functools.partial(entry_of, zoo=ZOO)


class With(nn.Module):
    """A module and its loss: loss(module, **inputs)."""

    def __init__(self, module, loss):
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, **inputs):
        return self.loss(self.module, **inputs)


def images_of(size=32, n=8, classes=10):
    return {"images": torch.randn(n, 3, size, size), "labels": torch.arange(n) % classes}


def classifier(module, inputs, loss=F.cross_entropy):
    return With(module, lambda m, images, labels: loss(m(images), labels)), inputs


def sgd_of(model):
    """Weight decay for matrices alone, Nesterov's momentum."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    return torch.optim.SGD([{"params": decayed, "weight_decay": 0.01}, {"params": others, "lr": 0.02}],
                           lr=0.01, momentum=0.9, nesterov=True)


def radam_of(model):
    return torch.optim.RAdam([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def adamax_of(model):
    return torch.optim.Adamax([p for p in model.parameters() if p.requires_grad], lr=1e-3)


# ---- timm ----


@entry("adamw", 1e-3)
def timm_vit():
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=10,
                              init_values=0.1, reg_tokens=2)
    return classifier(model, images_of(), LabelSmoothingCrossEntropy(0.1))


@entry(sgd_of)
def timm_swin():
    from timm.models.swin_transformer import SwinTransformer

    torch.manual_seed(1)
    return classifier(SwinTransformer(img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2),
                                      num_heads=(2, 4), num_classes=10, drop_path_rate=0.0), images_of())


@entry("adamw", 1e-3)
def timm_convnext():
    from timm.models.convnext import ConvNeXt

    torch.manual_seed(2)
    return classifier(ConvNeXt(depths=(1, 1, 2, 1), dims=(8, 16, 24, 32), num_classes=10), images_of(64))


@entry("momentum", 1e-3)
def timm_mobilenet():
    import timm

    torch.manual_seed(3)
    return classifier(timm.create_model("mobilenetv3_small_050", num_classes=10, drop_rate=0.0), images_of(64))


# ---- transformers ----


@entry("adamw", 1e-3)
def hf_bert_padded():
    import transformers as hf

    torch.manual_seed(4)
    config = hf.BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                           intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                           num_labels=3)
    mask = torch.arange(16)[None] < torch.tensor([16, 12, 9, 3, 16, 1, 7, 10])[:, None]
    return hf.BertForSequenceClassification(config), {
        "input_ids": torch.randint(0, 64, (8, 16)), "attention_mask": mask.long(), "labels": torch.arange(8) % 3}


@entry(radam_of)
def hf_t5_tied():
    import transformers as hf

    torch.manual_seed(5)
    config = hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                         dropout_rate=0.0, use_cache=False, decoder_start_token_id=0)
    mask = torch.arange(12)[None] < torch.tensor([12, 9, 6, 3] * 2)[:, None]
    return hf.T5ForConditionalGeneration(config), {
        "input_ids": torch.randint(0, 64, (8, 12)), "attention_mask": mask.long(),
        "labels": torch.randint(0, 64, (8, 6))}


@entry("adam", 1e-3)
def hf_clip():
    import transformers as hf

    torch.manual_seed(6)
    text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 16, "eos_token_id": 63}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "image_size": 32, "patch_size": 8}
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    words = torch.randint(0, 62, (8, 10))
    words[:, -1] = 63
    loss = lambda m, input_ids, pixel_values: m(input_ids=input_ids, pixel_values=pixel_values,
                                                return_loss=True).loss
    return With(model, loss), {"input_ids": words, "pixel_values": torch.randn(8, 3, 32, 32)}


@entry("adamw", 1e-3)
def hf_qwen3_moe():
    import transformers as hf

    torch.manual_seed(7)
    config = hf.Qwen3MoeConfig(vocab_size=64, hidden_size=32, intermediate_size=64, moe_intermediate_size=16,
                               num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                               num_experts=4, num_experts_per_tok=2, use_cache=False, output_router_logits=True)
    return hf.Qwen3MoeForCausalLM(config), tokens_of()


@entry("adam", 1e-3)
def hf_mamba():
    import transformers as hf

    torch.manual_seed(8)
    config = hf.MambaConfig(vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2, use_cache=False,
                            use_mambapy=False)
    return hf.MambaForCausalLM(config), tokens_of((8, 8))


@entry("sgd", 0.05)
def hf_fnet():
    import transformers as hf

    torch.manual_seed(9)
    config = hf.FNetConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, intermediate_size=64,
                           hidden_dropout_prob=0.0, max_position_embeddings=16)
    return hf.FNetForMaskedLM(config), tokens_of((8, 16))


@entry("adamw", 1e-3)
def hf_llama_left_padded():
    import transformers as hf

    torch.manual_seed(10)
    config = hf.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=2, use_cache=False)
    mask = torch.arange(16)[None] >= torch.tensor([0, 4, 7, 13, 0, 15, 9, 6])[:, None]
    words = torch.randint(0, 64, (8, 16))
    return hf.LlamaForCausalLM(config), {"input_ids": words, "attention_mask": mask.long(),
                                         "labels": words.masked_fill(~mask, -100)}


@entry("adam", 1e-3)
def hf_deberta():
    import transformers as hf

    torch.manual_seed(11)
    config = hf.DebertaV2Config(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                                relative_attention=True, position_buckets=8, max_position_embeddings=32,
                                pos_att_type=["p2c", "c2p"], share_att_key=True, type_vocab_size=0)
    mask = torch.arange(12)[None] < torch.tensor([12, 9, 6, 3] * 2)[:, None]
    return hf.DebertaV2ForTokenClassification(config), {
        "input_ids": torch.randint(0, 64, (8, 12)), "attention_mask": mask.long(),
        "labels": torch.randint(0, 2, (8, 12))}


@entry(sgd_of)
def hf_segformer():
    import transformers as hf

    torch.manual_seed(12)
    config = hf.SegformerConfig(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 1], hidden_sizes=[16, 32],
                                patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
                                decoder_hidden_size=16, hidden_dropout_prob=0.0, drop_path_rate=0.0,
                                attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0, num_labels=5)
    return hf.SegformerForSemanticSegmentation(config), {
        "pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 5, (4, 32, 32))}


@entry("adam", refused="modeling_wav2vec2.py:")
def hf_ctc():
    import transformers as hf

    torch.manual_seed(13)
    config = hf.Wav2Vec2Config(vocab_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                               intermediate_size=64, conv_dim=[16, 16], conv_stride=[4, 4], conv_kernel=[8, 8],
                               num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, hidden_dropout=0.0,
                               feat_proj_dropout=0.0, activation_dropout=0.0, attention_dropout=0.0, layerdrop=0.0,
                               mask_time_prob=0.0, final_dropout=0.0)
    return hf.Wav2Vec2ForCTC(config), {"input_values": torch.randn(4, 320),
                                       "labels": torch.randint(1, 16, (4, 5))}


# ---- x-transformers, vit-pytorch, open_clip, peft ----


@entry("adam", 1e-3)
def x_decoder():
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    torch.manual_seed(14)
    net = TransformerWrapper(num_tokens=64, max_seq_len=16, attn_layers=Decoder(
        dim=32, depth=2, heads=4, attn_dim_head=8, rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True,
        attn_qk_norm=True))
    return With(AutoregressiveWrapper(net), lambda m, tokens: m(tokens)), {"tokens": torch.randint(0, 64, (8, 13))}


@entry("adamw", 1e-3)
def x_encoder_masked():
    from x_transformers import ContinuousTransformerWrapper, Encoder

    torch.manual_seed(15)
    net = ContinuousTransformerWrapper(dim_in=12, dim_out=4, max_seq_len=16, attn_layers=Encoder(
        dim=32, depth=2, heads=4, attn_dim_head=8, alibi_pos_bias=True, alibi_num_heads=2))
    mask = torch.arange(10)[None] < torch.tensor([10, 7, 4, 1] * 2)[:, None]
    loss = lambda m, x, mask, y: ((m(x, mask=mask) - y).square() * mask[..., None]).mean()
    return With(net, loss), {
        "x": torch.randn(8, 10, 12), "mask": mask, "y": torch.randn(8, 10, 4)}


@entry(adamax_of)
def vit_pytorch_cait():
    from vit_pytorch.cait import CaiT

    torch.manual_seed(16)
    return classifier(CaiT(image_size=32, patch_size=8, num_classes=10, dim=32, depth=2, cls_depth=1, heads=4,
                           dim_head=8, mlp_dim=64), images_of())


@entry("adam", 1e-3)
def open_clip_towers():
    from open_clip.loss import ClipLoss
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    torch.manual_seed(17)
    model = CLIP(16, CLIPVisionCfg(layers=2, width=32, head_width=8, patch_size=8, image_size=32),
                 CLIPTextCfg(context_length=12, vocab_size=64, width=32, heads=4, layers=2))
    loss = ClipLoss()
    return With(model, lambda m, images, texts: loss(*m(images, texts))), {
        "images": torch.randn(8, 3, 32, 32), "texts": torch.randint(0, 64, (8, 12))}


@entry("adamw", 1e-3)
def peft_lora():
    import peft
    import transformers as hf

    torch.manual_seed(18)
    config = hf.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=4, use_cache=False)
    how = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0,
                          init_lora_weights=False, task_type="CAUSAL_LM")
    return peft.get_peft_model(hf.LlamaForCausalLM(config), how), tokens_of()


# ---- diffusers, denoising-diffusion-pytorch ----


@entry("adamw", 1e-3)
def diffusers_unet():
    from diffusers import DDPMScheduler, UNet2DConditionModel

    torch.manual_seed(19)
    model = UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, block_out_channels=(16, 32), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16, attention_head_dim=4, norm_num_groups=4)
    level = DDPMScheduler(num_train_timesteps=100).alphas_cumprod

    def loss(m, latents, noise, times, words):
        a = level[times][:, None, None, None]
        return F.mse_loss(m(a.sqrt() * latents + (1 - a).sqrt() * noise, times, words).sample, noise)

    return With(model, loss), {"latents": torch.randn(4, 4, 16, 16), "noise": torch.randn(4, 4, 16, 16),
                               "times": torch.tensor([3, 40, 77, 99]), "words": torch.randn(4, 6, 16)}


@entry("adam", 1e-3)
def diffusers_vae():
    from diffusers import AutoencoderKL

    torch.manual_seed(20)
    model = AutoencoderKL(block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2,
                          up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4, latent_channels=4)

    def loss(m, images, noise):
        code = m.encode(images).latent_dist
        return F.l1_loss(m.decode(code.mean + code.std * noise).sample, images) + 1e-3 * code.kl().mean()

    return With(model, loss), {"images": torch.randn(4, 3, 16, 16), "noise": torch.randn(4, 4, 8, 8)}


@entry("adamw", 1e-3)
def diffusers_dit():
    from diffusers import DiTTransformer2DModel

    torch.manual_seed(21)
    model = DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=8, in_channels=4, num_layers=2,
                                  sample_size=8, patch_size=2, num_embeds_ada_norm=10, dropout=0.0)
    for block in model.transformer_blocks:
        block.norm1.emb.class_embedder.dropout_prob = 0.0  # labels are dropped at random otherwise
    loss = lambda m, x, times, labels, noise: F.mse_loss(m(x, timestep=times, class_labels=labels).sample, noise)
    return With(model, loss), {"x": torch.randn(4, 4, 8, 8), "times": torch.tensor([1, 5, 20, 400]),
                               "labels": torch.arange(4), "noise": torch.randn(4, 4, 8, 8)}


@entry("adam", 1e-3)
def ddpm_unet():
    from denoising_diffusion_pytorch import Unet

    torch.manual_seed(22)
    model = Unet(dim=8, dim_mults=(1, 2), channels=3, attn_heads=2, attn_dim_head=8, full_attn=(False, True),
                 flash_attn=False)
    return With(model, lambda m, x, times, noise: F.mse_loss(m(x, times), noise)), {
        "x": torch.randn(4, 3, 16, 16), "times": torch.tensor([1, 5, 20, 400]), "noise": torch.randn(4, 3, 16, 16)}


# ---- torch_geometric ----


def graph_of(nodes=32, edges=96):
    return {"x": torch.randn(nodes, 12), "edges": torch.randint(0, nodes, (2, edges)),
            "labels": torch.randint(0, 4, (nodes,))}


@entry("adam", 0.01, refused="utils/loop.py:")
def pyg_gcn():
    from torch_geometric.nn import GCN

    torch.manual_seed(22)
    model = GCN(12, 16, num_layers=2, out_channels=4)
    return With(model, lambda m, x, edges, labels: F.cross_entropy(m(x, edges), labels)), graph_of()


@entry("adam", 0.01)
def pyg_sage():
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(23)
    model = GraphSAGE(12, 16, num_layers=2, out_channels=4, norm="batch_norm")
    return With(model, lambda m, x, edges, labels: F.cross_entropy(m(x, edges), labels)), graph_of()


@entry("adam", 0.01)
def pyg_gat():
    from torch_geometric.nn import GATv2Conv

    torch.manual_seed(24)
    model = GATv2Conv(12, 4, heads=2, concat=False, add_self_loops=False)
    return With(model, lambda m, x, edges, labels: F.cross_entropy(m(x, edges), labels)), graph_of()


@entry("adam", 0.01)
def pyg_gin_pooled():
    from torch_geometric.nn import GIN, global_max_pool, global_mean_pool

    torch.manual_seed(25)

    def loss(m, x, edges, batch, labels):
        h = m(x, edges)
        return F.cross_entropy(global_mean_pool(h, batch, size=8) + global_max_pool(h, batch, size=8), labels)

    return With(GIN(12, 16, num_layers=2, out_channels=4), loss), {
        "x": torch.randn(32, 12), "edges": torch.randint(0, 32, (2, 96)), "batch": torch.arange(32) // 4,
        "labels": torch.arange(8) % 4}


# ---- images: segmentation_models_pytorch, torchvision, monai, kornia ----


@entry("sgd", 1e-3)
def smp_unet():
    import segmentation_models_pytorch as smp

    torch.manual_seed(26)
    model = smp.Unet("mobilenet_v2", encoder_weights=None, encoder_depth=3, decoder_channels=(16, 8, 8), classes=3)
    dice = smp.losses.DiceLoss("multiclass", from_logits=True)
    focal = smp.losses.FocalLoss("multiclass")
    return With(model, lambda m, images, labels: (lambda y: dice(y, labels) + focal(y, labels))(m(images))), {
        "images": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 3, (4, 32, 32))}


@entry("momentum")
def tv_densenet():
    from torchvision.models import DenseNet

    torch.manual_seed(28)
    return classifier(DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, num_classes=10), images_of())


@entry("momentum")
def tv_shufflenet():
    from torchvision.models import ShuffleNetV2

    torch.manual_seed(29)
    return classifier(ShuffleNetV2([1, 2, 1], [8, 16, 24, 32, 64], num_classes=10), images_of())


@entry("adamw", 1e-3)
def monai_unet3d():
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    torch.manual_seed(30)
    model = UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)
    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    return With(model, lambda m, x, y: loss(m(x), y)), {
        "x": torch.randn(4, 1, 8, 8, 8), "y": torch.randint(0, 3, (4, 1, 8, 8, 8))}


@entry("adam", 1e-3)
def monai_unetr():
    from monai.losses import TverskyLoss
    from monai.networks.nets import UNETR

    torch.manual_seed(31)
    model = UNETR(in_channels=1, out_channels=2, img_size=(32, 32), feature_size=4, hidden_size=24, mlp_dim=48,
                  num_heads=4, spatial_dims=2)
    loss = TverskyLoss(sigmoid=True)
    return With(model, lambda m, x, y: loss(m(x), y)), {
        "x": torch.randn(4, 1, 32, 32), "y": torch.randint(0, 2, (4, 2, 32, 32)).float()}


@entry("adam", 1e-3)
def kornia_ssim():
    from kornia.filters import gaussian_blur2d, sobel
    from kornia.losses import ssim_loss

    torch.manual_seed(32)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.PReLU(), nn.ConvTranspose2d(8, 3, 3, padding=1),
                          nn.Sigmoid())

    def loss(m, images):
        y = m(gaussian_blur2d(images, (5, 5), (1.5, 1.5)))
        return ssim_loss(y, images, 5) + (sobel(y) - sobel(images)).abs().mean()

    return With(model, loss), {"images": torch.rand(4, 3, 16, 16)}


# ---- representations: lightly, pytorch-metric-learning, vector-quantize-pytorch ----


@entry("momentum")
def lightly_simclr():
    from lightly.loss import NTXentLoss
    from lightly.models.modules.heads import SimCLRProjectionHead

    torch.manual_seed(33)
    net = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), SimCLRProjectionHead(32, 32, 16))
    loss = NTXentLoss(temperature=0.5)
    return With(net, lambda m, one, two: loss(m(one), m(two))), {
        "one": torch.randn(8, 24), "two": torch.randn(8, 24)}


@entry("adam", 1e-3)
def lightly_vicreg():
    from lightly.loss import BarlowTwinsLoss, VICRegLoss
    from lightly.models.modules.heads import BarlowTwinsProjectionHead

    torch.manual_seed(34)
    net = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), BarlowTwinsProjectionHead(32, 32, 16))
    losses = VICRegLoss(), BarlowTwinsLoss()
    return With(net, lambda m, one, two: sum(f(m(one), m(two)) for f in losses)), {
        "one": torch.randn(8, 24), "two": torch.randn(8, 24)}


@entry("adam", refused="large_margin_softmax_loss.py:")
def pml_arcface():
    from pytorch_metric_learning.losses import ArcFaceLoss

    torch.manual_seed(35)
    net = nn.Sequential(nn.Linear(24, 32), nn.ELU(), nn.Linear(32, 16))
    head = ArcFaceLoss(num_classes=5, embedding_size=16)
    return With(nn.ModuleList([net, head]), lambda m, x, labels: m[1](m[0](x), labels)), {
        "x": torch.randn(16, 24), "labels": torch.arange(16) % 5}


@entry("adam", refused="loss_and_miner_utils.py:")
def pml_multi_similarity():
    from pytorch_metric_learning.losses import MultiSimilarityLoss

    torch.manual_seed(36)
    loss = MultiSimilarityLoss()
    return With(nn.Linear(24, 16), lambda m, x, labels: loss(m(x), labels)), {
        "x": torch.randn(16, 24), "labels": torch.arange(16) % 5}


@entry("adam", 1e-3)
def vq_ema():
    from vector_quantize_pytorch import VectorQuantize

    torch.manual_seed(37)
    net = nn.ModuleList([nn.Linear(12, 16), VectorQuantize(dim=16, codebook_size=32, decay=0.9, kmeans_init=False,
                                                           threshold_ema_dead_code=0), nn.Linear(16, 12)])

    def loss(m, x):
        codes, _, commitment = m[1](m[0](x))
        return F.mse_loss(m[2](codes), x) + commitment.sum()

    return With(net, loss), {"x": torch.randn(8, 6, 12)}


@entry("adam", 1e-3)
def vq_fsq():
    from vector_quantize_pytorch import FSQ

    torch.manual_seed(38)
    net = nn.ModuleList([nn.Linear(12, 16), FSQ(levels=[8, 5, 5], dim=16), nn.Linear(16, 12)])
    return With(net, lambda m, x: F.mse_loss(m[2](m[1](m[0](x))[0]), x)), {"x": torch.randn(8, 6, 12)}


# ---- sound, and others: torchaudio, speechbrain, entmax, torchdiffeq, e3nn, gpytorch ----


@entry("adam", refused="models/conformer.py:")
def torchaudio_conformer():
    from torchaudio.models import Conformer

    torch.manual_seed(39)
    net = Conformer(input_dim=16, num_heads=4, ffn_dim=32, num_layers=2, depthwise_conv_kernel_size=5)
    return With(net, lambda m, x, lengths, y: F.mse_loss(m(x, lengths)[0], y)), {
        "x": torch.randn(4, 12, 16), "lengths": torch.tensor([12, 9, 7, 12]), "y": torch.randn(4, 12, 16)}


@entry("adam", 1e-3)
def torchaudio_mel():
    from torchaudio.transforms import MelSpectrogram

    torch.manual_seed(40)
    mel = MelSpectrogram(sample_rate=4000, n_fft=64, hop_length=32, n_mels=8)
    net = nn.Sequential(mel, nn.Conv1d(8, 16, 3), nn.GELU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    return With(net, lambda m, wave, labels: F.cross_entropy(m(wave), labels)), {
        "wave": torch.randn(8, 512), "labels": torch.arange(8) % 4}


@entry("adam", 1e-3)
def speechbrain_ecapa():
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

    torch.manual_seed(41)
    net = ECAPA_TDNN(8, lin_neurons=12, channels=[16, 16, 16, 16, 48], kernel_sizes=[5, 3, 3, 3, 1],
                     dilations=[1, 2, 3, 4, 1], attention_channels=8, res2net_scale=4, se_channels=8)
    return With(net, lambda m, x, labels: F.cross_entropy(m(x)[:, 0], labels)), {
        "x": torch.randn(8, 20, 8), "labels": torch.arange(8)}


@entry("adam", 1e-3)
def entmax_attention():
    from entmax import entmax15, sparsemax

    torch.manual_seed(42)
    net = nn.MultiheadAttention(16, 2, batch_first=True)

    def loss(m, x, y):
        h = m(x, x, x)[0]
        return F.mse_loss(sparsemax(h @ h.transpose(1, 2), dim=-1) @ x + entmax15(h, dim=-1), y)

    return With(net, loss), {"x": torch.randn(8, 6, 16), "y": torch.randn(8, 6, 16)}


@entry("adam", 1e-3)
def neural_ode():
    from torchdiffeq import odeint

    torch.manual_seed(43)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
    times = torch.linspace(0, 1, 4)
    return With(net, lambda m, x, y: F.mse_loss(odeint(lambda _, h: m(h), x, times, method="rk4")[-1], y)), {
        "x": torch.randn(8, 6), "y": torch.randn(8, 6)}


@entry("adam", 1e-3)
def e3nn_layer():
    from e3nn import o3

    torch.manual_seed(44)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = o3.Linear("8x0e + 4x1o", "8x0e + 4x1o")
            self.product = o3.FullyConnectedTensorProduct("8x0e + 4x1o", "1x0e + 1x1o", "4x0e")

        def forward(self, x, way):
            harmonics = o3.spherical_harmonics("0e + 1o", way, normalize=True)
            return self.product(self.mix(x), harmonics)

    return With(Layer(), lambda m, x, way, y: F.mse_loss(m(x, way), y)), {
        "x": torch.randn(16, 20), "way": torch.randn(16, 3), "y": torch.randn(16, 4)}


@entry("adam", refused="kernels/kernel.py:")
def gp_exact():
    import gpytorch

    torch.manual_seed(45)

    class Exact(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.noise = nn.Parameter(torch.zeros(()))

        def forward(self, x, y):
            k = self.kernel(x).to_dense() + F.softplus(self.noise) * torch.eye(x.shape[0])
            return -torch.distributions.MultivariateNormal(torch.zeros(x.shape[0]), k, validate_args=False
                                                           ).log_prob(y) / x.shape[0]

    return Exact(), {"x": torch.rand(16, 2), "y": torch.randn(16)}
