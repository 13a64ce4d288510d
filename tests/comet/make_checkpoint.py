"""Run by COMET's own Python: a tiny random COMET model in the folder given, as its trainer would leave it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import yaml
from comet.models import RegressionMetric
from transformers import BertConfig, BertModel, BertTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?"


def main(folder: Path) -> None:
    encoder = folder / "encoder"
    encoder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (encoder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(vocab_file=str(encoder / "vocab.txt")).save_pretrained(encoder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(encoder)
    settings = {
        "encoder_model": "BERT",
        "pretrained_model": str(encoder),
        "hidden_sizes": [16],
        "layer_norm": False,
        "nr_frozen_epochs": 0.0,
    }
    model = RegressionMetric(**settings)
    for parameter in model.estimator.parameters():  # scores that differ visibly from text to text
        torch.nn.init.normal_(parameter, std=0.5)
    (folder / "checkpoints").mkdir()
    hyper = {**dict(model.hparams), "class_identifier": "regression_metric"}
    (folder / "hparams.yaml").write_text(yaml.safe_dump(hyper), encoding="utf-8")
    saved = {
        "state_dict": model.state_dict(),
        "hyper_parameters": hyper,
        "pytorch-lightning_version": "2.0.0",
    }
    torch.save(saved, folder / "checkpoints" / "model.ckpt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
