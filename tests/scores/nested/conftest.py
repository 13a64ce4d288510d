"""The model of 36 heads with four planted ones."""

from __future__ import annotations

import pytest

from planted import chain_model


@pytest.fixture(scope="package")
def chains(word_tokenizer):
    return chain_model(word_tokenizer)
