"""Results of jobs: written whole, read back only if they belong together, and tabulated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.report.statistics import Mean
from onmt_evsoftmax.report.table import Table
from onmt_evsoftmax.vae import configuration
from onmt_evsoftmax.vae.estimators import in_order, title
from onmt_evsoftmax.vae.experiment import Results, experiments
from onmt_evsoftmax.vae.training import SECONDS

#: A finished job's file in its folder.
RESULTS = "results.json"


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Write JSON whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")


def find_results(folders: Sequence[str | Path]) -> list[Path]:
    """Every ``results.json`` in or directly below the folders."""
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        for path in sorted({*folder.glob(RESULTS), *folder.glob(f"*/{RESULTS}")}):
            found.setdefault(path.resolve(), path)  # a folder may be given twice
    if not found:
        raise UserError(f"no {RESULTS} below {', '.join(map(str, folders))}; run the jobs first")
    return list(found.values())


def read_results(folders: Sequence[str | Path]) -> Results:
    """What :func:`find_results` finds; it must belong together."""
    results = {path: _read_result(path) for path in find_results(folders)}
    if len(results) > 1:
        _check_same_setup(results)
    return list(results.values())


def _read_result(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["experiment"] not in experiments():
            raise ValueError(unknown_name("experiment", str(content["experiment"]), experiments()))
        if type(content["seed"]) is not int:
            raise ValueError(f"seed {content['seed']!r} is not a whole number")
        for method in content["methods"].values():
            for value in method["metrics"].values():
                float(value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not the results of a job ({error}); remove it") from error
    return content


def _check_same_setup(results: dict[Path, dict[str, Any]]) -> None:
    """Refuse results whose mean would mean nothing: of two set-ups, or of one job twice."""
    settings = {path: _settings(path, content) for path, content in results.items()}
    first, *_ = results
    owners: dict[tuple[str, int], Path] = {}
    for path, content in results.items():
        for key in settings[first] | settings[path]:
            one, other = (_said(settings[owner], key) for owner in (first, path))
            if one != other:
                raise UserError(
                    f"{first} has {one} but {path} has {other}; "
                    "give folders of one experiment and configuration"
                )
        for method in content["methods"]:
            owner = owners.setdefault((method, content["seed"]), path)
            if owner != path:
                raise UserError(
                    f"{owner} and {path} are both {method} with seed {content['seed']}; "
                    "give only one of them"
                )


def _settings(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """All that results must have in common: the experiment, and the configuration beside them."""
    beside = path.with_name(configuration.FILE)
    choices = experiments()[content["experiment"]].configuration.choices
    values = configuration.saved(beside, choices)
    if values is None:
        raise UserError(
            f"{beside} cannot be read, so nothing tells whether {path} belongs to the others; "
            "give folders as their jobs left them, or that one alone"
        )
    return {"experiment": content["experiment"], **values}


def _said(settings: dict[str, Any], key: str) -> str:
    return f"{key}: {settings[key]}" if key in settings else f"no {key}"


def table_of(results: Results) -> Table:
    """Means and standard errors over the seeds, a row per method."""
    name = results[0]["experiment"]
    metrics = {**experiments()[name].metrics, **SECONDS}
    rows: dict[str, dict[str, Mean]] = {}
    for method in in_order({method for result in results for method in result["methods"]}):
        found = [r["methods"][method]["metrics"] for r in results if method in r["methods"]]
        values = {key: [float(seed[key]) for seed in found if key in seed] for key in metrics}
        rows[method] = {key: Mean.of(seeds) for key, seeds in values.items() if seeds}
    shown = [key for key in metrics if any(key in row for row in rows.values())]
    signature = _signature(results)
    return Table(
        "",
        ["", *(metrics[key][0] for key in shown)],
        [
            [title(method), *(row[k].text(metrics[k][1]) if k in row else "–" for k in shown)]
            for method, row in rows.items()
        ],
        signatures=[signature],
        caption=f"{name}: mean and standard error over seeds",
        data={
            "experiment": name,
            "signature": signature,
            "rows": {m: {k: vars(mean) for k, mean in row.items()} for m, row in rows.items()},
        },
    )


def _signature(results: Results) -> str:
    def distinct(key: str) -> str:
        return ",".join(str(v) for v in sorted({r.get(key, "?") for r in results}))

    return (
        f"{distinct('experiment')}|data:{distinct('data')}|epochs:{distinct('epochs')}"
        f"|seeds:{distinct('seed')}|commit:{distinct('commit') or '?'}|torch:{distinct('torch')}"
    )
