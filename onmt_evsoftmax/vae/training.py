"""The loop that every model here is trained by: seeded, checkpointed, resumed, watched.

The data set is one tensor on the device and a batch is a vector of indices into it. After every
epoch the whole state (weights, optimizer, random numbers, history) is written with one rename, so a
killed run continues from its last epoch and ends bit for bit where an uninterrupted one ends.

Under ``torchrun`` every process takes its share of each batch; gradients and numbers are averaged.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.report.progress import progress
from onmt_evsoftmax.vae import distributed

#: Batch of indices (B,) → loss to minimise, and numbers to report.
Loss = Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]
History = list[dict[str, Any]]


@dataclass
class Run:
    """Where a model is trained, and from which random numbers."""

    folder: Path
    seed: int
    device: torch.device
    tensorboard: bool = True

    def seed_stage(self, stage: str) -> None:
        """Seed every generator from the seed and the stage's name, differently in each process."""
        number = self.seed * 1_000_003 + zlib.crc32(stage.encode())
        torch.manual_seed((number + 7919 * distributed.rank()) % 2**63)


@dataclass
class Schedule:
    """How long and in which steps: ``evaluate_every`` counts steps, 0 means after each epoch.

    ``select`` names a number of the evaluation: the model ends with the weights of the epoch in
    which it was lowest. Without it, it ends with those of the last epoch.
    """

    size: int
    batch_size: int
    epochs: int
    evaluate_every: int = 0
    select: str = ""


@dataclass
class Trained:
    """What a training gave beside the model, which has the weights of the evaluation ``final``.

    ``seconds`` are the mean wall and processor time of an epoch's steps. On a machine with other
    work only the processor's time compares methods; without an epoch there are none.
    """

    history: History
    final: dict[str, Any]
    seconds: dict[str, float]


#: The titles and decimals of ``seconds`` in a table.
SECONDS = {"seconds_per_epoch": ("s / epoch", 2), "cpu_seconds_per_epoch": ("CPU s / epoch", 2)}


def train(
    run: Run,
    stage: str,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    loss: Loss,
    evaluate: Callable[[], dict[str, Any]],
    *,
    summed: bool = False,
) -> Trained:
    """Train ``module`` in place, or finish what a checkpoint began; it ends in evaluation mode.

    ``loss`` is a mean over its batch, or a sum if ``summed``.
    ``evaluate`` is called in evaluation mode without gradients; each entry of the history is what
    it returned, with ``step``, ``epoch`` and the mean of the loss's numbers since the entry before
    or since the epoch began, whichever is later: a resumed run knows no earlier ones.
    """
    checkpoint = run.folder / f"{stage}.pt"
    state = _State(checkpoint, run.device, module, optimizer, schedule.select)
    state.resume()
    distributed.synchronize(module)
    steps = -(-schedule.size // schedule.batch_size)
    bar = progress(
        f"{run.folder.name} {stage}",
        schedule.epochs * steps,
        unit="steps",
        initial=state.epoch * steps,
        quiet=distributed.rank() != 0 or state.epoch >= schedule.epochs,
    )
    with bar, _watch(run, stage, state.history) as write:

        def record(step: int, numbers: dict[str, float]) -> None:
            module.eval()
            with torch.no_grad():
                entry = {"step": step, "epoch": step / steps, **numbers, **evaluate()}
            module.train()
            state.history.append(entry)
            state.keep_best()
            write(entry)
            bar.set_postfix_str(_brief(entry), refresh=False)

        if not state.history:
            record(0, {})
        module.train()
        while state.epoch < schedule.epochs:
            began = time.perf_counter(), time.process_time()
            means, losses = _Means(run.device), _Means(run.device)
            order = _order(run, stage, schedule.size, state.epoch)
            for number, batch in enumerate(order.to(run.device).split(schedule.batch_size), 1):
                mine = distributed.share(batch)
                value, numbers = loss(mine)
                if summed:  # as large as the whole batch's, so that means over processes are right
                    value = value * (len(batch) / len(mine))
                optimizer.zero_grad()
                value.backward()
                distributed.average_gradients(module, batch)
                _step(optimizer)
                weight = distributed.weight(batch)
                means.add({"loss": value.detach(), **numbers}, weight)
                losses.add({"loss": value.detach()}, weight)
                bar.update()
                step = state.epoch * steps + number
                if schedule.evaluate_every and step % schedule.evaluate_every == 0:
                    record(step, means.take())
            state.seconds.append(time.perf_counter() - began[0])
            state.cpu_seconds.append(time.process_time() - began[1])
            if not schedule.evaluate_every:
                record((state.epoch + 1) * steps, means.take())
            state.epoch += 1
            _refuse_nan(state, stage, losses.take()["loss"])
            state.save()
    if state.best:
        module.load_state_dict(state.best["module"])
    distributed.synchronize(module)  # the statistics, which were each process's own
    module.eval()
    times = zip(SECONDS, (state.seconds, state.cpu_seconds), strict=True)
    seconds = {name: statistics.fmean(epochs) for name, epochs in times if epochs}
    return Trained(state.history, state.final(), seconds)


@dataclass
class _State:
    """What a checkpoint holds."""

    path: Path
    device: torch.device
    module: nn.Module
    optimizer: torch.optim.Optimizer
    select: str
    epoch: int = 0
    history: History = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)

    def final(self) -> dict[str, Any]:
        """The evaluation of the weights that the model would end with now."""
        if not self.select:
            return self.history[-1]
        return min(self.history, key=lambda entry: entry[self.select])

    def keep_best(self) -> None:
        """Copy the weights if the last evaluation is the best so far."""
        if self.select and self.history[-1] is self.final():
            weights = {name: value.clone() for name, value in self.module.state_dict().items()}
            self.best = {"module": weights}

    def save(self) -> None:
        if distributed.rank() == 0:
            content = {
                "epoch": self.epoch,
                "module": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
                "history": self.history,
                "seconds": self.seconds,
                "cpu_seconds": self.cpu_seconds,
                "best": self.best,
            }
            with replacing(self.path) as temporary:
                torch.save(content, temporary)
        distributed.wait()

    def resume(self) -> None:
        if not self.path.exists():
            return
        try:
            content = torch.load(self.path, map_location=self.device, weights_only=True)
            self.module.load_state_dict(content["module"])
            self.optimizer.load_state_dict(content["optimizer"])
        except Exception as error:
            raise UserError(
                f"{self.path} is not a checkpoint of this model ({type(error).__name__}); "
                "remove it to begin again"
            ) from error
        if distributed.rank() == 0:
            torch.set_rng_state(content["random"].cpu())
            if content["random_cuda"] and torch.cuda.is_available():
                torch.cuda.set_rng_state_all([state.cpu() for state in content["random_cuda"]])
        else:  # only the first process's numbers are kept; the others draw fresh ones
            torch.manual_seed(torch.initial_seed() + 104729 * content["epoch"])
        self.epoch, self.history = content["epoch"], content["history"]
        self.seconds, self.cpu_seconds = content["seconds"], content["cpu_seconds"]
        self.best = content.get("best", {})


