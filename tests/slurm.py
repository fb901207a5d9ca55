"""A real SLURM of one node on the loopback address, for as long as a test runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

#: Where srun looks inside a job, from which Snakemake takes the variables of SLURM.
CONFIG = Path("/etc/slurm/slurm.conf")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")

_CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmctldPort={port}
SlurmdPort={other_port}
SlurmdTimeout=30
KillWait=3
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """What would have to be installed: Debian's packages slurm-wlm and munge, and root."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    found = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if CONFIG.exists():
        found.append(f"a machine without a SLURM of its own ({CONFIG})")
    return found + ([] if os.geteuid() == 0 else ["the rights of root"])


class Slurm:
    """munged, slurmctld and slurmd with everything of theirs in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(parents=True, mode=0o700)
        folder.chmod(0o700)
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        }
        first, second = _free_port(), _free_port()
        host = socket.gethostname().partition(".")[0]
        values = {"host": host, "folder": folder, "port": first, "other_port": second}
        (folder / "slurm.conf").write_text(_CONFIG.format(**values))

    def __enter__(self) -> Slurm:
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log",
                 "seed-file": "seed"}  # fmt: skip
        self.run("munged", "--force", *(f"--{key}={munge / name}" for key, name in files.items()))
        CONFIG.parent.mkdir(exist_ok=True)
        CONFIG.symlink_to(self.folder / "slurm.conf")
        self.run("slurmctld")
        self.start_node()
        deadline = time.monotonic() + 60
        while "idle" not in self.run("sinfo", "-h", "-o", "%T"):
            assert time.monotonic() < deadline, (self.folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        self.run("scancel", "--user", "root")
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            self.signal(name, signal.SIGTERM)
        CONFIG.unlink()

    def run(self, *words: str) -> str:
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_node(self) -> None:
        self.run("slurmd")

    def kill_node(self) -> None:
        """The node's daemon dies without a word."""
        self.signal("slurmd.pid", signal.SIGKILL)

    def signal(self, pid_file: str, number: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / pid_file).read_text()), number)

    def jobs(self, rule: str) -> list[str]:
        """Numbers of the running jobs of a rule; Snakemake writes it into their comments."""
        rows = self.run("squeue", "-h", "-t", "RUNNING", "-o", "%i %k").splitlines()
        return [row.split()[0] for row in rows if f"rule_{rule}" in row]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
