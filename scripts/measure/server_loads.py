"""Today's equivalents, from Debian, of the three workloads of King, Dunlap and Chen (2005): SPECweb99, three builds of
a C program, and PostMark. The workloads run on the Debian disk. Each prints a mark at its beginning and at its end,
with the guest's uptime."""

import re
import socket
import subprocess
import threading
import time
from dataclasses import dataclass

from measure.workloads import GUESTS, KERNEL

CMDLINE = "console=ttyS0 quiet root=/dev/vda rw"
MEMORY = "512M"
# The size of the page that ab requests, and the number of its connections at the same time.
PAGE_BYTES = 16 << 10
CONNECTIONS = 8
QUIT_TRIES = 60


class LoadError(Exception):
    """The requests to the guest's server failed. The text is for the user."""


@dataclass
class Load:
    """One workload."""

    title: str
    """The workload's name in the table."""
    count: int
    """The default number of requests, builds or transactions."""
    before: str
    """The guest's commands before the measured part. {count} stands for the number."""
    command: str
    """The guest's commands in the measured part."""
    network: bool = False


LOADS = {
    "web": Load(
        title="nginx, asked by ab",
        count=20_000,
        before=f"head -c {PAGE_BYTES} /usr/bin/perl >/var/www/html/page && systemctl start nginx",
        command="until grep -qs GET./quit /var/log/nginx/access.log; do sleep 0.1; done",
        network=True,
    ),
    "build": Load(
        title="bzip2, built by gcc and make",
        count=3,
        before="cd /usr/src/bzip2",
        command="for i in $(seq {count}); do make -s clean && make -s bzip2 >/dev/null 2>&1 || exit 1; done",
    ),
    "files": Load(
        title="PostMark",
        count=100_000,
        before="cd /root && (echo set number 1000; echo set transactions {count}; echo run; echo quit) >job",
        command="postmark job >/dev/null",
    ),
}


def machine_options(load, count, port):
    """The machine's options for ttvm run and ttvm record. The host's port `port` is forwarded to the guest's web
    server."""
    job = f"{load.before} && {mark('begin')} && {load.command} && {mark('end')}".replace("{count}", str(count))
    options = ["--kernel", KERNEL, "--initrd", f"{GUESTS}/initrd-busybox-cloud.gz", "--disk", f"{GUESTS}/debian.img"]
    options += ["--memory", MEMORY, "--seed", "1", "--date", "1700000000", "--cmdline", f'{CMDLINE} ttvm.run="{job}"']
    return options + (["--net", f"user,hostfwd=tcp:127.0.0.1:{port}-:80"] if load.network else [])


def mark(kind):
    return f"echo MARK {kind} load $(cat /proc/uptime)"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Visitors:
    """The clients of one guest's web server. Call `begin` when the server is ready."""

    def __init__(self, port, count):
        self.address, self.count, self.wrong = f"http://127.0.0.1:{port}", count, None
        self.thread = threading.Thread(target=self.ask, daemon=True)

    def begin(self):
        self.thread.start()

    def ask(self):
        # Each connection serves many requests. A guest that shares a core sees fewer seconds pass than the host. So the
        # guest may still keep a connection whose port the host uses again. The guest would take the new connection for
        # the old one, and passt would reset it.
        ab = ["ab", "-q", "-k", "-n", str(self.count), "-c", str(CONNECTIONS), f"{self.address}/page"]
        done = subprocess.run(ab, capture_output=True, text=True)
        complete = re.search(r"^Complete requests:\s+(\d+)$", done.stdout, re.M)
        failed = re.search(r"^Failed requests:\s+(\d+)$", done.stdout, re.M)
        if done.returncode != 0 or not complete or int(complete[1]) != self.count or not failed or int(failed[1]) != 0:
            self.wrong = f"ab ended with {done.returncode}: {(done.stderr or done.stdout)[-300:].strip()}"
        # The page /quit does not exist. Its request tells the guest to end; without the request the guest would never
        # end.
        for _ in range(QUIT_TRIES):
            if subprocess.run(["ab", "-q", "-n", "1", f"{self.address}/quit"], capture_output=True).returncode == 0:
                return
            time.sleep(1)
