"""Runs inside gdb: obeys the commands in the file that TTVM_SCRIPT names, one a line, and prints for each a line "> N",
then what gdb says. An error does not end the session: it is printed as "! sentence"."""

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
