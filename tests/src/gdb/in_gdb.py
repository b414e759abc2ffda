"""Runs inside gdb. Executes the commands in the file that TTVM_SCRIPT names, one command a line. For each command,
prints a line "> NUMBER COMMAND", and then gdb's output. An error does not end the session, but is printed as
"! sentence"."""

import os

import gdb


def obey(commands):
    for number, command in enumerate(commands):
        print(f"> {number} {command}", flush=True)
        try:
            print(gdb.execute(command, to_string=True), end="", flush=True)
        except gdb.error as error:
            print(f"! {error}", flush=True)
    print(f"> {len(commands)} end", flush=True)


with open(os.environ["TTVM_SCRIPT"]) as file:
    obey(file.read().splitlines())
