"""Texts of outputs: where they are cut, what is held back, how a chat becomes a prompt."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.server import tokenizer_of
from fairsched.engines.server.text import ByteTokenizer, OutputText, chat_template

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def cut(text: str, stops: list[str]) -> str:
    """The text before the stop text that is whole first, and of those the longest: the definition."""
    for end in range(1, len(text) + 1):
        whole = [stop for stop in stops if text[:end].endswith(stop)]
        if whole:
            return text[: end - max(map(len, whole))]
    return text


@given(st.text("ab", max_size=40), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_a_text_ends_before_the_first_stop_text_that_is_whole(text: str, stops: list[str]) -> None:
    """Whatever overlaps; and what was handed out at any time is a beginning of the whole."""
    output, said = OutputText(ByteTokenizer(), stops), ""
    for token in text.encode():
        said += output.push(token)
        assert cut(text, stops).startswith(said)
    assert said + output.rest() == cut(text, stops)
    assert output.stopped == any(stop in text for stop in stops)


@given(st.text("ab", max_size=40), st.text("ab", min_size=1, max_size=5))
def test_no_more_is_held_back_than_could_be_a_stop_text(text: str, stop: str) -> None:
    """Everything up to the longest ending that begins the stop text is handed out at once."""
    output, said = OutputText(ByteTokenizer(), [stop]), ""
    for i, token in enumerate(text.encode(), 1):
        said += output.push(token)
        if output.stopped:
            return
        held = next(n for n in range(len(stop), -1, -1) if text[:i].endswith(stop[:n]))
        assert said == text[: i - held]


@given(st.binary(max_size=60))
def test_bytes_that_are_no_text_are_shown_as_such(raw: bytes) -> None:
    """Token by token comes what the whole would be, with a mark for each byte that belongs to no character."""
    output = OutputText(ByteTokenizer())
    said = "".join(output.push(byte) for byte in raw) + output.rest()
    assert said == raw.decode(errors="replace")


@given(st.text(max_size=60))
def test_bytes_of_a_text_are_that_text(text: str) -> None:
    """Encoded and decoded again it is the same, character by character."""
    tokenizer = ByteTokenizer()
    output = OutputText(tokenizer)
    assert "".join(map(output.push, tokenizer.encode(text))) + output.rest() == text


def test_a_long_stop_text_costs_no_more_than_a_short_one() -> None:
    """20,000 characters that are a beginning of the stop text again and again are each taken in constant time."""
    output = OutputText(ByteTokenizer(), ["a" * 20_000 + "b", "b" * 20_000])
    assert all(output.push(ord("a")) == "" for _ in range(20_000))
    assert output.push(ord("a")) == "a"
    assert output.push(ord("b")) == ""
    assert output.stopped
    assert output.rest() == ""


def test_a_folder_without_a_tokenizer_is_served_in_bytes(tmp_path: Path) -> None:
    """Without a folder too."""
    assert tokenizer_of(tmp_path).name == tokenizer_of(None).name == "bytes"


def test_a_models_own_template_writes_its_chats(tmp_path: Path) -> None:
    """From the tokenizer's configuration or from a file of its own, with special tokens as texts or as tables."""
    template = (
        "{{ bos_token }}{% for message in messages %}[{{ message.role }}]{{ message.content }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(config))
    render = chat_template(tmp_path)
    assert render is not None
    assert render(MESSAGES) == "<s>[user]Hi</s>[assistant]Ho</s>[assistant]"
    (tmp_path / "chat_template.jinja").write_text("{{ messages | length }}")
    render = chat_template(tmp_path)
    assert render is not None
    assert render(MESSAGES) == "2"
    assert chat_template(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_refuses_or_oversteps_is_an_error_of_the_call(tmp_path: Path, template: str) -> None:
    """It is run in a sandbox: it changes nothing and reaches nothing."""
    (tmp_path / "chat_template.jinja").write_text(template)
    render = chat_template(tmp_path)
    assert render is not None
    with pytest.raises(ValueError, match="does not take this chat"):
        render(MESSAGES)


def test_a_template_that_cannot_be_read_is_said_at_the_start(tmp_path: Path) -> None:
    """As is a configuration that is no JSON."""
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ValueError, match="the chat template cannot be read"):
        chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: cannot be read"):
        chat_template(tmp_path)


def test_a_models_own_tokenizer(tmp_path: Path) -> None:
    """`tokenizer.json` encodes prompts and decodes outputs token by token, characters of several tokens included."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = tokenizers.Tokenizer(models.BPE(vocab={mark: i for i, mark in enumerate(sorted(alphabet))}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("<s>{{ messages[0].content }}</s>")
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer.name == "tokenizer.json"
    ids = tokenizer.encode("né 日本!")
    assert len(ids) == len("né 日本!".encode())
    output = OutputText(tokenizer, ["本"])
    assert [output.push(token) for token in ids] == ["n", "", "é", " ", "", "", "日", "", "", "", ""]
    assert output.stopped
    chat = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    assert chat == [256, *tokenizer.encode("Hi"), 257]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json: cannot be read"):
        tokenizer_of(tmp_path)
