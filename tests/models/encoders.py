"""Models of transformers that read a text as a whole, and those that write another one from it."""

from __future__ import annotations

from torch import Generator

from tests.models.case import CLASSES, WORDS, Call, Cases, classes, of_all, of_class, of_words, padded, reals, words
from tests.models.decoders import ENDS, SIZES, SMALL, made, transformer

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {"vocab_size": WORDS, **SIZES, **NO_DROPOUT, "pad_token_id": 0}
LABELS = {"num_labels": CLASSES}
DISTILBERT = {"vocab_size": WORDS, "dim": 16, "hidden_dim": 24, "n_layers": 4, "n_heads": 2, "dropout": 0.0}
DISTILBERT |= {"max_position_embeddings": 32, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
ALBERT = {**BERT, "embedding_size": 8, "classifier_dropout_prob": 0.0}
DEBERTA = {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 8}
T5 = {**SMALL, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
BART = {**SMALL, **ENDS, "d_model": 16, "max_position_embeddings": 32, "decoder_start_token_id": 2}
BART |= {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 2))}
BART |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
BART |= {what: 0.0 for what in ("dropout", "attention_dropout", "activation_dropout")}


def translated(rows: int, g: Generator) -> Call:
    """A text with padding, and the text that comes of it, up to the word that is asked for."""
    _, source = padded(rows, g)
    return (), {**source, "decoder_input_ids": words(rows, g, 5)}


def next_words(rows: int, g: Generator) -> object:
    return words(rows, g, 5)


def told_apart(rows: int, g: Generator) -> Call:
    """Two texts after each other, which the third argument tells apart."""
    _, kwargs = padded(rows, g)
    second = kwargs["attention_mask"].cumsum(1) > 2
    return (kwargs["input_ids"], kwargs["attention_mask"], second.long()), {}


ENCODERS: Cases = {
    "bert": transformer(made("BertConfig", "BertModel", **BERT), padded, reals(), of_all),
    "bert classifier": transformer(
        made("BertConfig", "BertForSequenceClassification", **BERT, **LABELS), told_apart, classes, of_class
    ),
    "distilbert": transformer(
        made("DistilBertConfig", "DistilBertForSequenceClassification", **DISTILBERT, **LABELS),
        *(padded, classes, of_class),
    ),
    "roberta": transformer(made("RobertaConfig", "RobertaModel", **BERT), padded, reals(), of_all),
    "electra": transformer(
        made("ElectraConfig", "ElectraForMaskedLM", **BERT, embedding_size=8), padded, words, of_words
    ),
    "albert": transformer(made("AlbertConfig", "AlbertModel", **ALBERT), padded, reals(), of_all),
    "deberta": transformer(made("DebertaV2Config", "DebertaV2Model", **DEBERTA), padded, reals(), of_all),
    "t5": transformer(made("T5Config", "T5ForConditionalGeneration", **T5), translated, next_words, of_words),
    "bart": transformer(made("BartConfig", "BartForConditionalGeneration", **BART), translated, next_words, of_words),
}