class _Means:
    """Running means over steps and processes that stay on the device until asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def add(self, numbers: dict[str, Tensor], weight: float) -> None:
        """The numbers of a step; the weights of all processes add up to 1."""
        self.count += 1
        for name, value in numbers.items():
            part = value * weight
            self.sums[name] = self.sums[name] + part if name in self.sums else part

    def take(self) -> dict[str, float]:
        """The means since the last call; every process must call it at the same step."""
        totals = {name: distributed.total(s, self.device) for name, s in self.sums.items()}
        means = {name: value / self.count for name, value in totals.items()}
        self.sums, self.count = {}, 0
        return means


def _order(run: Run, stage: str, size: int, epoch: int) -> Tensor:
    """The epoch's permutation: of seed, stage and epoch only, so the same in every process."""
    generator = torch.Generator()
    generator.manual_seed(zlib.crc32(f"{run.seed} {stage} {epoch}".encode()))
    return torch.randperm(size, generator=generator)


def _step(optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's step, in which numbers below the range of floats become 0.

    Weights of pixels that no image sets have no gradient but their own decay, and Adam's averages
    of it sink so low that its step takes five times as long.
    """
    torch.set_flush_denormal(True)
    try:
        optimizer.step()
    finally:
        torch.set_flush_denormal(False)


def _refuse_nan(state: _State, stage: str, loss: float) -> None:
    """Keep the checkpoint of the epoch before if this one's mean loss or weights went wrong."""
    finite = all(bool(weights.isfinite().all()) for weights in state.module.parameters())
    if loss == loss and finite:  # the last step may spoil weights that gave a good loss
        return
    what = "weights are not finite" if loss == loss else "loss is not a number"
    kept = f". The last good state is {state.path}" if state.path.exists() else ""
    raise UserError(
        f"{stage}: the {what} in epoch {state.epoch}; lower learning_rate in another output "
        f"folder{kept}"
    )


def _brief(entry: dict[str, Any]) -> str:
    numbers = {k: v for k, v in entry.items() if isinstance(v, float) and k != "epoch"}
    return " ".join(f"{name} {value:.4g}" for name, value in list(numbers.items())[:4])


@contextlib.contextmanager
def _watch(run: Run, stage: str, history: History) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that sends the numbers of a history entry to TensorBoard, which has ``history``.

    A run that was killed may have sent entries that no checkpoint holds, and a purge mark reaches
    only files that TensorBoard happens to read earlier: its files are written anew.
    """
    if not run.tensorboard or distributed.rank() != 0:
        yield lambda entry: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("TensorBoard is not installed; install it or add --no-tensorboard") from (
            error
        )
    folder = run.folder / "tensorboard" / stage
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    with SummaryWriter(str(folder)) as writer:

        def write(entry: dict[str, Any]) -> None:
            for name, value in entry.items():
                if isinstance(value, (int, float)) and name not in ("step", "epoch"):
                    writer.add_scalar(f"{stage}/{name}", value, entry["step"])
            writer.flush()  # so that a kill loses nothing that a checkpoint holds

        for entry in history:
            write(entry)
        yield write
