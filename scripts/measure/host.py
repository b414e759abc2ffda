"""The host, the commit and the version with which figures were measured. Figures without these data are useless."""

import platform
import shutil
import subprocess

from measure.workloads import REPO


def host_and_commit(ttvm):
    """The host, this repository's commit (empty without a git repository) and ttvm's version."""
    with open("/proc/cpuinfo") as file:
        model = next((line.partition(": ")[2].strip() for line in file if line.startswith("model name")), "")
    return {
        "scripts_commit": said_by("git", "-C", REPO, "rev-parse", "HEAD"),
        "ttvm_version": said_by(ttvm, "--version"),
        "cpu": model,
        "system": platform.platform(),
    }


def said_by(*command):
    """A command's output; empty if the command cannot be run."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
