"""Encoders of random weights for feature stores of tests."""

import timm
import torch

from hypvl.features import load_encoder

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tiny_encoders(folder, words):
    "An image encoder of timm, and one of transformers for texts that knows some words."
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(0)
    network = timm.create_model("test_efficientnet", pretrained=False)
    torch.save(network.state_dict(), folder / "weights.pth")
    bert, vocabulary = folder / "bert", [*MARKS, *words]
    bert.mkdir()
    (bert / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizer(vocab=str(bert / "vocab.txt")).save_pretrained(bert)
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertModel(BertConfig(vocab_size=len(vocabulary), **sizes)).save_pretrained(bert)
    image = load_encoder(f"timm:test_efficientnet/{folder}/weights.pth")
    return image, load_encoder(f"transformers:{bert}")
