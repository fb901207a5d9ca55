"""A tokenizer of words for the small models; none can be downloaded here."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
TEXT = "ein das kleine kleines Haus ist schön a the small house is nice ."
WORDS = TEXT.split()


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Knows :data:`WORDS`; ends every text with ``</s>``."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *("▁" + w for w in WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
