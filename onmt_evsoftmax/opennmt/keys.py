"""Nothing that a user wrote is dropped in silence.

OpenNMT-py's training drops what it does not know, in the YAML file and on the command line: a
misspelt normalizer would leave the model with softmax. Here each of these is an error that says
where it stands and what was probably meant:

* a key or an option that no OpenNMT-py command knows, or a word that belongs to no option;
* a key twice in one YAML file, of which the last would win, or one of ours without a value;
* an unknown key, an unknown transform or a fractional weight in a corpus of ``data``;
* a number that OpenNMT-py would stumble over much later.
"""

from __future__ import annotations

import difflib
import functools
import io
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import yaml

from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.opennmt.options import add_parameters_of_others
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.opennmt.settings import EXTENDED, NORMALIZER_OPTIONS, option_of
from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.report.yaml_file import refuse_repeated


def patch_parse(module: Any) -> None:
    """``onmt.utils.parse``: what is written is used, or it is an error."""
    parser_class = module.ArgumentParser

    @around(parser_class)
    def __init__(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        reader = self._config_file_parser
        read = reader.parse
        reader.parse = lambda stream: read(_checked_yaml(stream))

    @around(parser_class)
    def parse_known_args(parse: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        options, left = parse(self, *args, **kwargs)
        if add_parameters_of_others(self, _keys(left)):
            options, left = parse(self, *args, **kwargs)
        _refuse_unknown(self, parser_class, left)
        _check_numbers(options)
        return options, left

    @around(parser_class)
    def error(original: Any, self: Any, message: str) -> None:
        # It may quote a number of 5000 digits.
        original(self, message if len(message) < 1000 else f"{message[:300]}…")

    @around(module.DataOptsCheckerMixin)
    def _validate_data(original: Any, cls: Any, opt: Namespace) -> None:
        _check_data(opt, module)
        original(cls, opt)


# --- YAML files -----------------------------------------------------------------------------------


def _checked_yaml(stream: Any) -> io.StringIO:
    """The text of a configuration, checked for what YAML's reader would not tell of."""
    name = getattr(stream, "name", "the configuration")
    try:
        text = stream.read()
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not a text in UTF-8; give a YAML file") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        refuse_repeated(root, name)
    except yaml.YAMLError:
        root = None  # configargparse says what is wrong with it
    except RecursionError as error:
        raise UserError(f"{name} is nested without end; give a YAML file of keys") from error
    if isinstance(root, yaml.MappingNode):
        for key, value in root.value:
            if value.tag == "tag:yaml.org,2002:null" and _is_ours(key.value):
                raise UserError(
                    f"{name}, line {key.start_mark.line + 1}: {key.value} has no value; "
                    "write one or remove the line"
                )
    return io.StringIO(text)


def _is_ours(key: Any) -> bool:
    return key in (*NORMALIZER_OPTIONS, *EXTENDED) or str(key).startswith(option_of(""))


# --- options and their values ---------------------------------------------------------------------


def _keys(left: Iterable[str]) -> list[str]:
    """The names of the options among what the parser left."""
    return [token.lstrip("-").split("=")[0] for token in left if _is_option(token)]


def _refuse_unknown(parser: Any, parser_class: Any, left: list[str]) -> None:
    if not left:
        return
    known = known_keys(parser_class) | {
        text.lstrip("-") for action in parser._actions for text in action.option_strings
    }
    sources: dict[str, str] = {}
    from_files: Counter[str] = Counter()
    for source, settings in parser._source_to_settings.items():
        if source.startswith("config_file"):
            for key, (action, value) in settings.items():
                sources[key] = source.split("|")[-1]
                if action is None:
                    from_files.update(parser.convert_item_to_command_line_arg(None, key, value))
    for key in _keys(left):
        if key not in known:
            raise UserError(_unknown_key(key, sources.get(key), known))
    # What another command's option has for a value is that option's; any other word is nobody's.
    before = ""
    for token in left:
        if from_files[token]:
            from_files[token] -= 1
        elif not _is_option(token) and not _is_option(before):
            raise UserError(
                f"{token!r} belongs to no option; write the option before it, "
                "as -attention_normalizer NAME"
            )
        before = token


def _is_option(token: str) -> bool:
    if not token.startswith("-") or len(token.lstrip("-")) == 0:
        return False
    try:
        float(token)
    except ValueError:
        return True
    return False


def _unknown_key(key: str, source: str | None, known: Iterable[str]) -> str:
    where = f"{source}: the key {key!r}" if source else f"the option -{key}"
    return f"{where} is unknown to every OpenNMT-py command{_hint(key, known)}"


def _hint(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


@functools.cache
def known_keys(parser_class: Any) -> set[str]:
    """Every key that some command takes, so that commands can share one YAML file."""
    import onmt.opts as opts

    parsers = [parser_class() for _ in range(3)]
    opts.train_opts(parsers[0])
    versions.vocabulary_options(opts)(parsers[1], build_vocab_only=True)
    opts.translate_opts(parsers[2], **versions.all_translation_options(opts))
    return {
        text.lstrip("-")
        for parser in parsers
        for action in parser._actions
        for text in action.option_strings
    }


def check_training_keys(changes: Mapping[str, Any]) -> None:
    """Refuse keys and values of ``--set`` that ``onmt_train`` would refuse hours later."""
    import onmt.opts as opts
    from onmt.utils.parse import ArgumentParser

    def fail(message: str) -> NoReturn:
        raise UserError(message)

    parser = ArgumentParser()
    parser.error = fail
    opts.train_opts(parser)
    required = (action.option_strings[0] for action in parser._actions if action.required)
    words = [word for option in required for word in (option, "x")]
    for key, value in changes.items():
        listed = value if isinstance(value, list) else [value]
        words += [f"-{key}", *map(str, listed)] if value is not True else [f"-{key}"]
    try:
        parser.parse_args(words)
    except UserError as error:
        raise UserError(f"--set: {error}") from error


#: Options of the stock commands that are at least 1, and those that are from 0 to 1.
COUNTS = ("accum_count", "batch_size", "beam_size", "bucket_size", "heads", "max_length", "n_best",
          "report_every", "transformer_ff", "valid_batch_size")  # fmt: skip
SHARES = ("attention_dropout", "dropout", "label_smoothing")


def _check_numbers(options: Namespace) -> None:
    for option, given in vars(options).items():
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{option} must be a finite number, not {value}")
            if option in COUNTS and value < 1:
                raise UserError(f"{option} must be at least 1, not {value}")
            if option in SHARES and not 0 <= value <= 1:
                raise UserError(f"{option} must be from 0 to 1, not {value}")


# --- corpora --------------------------------------------------------------------------------------


def read_corpora(data: Any) -> Mapping[Any, Mapping[Any, Any]]:
    """The corpora of ``data``, which OpenNMT-py has as a text; paths in them are texts, or None."""
    try:
        corpora = yaml.safe_load(data) if isinstance(data, str) else data
    except yaml.YAMLError:
        corpora = None
    if not isinstance(corpora, Mapping):
        raise UserError("data must be a list of corpora: name, then path_src, path_tgt and others")
    for name, corpus in corpora.items():
        if not isinstance(corpus, Mapping):
            raise UserError(f"data: the corpus {name!r} needs keys such as path_src and path_tgt")
        for key, value in corpus.items():
            if str(key).startswith("path") and not isinstance(value, str | None):
                raise UserError(f"data: {name}: {key} must be the name of a file, not {value!r}")
    return corpora


def _check_data(opt: Namespace, module: Any) -> None:
    corpora = read_corpora(opt.data)
    _check_transforms("transforms", opt.transforms, module.AVAILABLE_TRANSFORMS)
    known = versions.corpus_keys(module)
    for name, corpus in corpora.items():
        for key in corpus:
            if key not in known:
                raise UserError(f"data: {name}: the key {key!r} is unknown{_hint(str(key), known)}")
        weight = corpus.get("weight")
        if weight is not None and not (isinstance(weight, int) and weight >= 0):
            raise UserError(
                f"data: {name}: weight must be a whole number from 0 up, not {weight!r}"
            )
        if corpus.get("transforms") is not None:
            where = f"data: {name}: transforms"
            _check_transforms(where, corpus["transforms"], module.AVAILABLE_TRANSFORMS)
    if not any(name != "valid" and corpus.get("weight") != 0 for name, corpus in corpora.items()):
        raise UserError("data: no corpus to train on: none but valid has a weight above 0")


def _check_transforms(where: str, names: Any, known: Mapping[str, Any]) -> None:
    if not isinstance(names, (list, tuple)):
        raise UserError(f"{where}: must be a list, as [{names}]")
    for name in names:
        if str(name) not in known:
            raise UserError(f"{where}: {unknown_name('transform', str(name), sorted(known))}")
