"""Every causal family that transformers registers: reached with proof, or listed with the reason why not."""

from __future__ import annotations

import pytest
import transformers

from headwise.model.verify.families import attempt, names, shipped

VERSION, SHIPPED = shipped()
TABLE = {family.name: family for family in SHIPPED}


SAME = transformers.__version__ == VERSION
VERSIONS = f"the table was made with transformers {VERSION}, and {transformers.__version__} is installed"


def test_the_shipped_table_was_made_with_the_installed_transformers():
    if not SAME:
        pytest.skip(
            f"{VERSIONS}: only what should hold of every version is compared; make families writes it anew"
        )
    assert sorted(TABLE) == names()


@pytest.mark.parametrize("name", names())
def test_trying_a_family_gives_what_the_shipped_table_says(name):
    found, said = attempt(name), TABLE.get(name)
    if SAME:
        assert found == said
    elif name not in TABLE:
        pytest.skip(f"{VERSIONS}: {name} is new, and is {found.status}")
    elif TABLE[name].status == "reached":  # texts and reasons may change with the version, this may not
        assert found.status == "reached", VERSIONS


def test_at_least_ninety_five_decoder_families_are_reached():
    reached = [family.name for family in SHIPPED if family.status == "reached"]
    assert len(reached) >= 95
    wanted = (
        "gpt2 gpt_neox llama qwen2 qwen3 mistral mixtral gemma2 gemma3_text olmo olmo2 phi phi3 opt stablelm cohere "
        "gptj gpt_neo falcon bloom mpt codegen xglm smollm3 granite starcoder2 deepseek_v3 gpt_oss jamba qwen3_next"
    )
    assert not set(wanted.split()) - set(reached)


def test_families_that_call_no_attention_function_are_reached_by_the_hook():
    for name in "gptj gpt_neo falcon bloom mpt codegen xglm".split():
        assert TABLE[name].how == "projection hook"


def test_encoders_are_refused_because_they_are_not_causal():
    for name in ("bert", "roberta", "electra"):
        assert TABLE[name].status == "refused"
        assert "not causal" in TABLE[name].how


def test_families_without_attention_are_refused():
    for name in ("mamba", "rwkv"):
        assert TABLE[name].status == "refused"
        assert "no attention heads" in TABLE[name].how


def test_a_hybrid_has_heads_only_where_it_has_attention():
    from headwise.model.verify.proof import verify
    from headwise.model.verify.tiny import tiny_model

    hooks, *_ = verify(tiny_model("jamba"))
    assert hooks.shape == (4, 4)
    assert hooks.exists.any(axis=1).tolist() == [False, True, False, True]
