"""More than one process: ``torchrun --nproc_per_node=N -m onmt_evsoftmax.vae …``.

All begin with the first process's weights. Each takes its share of every batch; gradients are
averaged by the share's size. Models here call parts of themselves, which
``DistributedDataParallel`` does not see, so the reduction is done after ``backward``. While a model
is trained, statistics of batch normalisation and moving baselines are each process's own; the first
process's are the ones that are saved, and used by all in the end.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from onmt_evsoftmax.report.console import UserError

#: How long processes wait for each other: for a download, too. One that fails ends all at once.
PATIENCE = timedelta(hours=12)

#: What ``torchrun`` sets besides WORLD_SIZE.
_ANNOUNCED = ("LOCAL_RANK", "RANK", "MASTER_ADDR", "MASTER_PORT")


def announced() -> int:
    """How many processes ``torchrun`` says there are, whether they have met or not."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start() -> torch.device | None:
    """Join the group that ``torchrun`` announces; the device of this process, None if alone."""
    count = announced()
    if count == 1 or dist.is_initialized():
        return None
    if missing := [name for name in _ANNOUNCED if name not in os.environ]:
        raise UserError(
            f"WORLD_SIZE is {count}, but {', '.join(missing)} is not set; start it with torchrun "
            f"--nproc_per_node={count} -m onmt_evsoftmax.vae, or unset WORLD_SIZE for one process"
        )
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        if local >= (gpus := torch.cuda.device_count()):
            raise UserError(
                f"torchrun started a process for GPU {local}, but torch finds only {gpus} here, "
                f"counted from 0; start it with --nproc_per_node={gpus}"
            )
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", timeout=PATIENCE)
        return torch.device("cuda", local)
    dist.init_process_group("gloo", timeout=PATIENCE)
    return torch.device("cpu")


def stop() -> None:
    """Leave the group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """0 in the process that writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def wait() -> None:
    """Wait until every process is here."""
    if dist.is_initialized():
        dist.barrier()


def share(batch: Tensor) -> Tensor:
    """This process's part of a batch of indices (B,); all of it if it is too small to divide."""
    if size() == 1 or len(batch) < size():
        return batch
    return batch.tensor_split(size())[rank()]


@torch.no_grad()
def synchronize(module: nn.Module) -> None:
    """Give every process the first one's parameters and buffers."""
    if size() > 1:
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor, 0)


def weight(batch: Tensor) -> float:
    """What this process's share counts in a mean over the batch; these add up to 1."""
    return len(share(batch)) / len(batch) if len(batch) >= size() else 1 / size()


def average_gradients(module: nn.Module, batch: Tensor) -> None:
    """Replace each gradient by its mean over the processes, weighted by their shares."""
    if size() == 1:
        return
    for parameter in module.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.mul_(weight(batch))
        dist.all_reduce(parameter.grad)


def total(number: Tensor, device: torch.device) -> float:
    """The sum of every process's number, moved to the device over which they communicate."""
    if size() == 1:
        return float(number)
    number = number.to(device, copy=True)
    dist.all_reduce(number)
    return float(number)
